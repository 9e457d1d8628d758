package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/core/bench"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

func TestBenchKV(t *testing.T) {
	t.Setenv("MOONCAKE_CONFIG_PATH", "")
	m := testenv.StartMaster(t)
	testenv.StartNode(t, testenv.Config{"master_server_address": m.Addr, "global_segment_size": "64MB"})
	for _, args := range [][]string{{"--op", "put"}, {"--op", "get", "--batch", "3"}, {"--op", "get-buffer"}, {"--op", "get-into", "--batch", "2"}, {"--op", "exists"},
		{"--op", "put", "--batch", "3", "--lend", "16MB"}} {
		out, err := command(t, append([]string{"bench", "kv", "--master", m.Addr, "--size", "64KB", "--duration", "50ms", "--json"}, args...)...)
		var r bench.KVResult
		if err != nil || json.Unmarshal([]byte(out), &r) != nil || r.CallsPerSecond <= 0 || r.LatencyUS.P50 <= 0 || r.Bytes != 64<<10 {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
	out, err := command(t, "bench", "kv", "--master", m.Addr, "--size", "4KB", "--duration", "50ms")
	if err != nil || !strings.HasPrefix(out, "get, 4 KiB x 1") {
		t.Errorf("%v: %s", err, out)
	}
	if status, body, err := m.Get("/get_all_keys"); err != nil || strings.TrimSpace(body) != "" {
		t.Errorf("left behind: %d %s, %v", status, body, err)
	}
	if _, err := command(t, "bench", "kv", "--op", "gett"); err == nil {
		t.Error("an unknown operation is accepted")
	}
}
