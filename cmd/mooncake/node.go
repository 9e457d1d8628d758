package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/node"
)

func newNodeCommand() *cobra.Command {
	var flags configFlags
	var hints bool
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run a node: register memory, publish it, serve transfers",
		Long: `Run a node until SIGTERM or Ctrl-C. When it is ready it prints one line of JSON on stdout:
{"ready":true,"segment":"127.0.0.1:15428","admin":"http://127.0.0.1:9004"}. Logs go to stderr.

SIGHUP, or a change of the config file, reloads the configuration: keys that can change in a running
node are applied, the others are named in the log.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := flags.load(nil)
			if err != nil {
				return err
			}
			reload := func() (*config.Loaded, error) { return flags.load(nil) }
			return node.Run(cmd.Context(), node.Options{
				Config: l, Reload: reload, Stderr: cmd.ErrOrStderr(), Local: pluginEndpoints(),
				Ready: func(_ context.Context, s node.Status) {
					announce(cmd.OutOrStdout(), cmd.ErrOrStderr(), s, hints || term.IsTerminal(int(os.Stdout.Fd())))
				},
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&hints, "hints", false, "also print what to try next on stderr, as at a terminal")
	return cmd
}

// announce prints the ready line for programs, and for people what to do with it.
func announce(out, errOut io.Writer, s node.Status, hints bool) {
	announceLine(out, s)
	if !hints {
		return
	}
	fmt.Fprintf(errOut, `
The node is ready.
  segment   %s   (%s)
  metadata  %s
  admin     %s

Write into it with the unmodified wheel (pip install mooncake-transfer-engine-non-cuda), two lines of Python:

  from mooncake.engine import TransferEngine; e = TransferEngine(); e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""); b = e.allocate_managed_buffer(8192)
  e.write_bytes_to_buffer(b, "hello", 5); print(e.transfer_sync_write("%s", b, e.get_first_buffer_address("%s"), 5))

It prints 0. Ctrl-C stops the node.
`, s.Segment, s.Memory, s.MetadataText(), orNone(s.Admin), s.Daemon, s.Daemon)
}

// announceLine prints the ready line.
func announceLine(out io.Writer, s node.Status) {
	line, err := json.Marshal(s)
	if err != nil {
		panic(err) // a struct of strings
	}
	fmt.Fprintf(out, "%s\n", line)
}

func orNone(s string) string {
	if s == "" {
		return "off"
	}
	return s
}
