package interop

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/tcp"
)

// Our engine writes to and reads from a wheel, over every service; notifications go both ways.
func TestEngineToWheel(t *testing.T) {
	for _, m := range services {
		t.Run(m.name, func(t *testing.T) {
			meta := m.start(t)
			w := startWheel(t, nameFor(meta, "wheel-a"), meta, memSize)
			e := startEngine(t, nameFor(meta, "engine-b"), meta, memSize, settings{})
			exchange(t, e, w)
			notifyBothWays(t, e, w)
			if err := e.move(w.name(), true, op{0, w.base() + 1<<46, 64}); !errors.Is(err, transports.ErrRejected) {
				t.Errorf("write outside of every buffer: %v, want ErrRejected", err)
			}
			w.Stop(soon)
		})
	}
}

// A wheel writes to and reads from our engine as a library.
func TestWheelToEngine(t *testing.T) {
	e := startEngine(t, "127.0.0.1", p2p, memSize, settings{})
	w := startWheel(t, "127.0.0.1", p2p, memSize)
	exchange(t, w, e)
	notifyBothWays(t, e, w)
}

func notifyBothWays(t *testing.T, e *engine, w *wheel) {
	t.Helper()
	ctx, cancel := e.within(soon)
	defer cancel()
	if err := e.Probe(ctx, w.name()); err != nil {
		t.Errorf("probe of the wheel: %v", err)
	}
	if rc := w.call("probe", args{"target": e.name()}).RC; rc != 0 {
		t.Errorf("probe by the wheel: %d", rc)
	}
	if err := w.notify(e.name(), e.base(), "wheel", "ünïcode \x01 and \"quotes\""); err != nil {
		t.Error(err)
	}
	if got := e.take(); len(got) != 1 || got[0] != (transfer.Message{Name: "wheel", Text: "ünïcode \x01 and \"quotes\""}) {
		t.Errorf("got %q", got)
	}
	if err := e.Notify(ctx, w.name(), transfer.Message{Name: "engine", Text: "größer > 你好 🙂"}); err != nil {
		t.Error(err)
	}
	b, err := e.SubmitWithNotify(ctx, e.requests(w.name(), true, []op{{0, w.base(), 100}}), transfer.Message{Name: "engine", Text: "done"})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(ctx); err != nil {
		t.Error(err)
	}
	want := [][2]string{{"engine", "größer > 你好 🙂"}, {"engine", "done"}}
	if got := w.call("notifies", nil).Notifies; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the wheel got %q, want %q", got, want)
	}
}

// The ways in which our initiator can be set, each against a wheel; and wheels that are set.
func TestEngineToWheelVariants(t *testing.T) {
	for _, v := range []struct {
		name string
		tcp  func(*tcp.Config)
		env  []string
	}{
		{"v1", func(c *tcp.Config) { c.Proto = "1" }, nil},
		{"pool off", func(c *tcp.Config) { c.ConnectionPool = false }, nil},
		{"one lane", func(c *tcp.Config) { c.LanesPerPeer = 1 }, nil},
		{"the wheel sends small slices", nil, []string{"MC_TCP_SLICE_SIZE=4096"}},
	} {
		t.Run(v.name, func(t *testing.T) {
			w := startWheel(t, "127.0.0.1", p2p, memSize, v.env...)
			e := startEngine(t, "127.0.0.1", p2p, memSize, settings{tcp: v.tcp})
			exchange(t, e, w)
		})
	}
}

// Upstream's initiator fails beyond 2,048 requests outstanding to a peer. Ours takes 5,000.
func TestManyOutstandingRequests(t *testing.T) {
	w := startWheel(t, "127.0.0.1", p2p, memSize)
	e := startEngine(t, "127.0.0.1", p2p, memSize, settings{})
	const count, n = 5000, 4096
	ops := make([]op, count)
	for k := range ops {
		ops[k] = op{k * n, w.base() + uint64(count-1-k)*n, n}
	}
	e.fill(0, count*n, "out")
	for _, write := range []bool{true, false} {
		if !write {
			e.zero(0, count*n)
		}
		ctx, cancel := e.within(2 * soon)
		defer cancel()
		b, err := e.Submit(ctx, e.requests(w.name(), write, ops))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Wait(ctx); err != nil {
			t.Fatalf("write %v: %v", write, err)
		}
		for k := range ops {
			if s := b.Status(k); s.State != transfer.Completed || s.Bytes != n {
				t.Fatalf("write %v: request %d: %+v", write, k, s)
			}
		}
	}
	if got := e.sha(0, count*n); got != sum(pattern("out", count*n)) {
		t.Error("read back other bytes than written")
	}
}

