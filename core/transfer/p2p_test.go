package transfer_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/transports"
)

func TestTwoEngines(t *testing.T) {
	a, b := startEngine(t), startEngine(t)
	mem, addr := register(t, b, 1<<20+16)
	s := open(t, a, b.Name())
	d := s.Descriptor()
	if len(d.Buffers) != 1 || d.Buffers[0].Addr != addr || d.Buffers[0].Length != 1<<20+16 || d.Buffers[0].Name != b.Name() ||
		d.Name != b.Name() || d.Protocol != "tcp" || d.TCPDataHost != "127.0.0.1" || d.TCPProtoVersion != 2 || d.Agent == nil {
		t.Fatalf("descriptor %+v", d)
	}
	for _, n := range []int{0, 1, 3, 4096, 65537, 1 << 20} {
		roundTrip(t, a, s, addr, n)
		if n > 0 && !bytes.Equal(mem[:n], pattern(n, n)) {
			t.Fatalf("%d bytes are not in the target's memory", n)
		}
	}
	// Registered local memory takes the other way through the index.
	local, _ := register(t, a, 8192)
	copy(local, pattern(8192, 7))
	if err := a.Write(t.Context(), s, local[100:4196], addr+5); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mem[5:4101], pattern(8192, 7)[100:4196]) {
		t.Fatal("wrong bytes")
	}
	if err := a.Probe(t.Context(), b.Name()); err != nil {
		t.Error(err)
	}
}

func TestBatchOverSeveralPeers(t *testing.T) {
	a := startEngine(t)
	const peers, each, size = 4, 50, 1000
	var segs []*transfer.Segment
	var mems [][]byte
	var addrs []uint64
	for range peers {
		b := startEngine(t)
		mem, addr := register(t, b, each*size)
		mems, addrs = append(mems, mem), append(addrs, addr)
		segs = append(segs, open(t, a, b.Name()))
	}
	want := pattern(peers*each*size, 1)
	var reqs []transfer.Request
	for i := range peers * each {
		p, k := i%peers, uint64(i/peers) // interleaved
		reqs = append(reqs, transfer.Request{Write: true, Local: want[i*size : (i+1)*size], Segment: segs[p], Remote: addrs[p] + k*size})
	}
	batch, err := a.Submit(t.Context(), reqs)
	if err != nil {
		t.Fatal(err)
	}
	if err := batch.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range reqs {
		if s := batch.Status(i); s.State != transfer.Completed || s.Bytes != size || s.Err != nil {
			t.Fatalf("request %d: %+v", i, s)
		}
		p, k := i%peers, i/peers
		if !bytes.Equal(mems[p][k*size:(k+1)*size], reqs[i].Local) {
			t.Fatalf("request %d: wrong bytes", i)
		}
	}
}

