package transfer_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata/memory"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/tcp"
)

func withTCP(t testing.TB, f tcpSection) func(*transfer.Options) {
	return func(o *transfer.Options) {
		o.Transports = []transfer.NamedTransport{{Name: "tcp", Transport: newTCP(t, f)}}
	}
}

// dataPort is a listener of a peer's data plane that treats connections as serve says.
func dataPort(t *testing.T, serve func(net.Conn)) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() { defer c.Close(); serve(c) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return ln.Addr().(*net.TCPAddr).Port
}

func TestBadDataPlanes(t *testing.T) {
	for _, c := range []struct {
		name  string
		serve func(net.Conn)
		want  error
	}{
		{"closes at once", func(net.Conn) {}, transports.ErrInterrupted},
		{"closes after the header", func(c net.Conn) { io.ReadFull(c, make([]byte, 24)) }, transports.ErrInterrupted},
		{"never answers", func(c net.Conn) { io.Copy(io.Discard, c) }, transports.ErrTimeout},
		{"stalls in the payload", func(c net.Conn) {
			io.ReadFull(c, make([]byte, 24))
			c.Write([]byte("\x00\x00\x00\x00VTCM" + "half"))
			io.Copy(io.Discard, c)
		}, transports.ErrTimeout},
		{"speaks something else", func(c net.Conn) {
			io.ReadFull(c, make([]byte, 24))
			c.Write([]byte("HTTP/1.1 400 Bad Request\r\n"))
		}, transports.ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := startEngine(t, withTCP(t, func(c *tcp.Config) {
				c.ProgressTimeout, c.StatusTimeout = 200*time.Millisecond, 200*time.Millisecond
			}))
			s := open(t, e, newTarget(t, tcpDoc(dataPort(t, c.serve), "")).Name)
			began := time.Now()
			err := e.Read(t.Context(), s, make([]byte, 1000), 8)
			if !errors.Is(err, c.want) || time.Since(began) > 10*time.Second {
				t.Fatalf("%v after %v", err, time.Since(began))
			}
		})
	}
}

// A peer in a black hole costs a healthy one nothing.
func TestBlackholeNextToHealthyPeer(t *testing.T) {
	_, holePort, _, err := handshake.SplitName(testenv.Blackhole(t))
	if err != nil {
		t.Fatal(err)
	}
	e := startEngine(t, withTCP(t, func(c *tcp.Config) { c.ConnectTimeout = 1500 * time.Millisecond }))
	hole := open(t, e, newTarget(t, tcpDoc(holePort, "")).Name)
	peer := startEngine(t)
	_, addr := register(t, peer, 1<<20)
	healthy := open(t, e, peer.Name())
	roundTrip(t, e, healthy, addr, 4096)

	began := time.Now()
	var mixed []transfer.Request
	for i := range 200 {
		mixed = append(mixed, transfer.Request{Local: make([]byte, 64), Segment: []*transfer.Segment{hole, healthy}[i%2], Remote: addr})
	}
	b, err := e.Submit(t.Context(), mixed)
	if err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	for range 200 {
		at := time.Now()
		if err := e.Read(t.Context(), healthy, make([]byte, 64), addr); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(at))
	}
	if d := time.Since(began); d > 1200*time.Millisecond {
		t.Skipf("skipped: this machine is too busy to tell: 200 small reads took %v", d)
	}
	slices.Sort(took)
	t.Logf("reads of the healthy peer meanwhile: median %v, slowest %v", took[100], took[199])
	for i := range mixed { // none of the healthy half waits for the other
		if i%2 == 1 && b.Status(i).State != transfer.Completed {
			t.Errorf("request %d: %v", i, b.Status(i).State)
		}
	}
	<-b.Done()
	for i := range mixed {
		st := b.Status(i)
		if i%2 == 0 && (st.State != transfer.Failed || !errors.Is(st.Err, transports.ErrUnreachable)) {
			t.Fatalf("request %d: %+v", i, st)
		}
	}
}

func Test5000Outstanding(t *testing.T) {
	a, b := startEngine(t), startEngine(t)
	const n, size = 5000, 4096
	mem, addr := register(t, b, n*size)
	s := open(t, a, b.Name())
	want := pattern(n*size, 3)
	reqs := make([]transfer.Request, n)
	for i := range reqs {
		reqs[i] = transfer.Request{Write: true, Local: want[i*size : (i+1)*size], Segment: s, Remote: addr + uint64(i*size)}
	}
	if err := a.Transfer(t.Context(), reqs); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mem, want) {
		t.Fatal("bytes differ")
	}
	got := make([]byte, n*size)
	for i := range reqs {
		reqs[i].Write, reqs[i].Local = false, got[i*size:(i+1)*size]
	}
	if err := a.Transfer(t.Context(), reqs); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatal("bytes differ")
	}
}

