package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/core/node"
	"github.com/mooncake-agent/mooncake/core/units"
)

func newSegmentsCommand() *cobra.Command {
	from := "127.0.0.1:9004"
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:   "segments",
		Short: "Show how a node reaches each segment: paths, which is used and why, bytes, errors, latency",
		Long: `Ask a running node on this host how it reaches the segments that it has opened.

Each segment has one line for each path, in order of preference. State is one of
  used         requests go this way
  ready        the next request goes this way and connects
  standby      a better path goes first
  down         it failed a moment ago and is tried again soon
  unreachable  the segment does not offer it, or not to this node
Latency is the mean of the last requests, in microseconds.`,
		Example: `  mooncake segments
  mooncake segments --admin /run/mooncake/admin.sock --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := fetchSegments(cmd.Context(), from)
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(s)
			}
			return writeSegments(cmd.OutOrStdout(), s, all)
		},
	}
	cmd.Flags().StringVar(&from, "admin", from, "the node's admin.listen (loopback) or the path of its admin.socket")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&all, "all", false, "also show paths that are unreachable")
	return cmd
}

// maxSegmentsAnswer bounds what is read of an answer.
const maxSegmentsAnswer = 256 << 20

// adminTransport is how to reach an admin server: host:port, a URL, or the path of a socket.
func adminTransport(from string) (base string, transport *http.Transport) {
	transport = &http.Transport{}
	base = strings.TrimSuffix(from, "/")
	switch {
	case strings.HasPrefix(from, "/") || strings.HasPrefix(from, "."):
		base = "http://localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", from)
		}
	case !strings.Contains(from, "://"):
		base = "http://" + base
	}
	return base, transport
}

// fetchSegments asks the admin server at from: host:port, a URL, or the path of a socket.
func fetchSegments(ctx context.Context, from string) (*node.Segments, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	base, transport := adminTransport(from)
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+node.SegmentsPath, nil)
	if err != nil {
		return nil, fmt.Errorf("--admin: %w", err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, fmt.Errorf("no answer from the node's admin server (--admin %s): %w", from, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxSegmentsAnswer))
	if err != nil {
		return nil, fmt.Errorf("--admin %s: %w", from, err)
	}
	if resp.StatusCode == http.StatusForbidden {
		return nil, fmt.Errorf("--admin %s: %s", from, strings.TrimSpace(string(body)))
	}
	out := &node.Segments{}
	if err := json.Unmarshal(body, out); resp.StatusCode != http.StatusOK || err != nil {
		return nil, errors.Join(fmt.Errorf("--admin %s answers %s: is this the admin server of a mooncake node?", from, resp.Status), err)
	}
	return out, nil
}

func writeSegments(w io.Writer, s *node.Segments, all bool) error {
	t := newTable(w)
	t.AppendHeader(table.Row{"Segment", "Size", "Path", "State", "Requests", "Bytes", "Errors", "Latency us", "Why"})
	hidden := 0
	for _, g := range s.Segments {
		name, size := g.Segment, units.Size(g.Bytes).String()
		for _, p := range g.Paths {
			if p.State == "unreachable" && !all && len(g.Paths) > 1 {
				hidden++
				continue
			}
			why := p.Why
			if p.LastError != "" && p.State != "down" && p.State != "unreachable" {
				why += "; last error: " + p.LastError
			}
			t.AppendRow(table.Row{name, size, p.Path, p.State, p.Requests, p.Bytes, p.Errors, fmt.Sprintf("%.1f", p.LatencyUS), why})
			name, size = "", "" // further paths of the same segment
		}
	}
	t.Render()
	if hidden > 0 {
		_, err := fmt.Fprintf(w, "(%d unreachable paths are not shown; --all shows them)\n", hidden)
		return err
	}
	return nil
}
