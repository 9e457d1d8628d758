package tcp

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

func TestRegistration(t *testing.T) {
	if name, err := transports.Kind.Resolve("TCP"); err != nil || name != "tcp" {
		t.Fatalf("Resolve: %q, %v", name, err)
	}
	tr, err := transports.Kind.Build(context.Background(), "tcp", module.Env{}, module.NoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(defaultConfig(), tr.(*Transport).cfg); diff != "" {
		t.Errorf("an empty section is not the default: %s", diff)
	}
	if err := tr.Close(); err != nil { // never started
		t.Error(err)
	}
}

func TestTwoInstancesShareARegistry(t *testing.T) {
	reg := prometheus.NewRegistry()
	for _, c := range []struct {
		name string
		ok   bool
	}{{"a", true}, {"b", true}, {"a", false}} {
		_, err := newTransport(module.Env{Name: c.name, Log: slog.New(slog.DiscardHandler), Metrics: reg}, defaultConfig())
		if (err == nil) != c.ok {
			t.Errorf("instance %q: %v", c.name, err)
		}
	}
	if n, err := testutil.GatherAndCount(reg, "mooncake_tcp_bytes_total"); err != nil || n != 8 {
		t.Errorf("mooncake_tcp_bytes_total has %d series (%v), want 8", n, err)
	}
}

func TestConfigValidate(t *testing.T) {
	good := defaultConfig()
	if err := good.Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	bad := defaultConfig()
	bad.Proto, bad.LanesPerPeer, bad.IdleTimeout, bad.PipelineBytes, bad.MaxQueued = "3", 17, 0, 0, -1
	err := bad.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"proto: \"3\"", "lanes_per_peer: 17", "idle_timeout: 0s", "pipeline_bytes: ", "max_queued: -1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not contain %q", err, want)
		}
	}
	if _, err := New(context.Background(), module.Env{Metrics: prometheus.NewRegistry()}, bad); err == nil {
		t.Error("New accepted it")
	}
}

func TestTarget(t *testing.T) {
	path := func(p ...transports.Path) *transports.AgentExt { return &transports.AgentExt{V: 1, Paths: p} }
	for _, c := range []struct {
		name  string
		d     transports.Descriptor
		proto string
		addr  string
		v2    bool
		err   string
	}{
		{"data host", transports.Descriptor{Protocol: "tcp", TCPDataHost: "10.0.0.2", TCPDataPort: 15001, TCPProtoVersion: 2, DialHost: "10.0.0.1"}, "auto", "10.0.0.2:15001", true, ""},
		{"legacy: the dialled host, v1", transports.Descriptor{Protocol: "tcp", TCPDataPort: 15001, TCPProtoVersion: 1, DialHost: "10.0.0.1"}, "auto", "10.0.0.1:15001", false, ""},
		{"a later version is v2", transports.Descriptor{Protocol: "tcp", TCPDataHost: "h", TCPDataPort: 1, TCPProtoVersion: 3}, "auto", "h:1", true, ""},
		{"forced v1", transports.Descriptor{Protocol: "tcp", TCPDataHost: "h", TCPDataPort: 1, TCPProtoVersion: 2}, "1", "h:1", false, ""},
		{"IPv6", transports.Descriptor{Protocol: "tcp", TCPDataHost: "::1", TCPDataPort: 15001, TCPProtoVersion: 2}, "auto", "[::1]:15001", true, ""},
		{"IPv6 in brackets", transports.Descriptor{Protocol: "tcp", TCPDataHost: "[fe80::1%eth0]", TCPDataPort: 15001, TCPProtoVersion: 2}, "auto", "[fe80::1%eth0]:15001", true, ""},
		{"several protocols", transports.Descriptor{Protocol: "rdma", Protocols: []string{"rdma", "tcp"}, TCPDataHost: "h", TCPDataPort: 5, TCPProtoVersion: 2}, "auto", "h:5", true, ""},
		{"rdma with a tcp path", transports.Descriptor{Protocol: "rdma", Agent: path(transports.Path{Type: "shm"}, transports.Path{Type: "tcp", Host: "h", Port: 7})}, "auto", "h:7", true, ""},
		{"rdma with a tcp path without host", transports.Descriptor{Protocol: "rdma", DialHost: "d", Agent: path(transports.Path{Type: "tcp", Port: 7})}, "auto", "d:7", true, ""},
		{"rdma only", transports.Descriptor{Protocol: "rdma"}, "auto", "", false, `protocol is "rdma"`},
		{"rdma with other paths", transports.Descriptor{Protocol: "rdma", Agent: path(transports.Path{Type: "shm"})}, "auto", "", false, "no tcp path"},
		{"protocol is case sensitive", transports.Descriptor{Protocol: "TCP", TCPDataHost: "h", TCPDataPort: 5}, "auto", "", false, `protocol is "TCP"`},
		{"no port", transports.Descriptor{Protocol: "tcp", TCPDataHost: "h"}, "auto", "", false, "data port is 0"},
		{"bad port", transports.Descriptor{Protocol: "tcp", TCPDataHost: "h", TCPDataPort: 70000}, "auto", "", false, "data port is 70000"},
		{"no host", transports.Descriptor{Protocol: "tcp", TCPDataPort: 5}, "auto", "", false, "no host"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := newTestTransport(t, func(cfg *Config) { cfg.Proto = c.proto })
			got, err := tr.target(&c.d)
			if c.err != "" {
				if !errors.Is(err, transports.ErrUnreachable) || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want ErrUnreachable with %q", err, c.err)
				}
				return
			}
			if err != nil || got.addr != c.addr || got.v2 != c.v2 {
				t.Errorf("got %+v, %v; want %s v2=%v", got, err, c.addr, c.v2)
			}
		})
	}
}