const manyRegions = 20_000

// registerMany registers count pieces of one mapping in one call.
func (e *engine) registerMany(count int) (first uint64, step int, err error) {
	e.t.Helper()
	step = 64
	mem := mapMemory(e.t, count*step)
	rs := make([]transports.Region, count)
	for i := range rs {
		rs[i] = wrap(e.t, mem[i*step:i*step+48])
	}
	ctx, cancel := e.within(2 * soon)
	defer cancel()
	err = e.RegisterBatch(ctx, rs)
	return rs[0].Addr(), step, err
}

// 20,000 regions are published in one go, and a wheel finds the last of them.
func TestManyRegions(t *testing.T) {
	for _, m := range stores() {
		t.Run(m.name, func(t *testing.T) {
			meta := m.start(t)
			e := startEngine(t, "engine-a", meta, memSize, settings{})
			begin := time.Now()
			first, step, err := e.registerMany(manyRegions)
			took := time.Since(begin)
			if m.name == "http python" {
				// It answers 413 above 1 MiB.
				if !errors.Is(err, metadata.ErrTooLarge) {
					t.Errorf("%v, want ErrTooLarge", err)
				}
				if n := len(e.Descriptor().Buffers); n != 1 {
					t.Errorf("%d buffers after a refused registration, want the 1 from before", n)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			// The wheel needs 42 s for this.
			if took > 20*time.Second {
				t.Errorf("registration took %v", took)
			}
			w := startWheel(t, "wheel-b", meta, 4096)
			last := first + uint64((manyRegions-1)*step)
			if err := w.move(e.name(), true, op{0, last, 48}); err != nil {
				t.Error(err)
			}
			if err := w.move(e.name(), true, op{0, last, 49}); err == nil {
				t.Error("a write past the end of the last region was acknowledged")
			}
		})
	}
}

// In P2P mode a wheel reads at most 1 MiB unless it is told otherwise. The engine says so at
// registration, naming the setting.
func TestManyRegionsP2P(t *testing.T) {
	e := startEngine(t, "127.0.0.1", p2p, memSize, settings{})
	first, step, err := e.registerMany(manyRegions)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(e.log.String(), "MC_HANDSHAKE_MAX_LENGTH") {
		t.Errorf("no warning that names MC_HANDSHAKE_MAX_LENGTH:\n%.2000s", e.log)
	}
	last := first + uint64((manyRegions-1)*step)
	for limit, ok := range map[string]bool{"MC_HANDSHAKE_MAX_LENGTH=8388608": true, "MC_HANDSHAKE_MAX_LENGTH=": false} {
		w := startWheel(t, "127.0.0.1", p2p, 4096, limit)
		if err := w.move(e.name(), true, op{0, last, 48}); (err == nil) != ok {
			t.Errorf("wheel with %s: %v", limit, err)
		}
	}
}

// The document of a wheel with thousands of regions.
func TestWheelWithManyRegions(t *testing.T) {
	w := startWheel(t, "127.0.0.1", p2p, 4096)
	const count, n, step = 4000, 100, 256
	r := w.call("register_many", args{"count": count, "len": n, "step": step})
	if r.RC != 0 {
		t.Fatal(r.RC)
	}
	e := startEngine(t, "127.0.0.1", p2p, memSize, settings{})
	if got := len(e.open(w.name()).Descriptor().Buffers); got != count+1 {
		t.Errorf("%d buffers, want %d", got, count+1)
	}
	if err := e.move(w.name(), true, op{0, r.First + (count-1)*step, n}); err != nil {
		t.Error(err)
	}
}

// A wheel that dies and comes back under its name, at other addresses, is found again by an engine
// that knew it before: the handle stays valid.
func TestWheelRestartsUnderItsName(t *testing.T) {
	for _, m := range stores() {
		t.Run(m.name, func(t *testing.T) {
			meta := m.start(t)
			w := startWheel(t, "wheel-a", meta, 1<<20)
			e := startEngine(t, "engine-b", meta, memSize, settings{})
			exchangeBatch(t, e, w, 4, 4096)
			w.Kill()
			if err := e.move("wheel-a", true, op{0, w.base(), 64}); err == nil {
				t.Error("write to a dead wheel succeeded")
			}
			// The servers of the wheel refuse the first attempt after a crash, which then deletes what
			// was in the way.
			var again *wheel
			testenv.Eventually(t, 2*soon, func() error {
				var a answer
				if again, a = tryWheel(t, "wheel-a", meta, 1<<20); !a.Ready {
					again.CloseStdin()
					return fmt.Errorf("refused: %d, exit %v", a.RC, again.Wait(soon))
				}
				return nil
			})
			exchangeBatch(t, e, again, 4, 4096)
			if err := e.move("wheel-a", true, op{0, again.base(), 64}); err != nil {
				t.Errorf("after the restart: %v", err)
			}
		})
	}
}

// A wheel is stopped, not killed, in the middle of transfers: the engine gives up after the progress
// deadline, transfers with another wheel go on at their usual pace, and after SIGCONT the first works
// again.
func TestWheelStopsInTheMiddle(t *testing.T) {
	stopped, healthy := startWheel(t, "127.0.0.1", p2p, memSize), startWheel(t, "127.0.0.1", p2p, memSize)
	e := startEngine(t, "127.0.0.1", p2p, memSize, settings{tcp: func(c *tcp.Config) {
		c.ProgressTimeout, c.StatusTimeout = 3*time.Second, 3*time.Second
	}})
	exchangeBatch(t, e, stopped, 4, 4096)
	exchangeBatch(t, e, healthy, 4, 4096)
	if err := stopped.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer stopped.Signal(syscall.SIGCONT)
	ctx, cancel := e.within(soon)
	defer cancel()
	begin := time.Now()
	b, err := e.Submit(ctx, e.requests(stopped.name(), true, []op{{0, stopped.base(), 32 << 20}, {0, stopped.base(), 64}}))
	if err != nil {
		t.Fatal(err)
	}
	worst := time.Duration(0)
	for n := 0; ; n++ {
		select {
		case <-b.Done():
		default:
			one := time.Now()
			if err := e.move(healthy.name(), true, op{40 << 20, healthy.base(), 4096}); err != nil {
				t.Fatalf("transfer with the healthy wheel: %v", err)
			}
			worst = max(worst, time.Since(one))
			continue
		}
		if n < 100 {
			t.Errorf("only %d transfers with the healthy wheel meanwhile", n)
		}
		break
	}
	if err := b.Err(); !errors.Is(err, transports.ErrTimeout) {
		t.Errorf("transfer with the stopped wheel: %v, want ErrTimeout", err)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("gave up after %v", took)
	}
	if worst > 2*time.Second {
		t.Errorf("a transfer with the healthy wheel took %v", worst)
	}
	if err := b.Quiet(ctx); err != nil {
		t.Errorf("the source buffer is still in use: %v", err)
	}
	stopped.Signal(syscall.SIGCONT)
	testenv.Eventually(t, soon, func() error { return e.move(stopped.name(), true, op{0, stopped.base(), 64}) })
	exchangeBatch(t, e, stopped, 4, 4096)
}

// A wheel is killed in the middle of a large transfer: the error comes at once.
func TestWheelDiesInTheMiddle(t *testing.T) {
	for _, write := range []bool{true, false} {
		w := startWheel(t, "127.0.0.1", p2p, memSize)
		e := startEngine(t, "127.0.0.1", p2p, memSize, settings{})
		ops := make([]op, 64)
		for i := range ops {
			ops[i] = op{0, w.base(), 16 << 20}
		}
		ctx, cancel := e.within(soon)
		defer cancel()
		b, err := e.Submit(ctx, e.requests(w.name(), write, ops))
		if err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, soon, testenv.True("first request done", func() bool {
			for i := range ops {
				if b.Status(i).State == transfer.Completed {
					return true
				}
			}
			return false
		}))
		killed := time.Now()
		w.Kill()
		if err := b.Wait(ctx); !errors.Is(err, transports.ErrInterrupted) && !errors.Is(err, transports.ErrUnreachable) {
			t.Errorf("write %v: %v, want ErrInterrupted or ErrUnreachable", write, err)
		}
		if took := time.Since(killed); took > 20*time.Second {
			t.Errorf("write %v: told after %v", write, took)
		}
	}
}