func TestStatusOfMixedBatch(t *testing.T) {
	a, b := startEngine(t), startEngine(t)
	_, addr := register(t, b, 4096)
	s := open(t, a, b.Name())
	buf := pattern(64, 1)
	reqs := []transfer.Request{
		{Write: true, Local: buf, Segment: s, Remote: addr},
		{Write: true, Local: buf, Segment: s, Remote: addr + 4096 - 63}, // one byte too far
		{Write: true, Local: nil, Segment: s, Remote: 1},                // nothing to do
		{Local: make([]byte, 64), Segment: s, Remote: 8},
		{Local: make([]byte, 64), Segment: s, Remote: math.MaxUint64 - 10},
		{Write: true, Local: buf, Segment: s, Remote: addr + 64},
	}
	batch, err := a.Submit(t.Context(), reqs)
	if err != nil {
		t.Fatal(err)
	}
	err = batch.Wait(t.Context())
	if !errors.Is(err, transports.ErrRejected) || !strings.Contains(err.Error(), "3 of 6 requests failed; request 1") {
		t.Errorf("got %v", err)
	}
	for i, want := range []transfer.State{transfer.Completed, transfer.Failed, transfer.Completed, transfer.Failed, transfer.Failed, transfer.Completed} {
		st := batch.Status(i)
		if st.State != want || (want == transfer.Failed) != errors.Is(st.Err, transports.ErrRejected) {
			t.Errorf("request %d: %v, %v", i, st.State, st.Err)
		}
	}
	if st := batch.Status(2); st.Bytes != 0 {
		t.Errorf("empty request moved %d bytes", st.Bytes)
	}
	if err := batch.Quiet(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOwnSegment(t *testing.T) {
	a := startEngine(t)
	mem, addr := register(t, a, 1<<20)
	s := open(t, a, a.Name())
	if !s.Local() {
		t.Fatal("own name is not local")
	}
	roundTrip(t, a, s, addr, 1<<20) // more than a submitter copies by itself
	roundTrip(t, a, s, addr+3, 17)
	if err := a.Write(t.Context(), s, []byte("xyz"), addr+1<<20-2); !errors.Is(err, transports.ErrRejected) {
		t.Errorf("got %v", err)
	}
	// The same engine by another address is still proved to be us.
	_, port, _ := net.SplitHostPort(a.Name())
	alias := open(t, a, "localhost:"+port)
	if !alias.Local() {
		t.Error("alias is not local")
	}
	roundTrip(t, a, alias, addr, 100)
	// A local address that nothing is mapped at fails the request, not the process.
	gone := mapped(t, 4096)
	hole := gone[:4096:4096]
	unmap(t, gone)
	if err := a.Write(t.Context(), s, hole, addr); err == nil {
		t.Error("a write from unmapped memory succeeded")
	}
	_ = mem
}

func TestNotify(t *testing.T) {
	a, b := startEngine(t), startEngine(t)
	_, addr := register(t, b, 64)
	m := transfer.Message{Name: "né", Text: "hé 中 😀 \"q\" \\ / \n\t\x01 <&>"}
	if err := a.Notify(t.Context(), b.Name(), m); err != nil {
		t.Fatal(err)
	}
	s := open(t, a, b.Name())
	batch, err := a.SubmitWithNotify(t.Context(), []transfer.Request{{Write: true, Local: []byte("data"), Segment: s, Remote: addr}}, transfer.Message{Name: "n", Text: "done"})
	if err != nil {
		t.Fatal(err)
	}
	if err := batch.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := b.Notifies()
	if len(got) != 2 || got[0] != m || got[1] != (transfer.Message{Name: "n", Text: "done"}) {
		t.Fatalf("%q", got)
	}
	if again := b.Notifies(); len(again) != 0 {
		t.Fatalf("not drained: %q", again)
	}
	// A failed transfer is followed by no notification.
	batch, err = a.SubmitWithNotify(t.Context(), []transfer.Request{{Write: true, Local: []byte("data"), Segment: s, Remote: 8}}, transfer.Message{Name: "n", Text: "never"})
	if err != nil {
		t.Fatal(err)
	}
	if err := batch.Wait(t.Context()); err == nil {
		t.Fatal("the write succeeded")
	}
	if got := b.Notifies(); len(got) != 0 {
		t.Fatalf("%q", got)
	}
	// Above the peer's limit it is lost, and the sender knows.
	big := transfer.Message{Text: strings.Repeat("x", 1<<20)}
	batch, err = a.SubmitWithNotify(t.Context(), []transfer.Request{{Write: true, Local: []byte("data"), Segment: s, Remote: addr}}, big)
	if err != nil {
		t.Fatal(err)
	}
	if err := batch.Wait(t.Context()); !errors.Is(err, transfer.ErrNotify) || batch.Status(0).State != transfer.Completed {
		t.Fatalf("%v, %+v", err, batch.Status(0))
	}
}

func TestNotifyQueueDropsTheOldest(t *testing.T) {
	b := startEngine(t, func(o *transfer.Options) { o.NotifyQueue = 3 })
	c := &handshake.Client{}
	for i := range 5 {
		if err := c.Notify(t.Context(), b.Name(), transfer.Message{Text: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := b.WaitNotifies(t.Context())
	if err != nil || len(got) != 3 || got[0].Text != "2" || got[2].Text != "4" {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestOpenErrors(t *testing.T) {
	a := startEngine(t)
	refused := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	for _, c := range []struct {
		name string
		want error
		code int
	}{
		{"", transfer.ErrInvalid, -1},
		{"///", transfer.ErrInvalid, -1},
		{refused, handshake.ErrConnect, -102},
		{"//" + refused, handshake.ErrConnect, -102},
		{"no-such-host.invalid:15000", handshake.ErrResolve, -101},
		{"127.0.0.1:99999", transfer.ErrInvalid, -1},
	} {
		if _, err := a.Open(t.Context(), c.name); !errors.Is(err, c.want) || transfer.Code(err) != c.code {
			t.Errorf("open %q: %v (code %d)", c.name, err, transfer.Code(err))
		}
	}
	for name, want := range map[string]error{refused: handshake.ErrConnect, "no-such-host.invalid:1": handshake.ErrResolve, "": transfer.ErrInvalid} {
		if err := a.Probe(t.Context(), name); !errors.Is(err, want) {
			t.Errorf("probe %q: %v", name, err)
		}
	}
}

// A failed open is not cached: the same name works once its engine is there.
func TestOpenIsTriedAgain(t *testing.T) {
	a := startEngine(t)
	port := testenv.FreePort(t)
	name := fmt.Sprintf("127.0.0.1:%d", port)
	if _, err := a.Open(t.Context(), name); err == nil {
		t.Fatal("opened nothing")
	}
	startEngine(t, func(o *transfer.Options) { o.RPCPortMin, o.RPCPortMax = port, port+20; o.LocalName = "127.0.0.1" })
	// The engine takes any port of its range; try the ones it may have.
	testenv.Eventually(t, testDeadline, func() error {
		for p := port; p <= port+20; p++ {
			if _, err := a.Open(t.Context(), fmt.Sprintf("127.0.0.1:%d", p)); err == nil {
				return nil
			}
		}
		return errors.New("not found")
	})
}

func TestIPv6(t *testing.T) {
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		testenv.MustNotSkip(t, "IPv6 loopback: %v", err)
	}
	ln.Close()
	for _, name := range []string{"::1", "[::1]", "[::1]:17125"} {
		a := startEngine(t, func(o *transfer.Options) { o.LocalName = name })
		b := startEngine(t, func(o *transfer.Options) { o.LocalName = name })
		if !strings.HasPrefix(b.Name(), "[::1]:") || strings.HasSuffix(b.Name(), ":17125") {
			t.Fatalf("name %q", b.Name())
		}
		_, addr := register(t, b, 4096)
		s := open(t, a, b.Name())
		if d := s.Descriptor(); d.TCPDataHost != "::1" {
			t.Fatalf("data host %q", d.TCPDataHost)
		}
		roundTrip(t, a, s, addr, 4096)
		if err := a.Probe(t.Context(), b.Name()); err != nil {
			t.Error(err)
		}
	}
}

// 32 engines that start at once on one host all get ports and reach each other.
func TestManyEnginesAtOnce(t *testing.T) {
	const n = 32
	engines := make([]*transfer.Engine, n)
	var wg sync.WaitGroup
	for i := range n {
		engines[i] = newEngine(t)
		wg.Go(func() {
			if err := engines[i].Start(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if !t.Failed() {
		seen := map[string]bool{}
		for i, e := range engines {
			seen[e.Name()] = true
			_, addr := register(t, e, 64)
			roundTrip(t, engines[(i+1)%n], open(t, engines[(i+1)%n], e.Name()), addr, 64)
		}
		if len(seen) != n {
			t.Errorf("%d names", len(seen))
		}
	}
	for _, e := range engines {
		closeEngine(t, e)
	}
}

func TestStates(t *testing.T) {
	e := newEngine(t)
	if _, err := e.Open(t.Context(), "x"); !errors.Is(err, transfer.ErrState) {
		t.Errorf("open before start: %v", err)
	}
	if _, err := e.Submit(t.Context(), nil); !errors.Is(err, transfer.ErrState) {
		t.Errorf("submit before start: %v", err)
	}
	if e.Health() == nil {
		t.Error("healthy before start")
	}
	_, addr := register(t, e, 4096) // legal before start, published by it
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); !errors.Is(err, transfer.ErrState) {
		t.Errorf("second start: %v", err)
	}
	if err := e.Health(); err != nil {
		t.Error(err)
	}
	a := startEngine(t)
	s := open(t, a, e.Name())
	roundTrip(t, a, s, addr, 4096)
	if _, err := e.Submit(t.Context(), []transfer.Request{{Local: make([]byte, 1), Segment: s, Remote: addr}}); !errors.Is(err, transfer.ErrInvalid) {
		t.Errorf("a segment of another engine: %v", err)
	}
	if _, err := e.Submit(t.Context(), []transfer.Request{{Local: make([]byte, 1)}}); !errors.Is(err, transfer.ErrInvalid) {
		t.Errorf("no segment: %v", err)
	}
	batch, err := e.Submit(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := batch.Wait(t.Context()); err != nil {
		t.Errorf("empty batch: %v", err)
	}
	closeEngine(t, e)
	closeEngine(t, e) // once more is fine
	for what, err := range map[string]error{
		"register":   e.Register(t.Context(), wrap(t, mapped(t, 4096))),
		"unregister": e.Unregister(t.Context(), addr),
		"start":      e.Start(t.Context()),
		"probe":      e.Probe(t.Context(), a.Name()),
		"notify":     e.Notify(t.Context(), a.Name(), transfer.Message{}),
		"health":     e.Health(),
	} {
		if !errors.Is(err, transfer.ErrState) {
			t.Errorf("%s after close: %v", what, err)
		}
	}
	never := newEngine(t)
	closeEngine(t, never)
}

func TestNewErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*transfer.Options)
		want   string
	}{
		{"ports", func(o *transfer.Options) { o.RPCPortMin, o.RPCPortMax = 40000, 40100 }, "40000"},
		{"name", func(o *transfer.Options) { o.LocalName = "host:99999" }, `"99999"`},
		{"length", func(o *transfer.Options) { o.HandshakeMaxLength = 5 }, "handshake_max_length"},
		{"timeout", func(o *transfer.Options) { o.TransferTimeout = 0 }, "transfer_timeout"},
		{"nil transport", func(o *transfer.Options) { o.Transports = []transfer.NamedTransport{{Name: "zz"}} }, "zz"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := transfer.New(options(t, c.change))
			if !errors.Is(err, transfer.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestStartErrors(t *testing.T) {
	port := testenv.FreePort(t)
	t.Run("no room for two listeners", func(t *testing.T) {
		e := newEngine(t, func(o *transfer.Options) { o.RPCPortMin, o.RPCPortMax = port, port })
		err := e.Start(t.Context())
		if !errors.Is(err, handshake.ErrNoPort) || !strings.Contains(err.Error(), fmt.Sprintf("%d-%d", port, port)) {
			t.Fatalf("got %v", err)
		}
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatalf("the first listener was left open: %v", err)
		}
		ln.Close()
	})
	t.Run("foreign bind address", func(t *testing.T) {
		e := newEngine(t, func(o *transfer.Options) { o.BindAddress = "203.0.113.7" })
		if err := e.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "bind_address") {
			t.Fatalf("got %v", err)
		}
	})
}