func TestDescribeInForeignDocument(t *testing.T) {
	tr := newTestTransport(t, nil)
	n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
	var d transports.Descriptor
	tr.Describe(&d)
	if d.Protocol != "tcp" || d.TCPDataHost != "127.0.0.1" || d.TCPDataPort != tr.srv.port() || d.TCPProtoVersion != 2 || d.Agent != nil {
		t.Errorf("own document: %+v", d)
	}
	d = transports.Descriptor{Protocol: "rdma", Agent: &transports.AgentExt{V: 1, Paths: []transports.Path{{Type: "shm"}}}}
	tr.Describe(&d)
	tr.Describe(&d)
	want := transports.Descriptor{Protocol: "rdma", Agent: &transports.AgentExt{V: 1, Paths: []transports.Path{
		{Type: "shm"}, {Type: "tcp", Host: "127.0.0.1", Port: tr.srv.port()}}}}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Errorf("rdma document: %s", diff)
	}
	d = transports.Descriptor{Protocol: "rdma"}
	tr.Describe(&d)
	if d.Agent == nil || d.Agent.Instance != n.Identity().Instance || tr.Reach(&d) != nil {
		t.Errorf("rdma document without extension: %+v", d)
	}
}

// scarce is a host whose listener runs out of file descriptors on demand.
type scarce struct {
	*transporttest.Host
	net.Listener
	fails atomic.Int32
}

func (s *scarce) Listen(ctx context.Context, ports units.PortRange) (ln net.Listener, err error) {
	s.Listener, err = s.Host.Listen(ctx, ports)
	return s, err
}

func (s *scarce) Accept() (net.Conn, error) {
	if s.fails.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return s.Listener.Accept()
}

// TestOutOfFileDescriptors: the server goes on accepting, and closes an idle connection to get there.
func TestOutOfFileDescriptors(t *testing.T) {
	h := &scarce{Host: transporttest.NewFabric().NewHost()}
	tr := newTestTransport(t, func(c *Config) { c.Acceptors = 1 })
	if err := tr.Start(context.Background(), h); err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	r := transporttest.NewRegion(t, 4096, transports.ReadWrite)
	if _, err := tr.Register(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	h.Add(r)
	use := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", h.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(20 * time.Second))
		c.Write(headerBytes(opRead|flagV2, r.Addr(), 4))
		mustAnswer(t, c, append(statusBytes(statusOK), 0, 0, 0, 0))
		return c
	}
	idle := use()
	waitUntil(t, func() string {
		tr.srv.mu.Lock()
		defer tr.srv.mu.Unlock()
		for c := range tr.srv.conns {
			if c.busy.Load() {
				return "still busy"
			}
		}
		return ""
	})
	h.fails.Store(1) // for the call after the one that waits already
	use()
	mustEnd(t, idle)
	use()
	if v := testutil.ToFloat64(tr.m.evicted); v != 1 {
		t.Errorf("connections_evicted_total = %v", v)
	}
}

func TestConnectionLimitLeavesAReserve(t *testing.T) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Fatal(err)
	}
	if n := connectionLimit(); n < 1 || uint64(n) >= l.Cur {
		t.Errorf("limit %d with %d open files allowed", n, l.Cur)
	}
}

// TestLogLimit: a flood of refused requests is a few lines, and none shows payload.
func TestLogLimit(t *testing.T) {
	var out bytes.Buffer
	l := newLogLimit(slog.New(slog.NewTextHandler(&out, nil)))
	for i := range 1000 {
		l.warn("request refused", "addr", hexAddr(0xabc), "i", i)
	}
	l.warn("other")
	if n := strings.Count(out.String(), "\n"); n < 2 || n > 5 {
		t.Errorf("%d lines: %s", n, out.String())
	}
	if !strings.Contains(out.String(), "addr=0xabc") {
		t.Errorf("no address in %s", out.String())
	}
}

func TestOverlappingRegistration(t *testing.T) {
	tr := newTestTransport(t, nil)
	mem := transporttest.NewRegion(t, 64<<10, transports.ReadWrite)
	reg := func(off, n int) (transports.Registration, error) {
		return tr.Register(context.Background(), slice{placed{mem, 1 << 20}, off, n})
	}
	first, err := reg(8192, 8192)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ off, n int }{{8192, 8192}, {0, 8193}, {16383, 1}, {10000, 10}, {0, 64 << 10}} {
		if _, err := reg(c.off, c.n); err == nil {
			t.Errorf("[%d, +%d) accepted", c.off, c.n)
		}
	}
	for _, c := range []struct{ off, n int }{{0, 8192}, {16384, 100}} {
		if _, err := reg(c.off, c.n); err != nil {
			t.Errorf("touching [%d, +%d): %v", c.off, c.n, err)
		}
	}
	for range 2 {
		if err := first.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	if _, err := reg(8192, 8192); err != nil {
		t.Errorf("after Close: %v", err)
	}
}