// The peer restarts under its name, with other ports and other memory; a handle from before finds it.
func TestPeerRestarts(t *testing.T) {
	store := memory.NewStore()
	b := store.Open()
	t.Cleanup(func() { b.Close() })
	a := startEngine(t, named("node-B", b))
	first := newEngine(t, named("node-A", b))
	if err := first.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, addr := register(t, first, 4096)
	s := open(t, a, "node-A")
	roundTrip(t, a, s, addr, 4096)
	if err := a.Notify(t.Context(), "node-A", transfer.Message{Text: "1"}); err != nil {
		t.Fatal(err)
	}
	closeEngine(t, first)
	if err := a.Read(t.Context(), s, make([]byte, 16), addr); !errors.Is(err, transfer.ErrNoSegment) {
		t.Errorf("while it is gone: %v", err)
	}
	second := startEngine(t, named("node-A", b))
	_, addr = register(t, second, 4096)
	roundTrip(t, a, s, addr, 4096)
	if d := s.Descriptor(); d.Agent.Instance != second.Identity().Instance {
		t.Error("the handle has the old descriptor")
	}
	// rpc_meta was cached, and is read again.
	if err := a.Notify(t.Context(), "node-A", transfer.Message{Text: "2"}); err != nil {
		t.Error(err)
	}
	if err := a.Probe(t.Context(), "node-A"); err != nil {
		t.Error(err)
	}
	if m := second.Notifies(); len(m) != 1 || m[0].Text != "2" {
		t.Errorf("%q", m)
	}
}

// The target gives up a region and registers another one: readers with an old document are refused, and
// find the new one.
func TestTargetReregisters(t *testing.T) {
	a, b := startEngine(t), startEngine(t)
	mem, addr := register(t, b, 4096)
	s := open(t, a, b.Name())
	roundTrip(t, a, s, addr, 100)
	if err := b.Unregister(t.Context(), addr); err != nil {
		t.Fatal(err)
	}
	if err := a.Read(t.Context(), s, make([]byte, 100), addr); !errors.Is(err, transports.ErrRejected) {
		t.Fatalf("got %v", err)
	}
	if d := s.Descriptor(); len(d.Buffers) != 0 {
		t.Errorf("the descriptor was not refreshed: %+v", d.Buffers)
	}
	if err := b.Register(t.Context(), wrap(t, mem)); err != nil {
		t.Fatal(err)
	}
	roundTrip(t, a, s, addr, 100)
}

// Documents of engines before 0.3.13 name no data host: P2P uses the dialled host, storage rpc_meta's.
func TestDocumentsOfOldEngines(t *testing.T) {
	peer := startEngine(t)
	_, addr := register(t, peer, 4096)
	d := peer.Descriptor()
	d.TCPDataHost, d.Agent, d.Name = "", nil, "whatever"
	doc := string(d.Encode(time.Now()))

	a := startEngine(t)
	g := newTarget(t, doc)
	roundTrip(t, a, open(t, a, g.Name), addr, 4096)

	p := newPlain(t)
	_, port, _, _ := handshake.SplitName(g.Name)
	e := startEngine(t, named("node-A", p))
	p.b.Put(t.Context(), "mooncake/ram/old", []byte(doc))
	if _, err := e.Open(t.Context(), "old"); !errors.Is(err, transfer.ErrNoRPCMeta) {
		t.Errorf("without rpc_meta: %v", err)
	}
	p.b.Put(t.Context(), "mooncake/rpc_meta/old", fmt.Appendf(nil, `{"ip_or_host_name":"127.0.0.1","rpc_port":%d}`+"\n", port))
	roundTrip(t, e, open(t, e, "old"), addr, 4096)
	if err := e.Probe(t.Context(), "old"); err != nil {
		t.Error(err)
	}
	p.b.Put(t.Context(), "mooncake/rpc_meta/bad", []byte(`{"ip_or_host_name":"127.0.0.1","rpc_port":"1"}`))
	if err := e.Probe(t.Context(), "bad"); !errors.Is(err, transfer.ErrNoRPCMeta) || !strings.Contains(err.Error(), "mooncake/rpc_meta/bad") {
		t.Errorf("got %v", err)
	}
}

