package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/master/flags"
	"github.com/mooncake-agent/mooncake/core/node"
	"github.com/mooncake-agent/mooncake/core/telemetry"
)

//go:generate go run . docs ../../docs/reference

// newDocsCommand writes the reference pages. A test compares them with what is committed.
func newDocsCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "docs DIR",
		Short:  "Write the generated reference pages",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			pages, err := referencePages()
			if err != nil {
				return err
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			for name, text := range pages {
				if err := os.WriteFile(filepath.Join(args[0], name), text, 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// referencePages returns the pages that are made from code, by file name.
func referencePages() (map[string][]byte, error) {
	const note = "<!-- Generated from the code by `make generate`. -->\n\n"
	var keys bytes.Buffer
	fmt.Fprintf(&keys, "# Configuration keys\n\n%sEvery key of `mooncake.json` (or YAML). Environment variables override the file, `--set key=value` overrides both.\n\n", note)
	if err := config.WriteSchema(&keys, node.Schema(), "markdown"); err != nil {
		return nil, err
	}
	ms, err := node.Metrics()
	if err != nil {
		return nil, err
	}
	mm, err := masterMetrics()
	if err != nil {
		return nil, err
	}
	metrics := fmt.Sprintf("# Metrics\n\n%s## Node\n\nServed at `/metrics` of the admin server.\n\n%s\n## Store master\n\n"+
		"Served at `/metrics` of the master's admin server and of its RPC port, after all families of upstream's mooncake_master.\n\n%s",
		note, telemetry.MetricsTable(nodeMetrics(ms)), telemetry.MetricsTable(nodeMetrics(mm)))
	cli, err := commandPage()
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		"config.md":  keys.Bytes(),
		"metrics.md": []byte(metrics),
		"cli.md":     []byte("# Command line\n\n" + note + cli),
	}, nil
}

// masterMetrics are the metrics of a master with everything on.
func masterMetrics() ([]telemetry.Metric, error) {
	f := flags.Defaults()
	f.MetadataServer = true
	version := telemetry.BuildVersion()
	reg := telemetry.NewRegistry(version)
	s, err := newMaster(context.Background(), &f, slog.New(slog.DiscardHandler), reg, version)
	if err != nil {
		return nil, err
	}
	ms, err := reg.Catalogue()
	return ms, errors.Join(err, s.Close(context.Background()))
}

// nodeMetrics leaves out those of the Go runtime and the process, which differ between Go versions.
func nodeMetrics(ms []telemetry.Metric) []telemetry.Metric {
	var out []telemetry.Metric
	for _, m := range ms {
		if strings.HasPrefix(m.Name, "mooncake_") {
			out = append(out, m)
		}
	}
	return out
}

func commandPage() (string, error) {
	var b bytes.Buffer
	var walk func(*cobra.Command) error
	walk = func(c *cobra.Command) error {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return nil
		}
		c.DisableAutoGenTag = true
		if err := doc.GenMarkdownCustom(c, &b, func(link string) string {
			return "#" + strings.ReplaceAll(strings.TrimSuffix(link, ".md"), "_", "-")
		}); err != nil {
			return err
		}
		for _, sub := range c.Commands() {
			if err := walk(sub); err != nil {
				return err
			}
		}
		return nil
	}
	err := walk(newRootCommand())
	return b.String(), err
}
