package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/core/node"
	"github.com/mooncake-agent/mooncake/core/telemetry"
	"github.com/mooncake-agent/mooncake/core/transfer"
)

func TestSegments(t *testing.T) {
	answer := node.Segments{Segments: []transfer.SegmentStatus{
		{Segment: "me", Bytes: 16 << 20, Paths: []transfer.PathStatus{{Path: "copy", State: transfer.PathUsed, Why: "it is this process"}}},
		{Segment: "you", Bytes: 1 << 30, Paths: []transfer.PathStatus{
			{Path: "shm", State: transfer.PathDown, Why: "tried again in 1s; it failed: gone", Requests: 3, Bytes: 12288, Errors: 1, LatencyUS: 2.44, LastError: "gone"},
			{Path: "verbs", State: transfer.PathUnreachable, Why: "no device"},
			{Path: "tcp", State: transfer.PathUsed, Why: "the first", LastError: "reset"}}},
	}}
	h := http.NewServeMux()
	h.HandleFunc(node.SegmentsPath, func(w http.ResponseWriter, _ *http.Request) { telemetry.WriteJSON(w, http.StatusOK, answer) })
	s := httptest.NewServer(h)
	defer s.Close()
	for _, c := range []struct {
		name     string
		args     []string
		has, not []string
	}{
		{"table", nil, []string{"me       16MB", "copy", "you      1GB", "down", "tried again in 1s; it failed: gone", "12288", "2.4", "the first; last error: reset", "(1 unreachable paths"}, []string{"verbs"}},
		{"all", []string{"--all"}, []string{"verbs", "no device"}, []string{"not shown"}},
		{"json", []string{"--json"}, []string{`"segment": "you"`, `"latency_us": 2.44`, `"state": "down"`}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := newSegmentsCommand()
			cmd.SetOut(&out)
			cmd.SetArgs(append([]string{"--admin", s.URL}, c.args...))
			if err := cmd.Execute(); err != nil {
				t.Fatal(err)
			}
			for _, w := range c.has {
				if !strings.Contains(out.String(), w) {
					t.Errorf("no %q in\n%s", w, &out)
				}
			}
			for _, w := range c.not {
				if strings.Contains(out.String(), w) {
					t.Errorf("%q in\n%s", w, &out)
				}
			}
		})
	}
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	if _, err := fetchSegments(context.Background(), other.URL); err == nil || !strings.Contains(err.Error(), "is this the admin server of a mooncake node?") {
		t.Errorf("another server: %v", err)
	}
	if _, err := fetchSegments(context.Background(), t.TempDir()+"/none.sock"); err == nil || !strings.Contains(err.Error(), "none.sock") {
		t.Errorf("no socket: %v", err)
	}
}
