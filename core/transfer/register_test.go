package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/transports"
)

const ramA, rpcA = "mooncake/ram/node-A", "mooncake/rpc_meta/node-A"

// pieces cuts fresh memory into n regions of size bytes, side by side.
func pieces(t testing.TB, n, size int) []transports.Region {
	t.Helper()
	mem := mapped(t, n*size)
	rs := make([]transports.Region, n)
	for i := range rs {
		rs[i] = wrap(t, mem[i*size:(i+1)*size])
	}
	return rs
}

func TestRegisterErrors(t *testing.T) {
	p := newPlain(t)
	e := startEngine(t, named("node-A", p))
	rs := pieces(t, 4, 4096)
	if err := e.RegisterBatch(t.Context(), rs[1:3]); err != nil {
		t.Fatal(err)
	}
	puts := p.count("PUT " + ramA)
	for _, c := range []struct {
		name string
		rs   []transports.Region
		want error
		code int
	}{
		{"same again", rs[1:2], transfer.ErrOverlap, -7},
		{"overlap inside the batch", []transports.Region{rs[0], rs[0]}, transfer.ErrOverlap, -7},
		{"one of many overlaps", []transports.Region{rs[0], rs[3], rs[2]}, transfer.ErrOverlap, -7},
		{"nil", []transports.Region{nil}, transfer.ErrInvalid, -1},
		{"address 0", []transports.Region{odd{addr: 0, mem: make([]byte, 8)}}, transfer.ErrInvalid, -1},
		{"length 0", []transports.Region{odd{addr: 8}}, transfer.ErrInvalid, -1},
		{"wraps", []transports.Region{odd{addr: ^uint64(0) - 3, mem: make([]byte, 8)}}, transfer.ErrInvalid, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := e.RegisterBatch(t.Context(), c.rs)
			if !errors.Is(err, c.want) || transfer.Code(err) != c.code {
				t.Fatalf("got %v (code %d)", err, transfer.Code(err))
			}
		})
	}
	if n := p.count("PUT " + ramA); n != puts {
		t.Errorf("%d publications of refused batches", n-puts)
	}
	// Everything was rolled back, and touching regions are fine.
	if err := e.RegisterBatch(t.Context(), []transports.Region{rs[0], rs[3]}); err != nil {
		t.Fatal(err)
	}
	if n := len(e.Descriptor().Buffers); n != 4 {
		t.Fatalf("%d buffers", n)
	}
	for _, addrs := range [][]uint64{{rs[0].Addr() + 1}, {7}, {rs[0].Addr(), 7}, {rs[0].Addr(), rs[0].Addr()}} {
		if err := e.UnregisterBatch(t.Context(), addrs); !errors.Is(err, transfer.ErrNotRegistered) || transfer.Code(err) != -3 {
			t.Errorf("unregister %x: %v", addrs, err)
		}
	}
	if n := len(e.Descriptor().Buffers); n != 4 {
		t.Fatalf("%d buffers after refused unregistrations", n)
	}
	if err := e.UnregisterBatch(t.Context(), []uint64{rs[2].Addr(), rs[0].Addr()}); err != nil {
		t.Fatal(err)
	}
	d := e.Descriptor()
	if len(d.Buffers) != 2 || d.Buffers[0].Addr != rs[1].Addr() || d.Buffers[1].Addr != rs[3].Addr() {
		t.Fatalf("%+v", d.Buffers)
	}
	if err := e.RegisterBatch(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// odd is a region with an address of its own.
type odd struct {
	addr uint64
	mem  []byte
}

func (o odd) Addr() uint64              { return o.addr }
func (o odd) Len() uint64               { return uint64(len(o.mem)) }
func (o odd) Location() string          { return "*" }
func (o odd) Access() transports.Access { return transports.ReadWrite }
func (o odd) Bytes() []byte             { return o.mem }
func (o odd) FD() (int, int64, bool)    { return -1, 0, false }

// Addresses need not be real ones, and peers use them all the same.
func TestVirtualAddress(t *testing.T) {
	a, b := startEngine(t), startEngine(t)
	o := odd{addr: 0x100000000000, mem: mapped(t, 4096)}
	if err := b.Register(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	roundTrip(t, a, open(t, a, b.Name()), o.addr+1, 4095)
	// As local memory it is found, or used unregistered, by where it really is.
	s := open(t, a, b.Name())
	if err := b.Write(t.Context(), open(t, b, a.Name()), o.mem[:10], 8); !errors.Is(err, transports.ErrRejected) {
		t.Errorf("got %v", err)
	}
	_ = s
}

func TestRegister20000InOnePublication(t *testing.T) {
	p := newPlain(t)
	e := startEngine(t, named("node-A", p))
	rs := pieces(t, 20000, 4096)
	began := time.Now()
	if err := e.RegisterBatch(t.Context(), rs); err != nil {
		t.Fatal(err)
	}
	t.Logf("registered 20000 regions in %v", time.Since(began))
	if n := p.count("PUT " + ramA); n != 2 { // the first one was empty
		t.Errorf("%d publications", n)
	}
	a := startEngine(t, named("node-B", p))
	s := open(t, a, "node-A")
	if n := len(s.Descriptor().Buffers); n != 20000 {
		t.Fatalf("%d buffers", n)
	}
	for _, i := range []int{0, 9999, 19999} {
		roundTrip(t, a, s, rs[i].Addr(), 4096)
	}
	addrs := make([]uint64, len(rs))
	for i, r := range rs {
		addrs[i] = r.Addr()
	}
	if err := e.UnregisterBatch(t.Context(), addrs); err != nil {
		t.Fatal(err)
	}
	if n := p.count("PUT " + ramA); n != 3 {
		t.Errorf("%d publications", n)
	}
}

// Registrations that arrive while one is published share the next one.
func TestConcurrentRegistrationsCoalesce(t *testing.T) {
	p := newPlain(t)
	e := startEngine(t, named("node-A", p))
	hold, held := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	p.setFail(func(op, key string, _ []byte) error {
		if op == "PUT" && first.CompareAndSwap(false, true) {
			close(held)
			<-hold
		}
		return nil
	})
	rs := pieces(t, 500, 4096)
	before := p.count("PUT " + ramA)
	var wg sync.WaitGroup
	var began atomic.Int64
	for _, r := range rs {
		wg.Go(func() {
			began.Add(1)
			if err := e.Register(t.Context(), r); err != nil {
				t.Error(err)
			}
		})
	}
	<-held
	testenv.Eventually(t, testDeadline, testenv.True("not all began", func() bool { return began.Load() == 500 }))
	close(hold)
	wg.Wait()
	if n := p.count("PUT "+ramA) - before; n > 50 {
		t.Errorf("%d publications for 500 concurrent registrations", n)
	}
	if n := len(e.Descriptor().Buffers); n != 500 || strings.Count(p.value(t, ramA), `"addr"`) != 500 {
		t.Errorf("%d buffers, %d published", n, strings.Count(p.value(t, ramA), `"addr"`))
	}
}

// One registration that the service refuses does not spoil others that share its publication.
func TestTooLargeRegistrationFailsAlone(t *testing.T) {
	p := newPlain(t)
	e := startEngine(t, named("node-A", p))
	hold, held := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	p.setFail(func(op, key string, v []byte) error {
		if op != "PUT" {
			return nil
		}
		if first.CompareAndSwap(false, true) {
			close(held)
			<-hold
		}
		if len(v) > 10_000 {
			return fmt.Errorf("plain: %d bytes, the limit is 10000 (--max-request-bytes): %w", len(v), metadata.ErrTooLarge)
		}
		return nil
	})
	rs := pieces(t, 300, 4096)
	errs := make([]error, 3)
	var wg sync.WaitGroup
	wg.Go(func() { errs[0] = e.Register(t.Context(), rs[0]) })
	<-held
	var began atomic.Int32
	wg.Go(func() { began.Add(1); errs[1] = e.RegisterBatch(t.Context(), rs[1:298]) })
	wg.Go(func() { began.Add(1); errs[2] = e.RegisterBatch(t.Context(), rs[298:]) })
	testenv.Eventually(t, testDeadline, testenv.True("not all began", func() bool { return began.Load() == 2 }))
	close(hold)
	wg.Wait()
	if errs[0] != nil || errs[2] != nil {
		t.Errorf("the others: %v, %v", errs[0], errs[2])
	}
	if !errors.Is(errs[1], metadata.ErrTooLarge) || !strings.Contains(errs[1].Error(), "--max-request-bytes") || transfer.Code(errs[1]) != -200 {
		t.Errorf("got %v", errs[1])
	}
	if n := len(e.Descriptor().Buffers); n != 3 || strings.Count(p.value(t, ramA), `"addr"`) != 3 {
		t.Errorf("%d buffers, %d published", n, strings.Count(p.value(t, ramA), `"addr"`))
	}
	if err := e.RegisterBatch(t.Context(), rs[1:20]); err != nil {
		t.Errorf("after the roll-back: %v", err)
	}
}

// While the service is down, registrations fail and are rolled back, transfers go on; when it is back, the
// entries agree with what is registered.
func TestServiceDownInMidRun(t *testing.T) {
	p := newPlain(t)
	a, e := startEngine(t, named("node-B", p)), startEngine(t, named("node-A", p))
	rs := pieces(t, 4, 4096)
	if err := e.RegisterBatch(t.Context(), rs[:2]); err != nil {
		t.Fatal(err)
	}
	s := open(t, a, "node-A")
	roundTrip(t, a, s, rs[0].Addr(), 4096)
	p.setFail(unavailable)
	if err := e.Register(t.Context(), rs[2]); !errors.Is(err, metadata.ErrUnavailable) || transfer.Code(err) != -200 {
		t.Fatalf("got %v", err)
	}
	if err := e.Unregister(t.Context(), rs[1].Addr()); !errors.Is(err, metadata.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	if e.Health() == nil {
		t.Error("healthy without a metadata service")
	}
	roundTrip(t, a, s, rs[0].Addr(), 4096)
	// The unregistered region is gone for peers, whatever the old document says.
	if err := a.Write(t.Context(), s, []byte("x"), rs[1].Addr()); !errors.Is(err, transports.ErrRejected) {
		t.Errorf("write to an unregistered region: %v", err)
	}
	if d := e.Descriptor(); len(d.Buffers) != 1 || d.Buffers[0].Addr != rs[0].Addr() {
		t.Errorf("%+v", d.Buffers)
	}
	p.setFail(nil)
	testenv.Eventually(t, testDeadline, func() error {
		if n := strings.Count(p.value(t, ramA), `"addr"`); n != 1 {
			return fmt.Errorf("%d buffers are published", n)
		}
		return e.Health()
	})
	if err := e.RegisterBatch(t.Context(), rs[1:]); err != nil {
		t.Errorf("after the return of the service: %v", err)
	}
}

// The answer to a write was lost, but it happened: the entry is corrected.
func TestUnansweredPublicationIsCorrected(t *testing.T) {
	p := newPlain(t)
	e := startEngine(t, named("node-A", p))
	var once atomic.Bool
	p.setFail(func(op, key string, v []byte) error {
		if op == "PUT" && once.CompareAndSwap(false, true) {
			p.b.Put(context.Background(), key, v)
			return fmt.Errorf("plain: timeout: %w", metadata.ErrUnavailable)
		}
		return nil
	})
	if err := e.Register(t.Context(), pieces(t, 1, 4096)[0]); !errors.Is(err, metadata.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	testenv.Eventually(t, testDeadline, func() error {
		if v := p.value(t, ramA); strings.Contains(v, `"addr"`) {
			return fmt.Errorf("the rolled back region is published: %s", v)
		}
		return nil
	})
}

func TestServiceDownAtStart(t *testing.T) {
	t.Run("comes in time", func(t *testing.T) {
		p := newPlain(t)
		var calls atomic.Int32
		p.setFail(func(op, key string, v []byte) error {
			if calls.Add(1) <= 3 {
				return unavailable(op, key, v)
			}
			return nil
		})
		e := startEngine(t, named("node-A", p))
		if err := e.Health(); err != nil || p.value(t, ramA) == "" {
			t.Errorf("%v", err)
		}
	})
	t.Run("does not come", func(t *testing.T) {
		p := newPlain(t)
		p.setFail(unavailable)
		e := newEngine(t, named("node-A", p), func(o *transfer.Options) { o.MetadataStartTimeout = 300 * time.Millisecond })
		err := e.Start(t.Context())
		if !errors.Is(err, metadata.ErrUnavailable) || !strings.Contains(err.Error(), "metadata_start_timeout") {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("context ends", func(t *testing.T) {
		p := newPlain(t)
		p.setFail(unavailable)
		e := newEngine(t, named("node-A", p))
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := e.Start(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("refuses", func(t *testing.T) {
		p := newPlain(t)
		p.setFail(func(string, string, []byte) error {
			return fmt.Errorf("plain: wrong password: %w", metadata.ErrRefused)
		})
		e := newEngine(t, named("node-A", p))
		began := time.Now()
		if err := e.Start(t.Context()); !errors.Is(err, metadata.ErrRefused) || time.Since(began) > 5*time.Second {
			t.Fatalf("got %v", err)
		}
	})
}

// In P2P mode nothing is published, but a document that peers cannot fetch is announced at registration.
func TestDocumentSizeWarning(t *testing.T) {
	l := &logLines{}
	e := startEngine(t, func(o *transfer.Options) { o.Log = newLog(l) })
	rs := pieces(t, 20000, 4096)
	if err := e.RegisterBatch(t.Context(), rs[:1000]); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(l.String(), "MC_HANDSHAKE_MAX_LENGTH") {
		t.Fatal("warned too early")
	}
	if err := e.RegisterBatch(t.Context(), rs[1000:]); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(l.String(), "MC_HANDSHAKE_MAX_LENGTH") || strings.Count(l.String(), "level=WARN") != 1 {
		t.Fatalf("log: %s", l)
	}
	// A default peer cannot fetch it, one with a higher limit can; and our own long document does not
	// keep us from asking others.
	small, big := startEngine(t), startEngine(t, func(o *transfer.Options) { o.HandshakeMaxLength = 8 << 20 })
	if _, err := small.Open(t.Context(), e.Name()); err == nil || !strings.Contains(err.Error(), "MC_HANDSHAKE_MAX_LENGTH") {
		t.Errorf("got %v", err)
	}
	roundTrip(t, big, open(t, big, e.Name()), rs[19999].Addr(), 4096)
	_, addr := register(t, small, 64)
	roundTrip(t, e, open(t, e, small.Name()), addr, 64)
}

// Unregister returns when nothing touches the memory any more.
func TestUnregisterWaits(t *testing.T) {
	f := newFake()
	e := startEngine(t, func(o *transfer.Options) { o.Transports = f.named() })
	mem, addr := register(t, e, 4096)
	s := open(t, e, f.target(t))
	f.hang()
	b, err := e.Submit(t.Context(), []transfer.Request{{Local: mem, Segment: s, Remote: 1}})
	if err != nil {
		t.Fatal(err)
	}
	f.waitOps(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := e.Unregister(ctx, addr); !errors.Is(err, transfer.ErrUnquiet) {
		t.Fatalf("got %v", err)
	}
	if d := e.Descriptor(); len(d.Buffers) != 0 {
		t.Errorf("still published: %+v", d.Buffers)
	}
	if err := e.Register(t.Context(), wrap(t, mem)); !errors.Is(err, transfer.ErrOverlap) {
		t.Errorf("registering a busy range: %v", err)
	}
	f.release(nil)
	if err := b.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.Unregister(t.Context(), addr); err != nil {
		t.Fatalf("calling again: %v", err)
	}
	if err := e.Register(t.Context(), wrap(t, mem)); err != nil {
		t.Fatal(err)
	}
}