// What the daemon says to the engine's own requests is what the wheel's says; with a metadata service too,
// ours hands out its document, where the wheel's answers null.
func TestDaemonOfAnEngine(t *testing.T) {
	e := startEngine(t, named("node-A", newPlain(t)))
	p := startEngine(t)
	_, port, _, _ := handshake.SplitName(p.Name())
	c := &handshake.Client{}
	for _, own := range []string{"{}", "null", "[]", "1", string(e.Descriptor().Encode(time.Now()))} {
		reply, err := c.Metadata(t.Context(), p.Name(), []byte(own))
		if err != nil {
			t.Fatal(err)
		}
		d, err := transports.ParseDescriptor(reply)
		if err != nil || d.Name != p.Name() {
			t.Errorf("%s: %s, %v", own, reply, err)
		}
	}
	reply, err := c.Call(t.Context(), p.Name(), handshake.TypeConnection, []byte(`{"local_nic_path":"a@b","qp_num":[1]}`))
	if want := `{"local_gid":"","local_lid":0,"local_nic_path":"","payload":"","peer_nic_path":"","qp_num":[],"reply_msg":""}` + "\n"; err != nil || string(reply) != want {
		t.Errorf("%s, %v", reply, err)
	}
	if err := handshake.Probe(t.Context(), "127.0.0.1", port); err != nil {
		t.Error(err)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	a := startEngine(t, func(o *transfer.Options) { o.Metrics = reg })
	b := startEngine(t)
	_, addr := register(t, b, 4096)
	register(t, a, 8192)
	s := open(t, a, b.Name())
	roundTrip(t, a, s, addr, 1000)
	if err := a.Read(t.Context(), s, make([]byte, 10), 8); err == nil {
		t.Fatal("read of nothing")
	}
	if err := a.Notify(t.Context(), b.Name(), transfer.Message{}); err != nil {
		t.Fatal(err)
	}
	want := `
# HELP mooncake_transfer_bytes_total Bytes moved by this engine as initiator.
# TYPE mooncake_transfer_bytes_total counter
mooncake_transfer_bytes_total{op="read"} 1000
mooncake_transfer_bytes_total{op="write"} 1000
# HELP mooncake_transfer_failures_total Requests that did not complete, by reason.
# TYPE mooncake_transfer_failures_total counter
mooncake_transfer_failures_total{reason="rejected"} 1
# HELP mooncake_transfer_inflight_bytes Bytes handed to transports and not yet completed.
# TYPE mooncake_transfer_inflight_bytes gauge
mooncake_transfer_inflight_bytes 0
# HELP mooncake_transfer_notifies_total Notifications: received, sent, failed to send, dropped from the full queue.
# TYPE mooncake_transfer_notifies_total counter
mooncake_transfer_notifies_total{event="sent"} 1
# HELP mooncake_transfer_registered_bytes Bytes of all registered regions.
# TYPE mooncake_transfer_registered_bytes gauge
mooncake_transfer_registered_bytes 8192
# HELP mooncake_transfer_segments Remote segments opened.
# TYPE mooncake_transfer_segments gauge
mooncake_transfer_segments 1
# HELP mooncake_transfer_tasks_total Finished requests of this engine as initiator.
# TYPE mooncake_transfer_tasks_total counter
mooncake_transfer_tasks_total{op="read",result="completed"} 1
mooncake_transfer_tasks_total{op="read",result="failed"} 1
mooncake_transfer_tasks_total{op="write",result="completed"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "mooncake_transfer_bytes_total", "mooncake_transfer_failures_total",
		"mooncake_transfer_inflight_bytes", "mooncake_transfer_notifies_total", "mooncake_transfer_registered_bytes",
		"mooncake_transfer_segments", "mooncake_transfer_tasks_total"); err != nil {
		t.Error(err)
	}
	// Every collector is named in the package comment, and a second engine on one registry is refused.
	if _, err := transfer.New(options(t, func(o *transfer.Options) { o.Metrics = reg })); err == nil {
		t.Error("one registry took two engines")
	}
}

func TestPeriodicRefresh(t *testing.T) {
	f := newFake()
	e := startEngine(t, func(o *transfer.Options) { o.Transports, o.DescriptorRefresh = f.named(), 5*time.Millisecond })
	g := newTarget(t, tcpDoc(1, ""))
	s := open(t, e, g.Name)
	g.set(tcpDoc(7, ""))
	testenv.Eventually(t, testDeadline, testenv.True("not refreshed", func() bool { return s.Descriptor().TCPDataPort == 7 }))
}

func TestDisabledCache(t *testing.T) {
	f := newFake()
	e := startEngine(t, func(o *transfer.Options) { o.Transports, o.DisableDescriptorCache = f.named(), true })
	g := newTarget(t, tcpDoc(1, ""))
	open(t, e, g.Name)
	g.set(tcpDoc(7, ""))
	if s := open(t, e, g.Name); s.Descriptor().TCPDataPort != 7 {
		t.Error("not read again")
	}
	g.stop()
	if _, err := e.Open(t.Context(), g.Name); err == nil {
		t.Error("opened a dead peer")
	}
}
