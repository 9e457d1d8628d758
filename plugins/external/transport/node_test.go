package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	memory "github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/plugins/external"
	"github.com/mooncake-agent/mooncake/transports"
	_ "github.com/mooncake-agent/mooncake/transports/tcp"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

// engine is a Transfer Engine that prefers a plugin to tcp, with one arena.
type engine struct {
	*transfer.Engine
	plugin *Transport
	mem    []byte
	addr   uint64
}

func startEngine(t *testing.T, c external.Config, size int) *engine {
	t.Helper()
	tcp, err := transports.Kind.Build(t.Context(), "tcp", module.Env{}, module.NoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{plugin: outside(t, c)}
	o := transfer.Options{Config: transfer.DefaultConfig(), LocalName: "127.0.0.1",
		Transports: []transfer.NamedTransport{{Name: "mover", Transport: e.plugin}, {Name: "tcp", Transport: tcp}}}
	if e.Engine, err = transfer.New(o); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	arena, err := memory.New(t.Context(), "test", uint64(size), memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := arena.Region(0, uint64(size), transports.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Register(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	e.mem, e.addr = r.Bytes(), r.Addr()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
		r.Close()
		if err := arena.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}

// moved is how many requests went over a path.
func moved(t *testing.T, e *engine, name, path string) uint64 {
	t.Helper()
	for _, s := range e.Segments() {
		for _, p := range s.Paths {
			if s.Segment == name && p.Path == path {
				return p.Requests
			}
		}
	}
	t.Fatalf("no path %s to %s", path, name)
	return 0
}

const (
	workers = 4
	slot    = 256 << 10
	pings   = 2 * workers * slot // where what keeps the target's plugin counting lies
	cached  = 1 << 20            // at the end of each arena, never written after the start
	arena   = pings + 4096 + cached
)

// TestFaults: whatever happens to a plugin, on the side that asks or on the side that is asked, while transfers are under
// way: each ends once, with the right bytes, over the plugin or over tcp; what lies in memory stays; the plugin is used
// again when it was started anew.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		fault string
		stays bool // the process survives
	}{{"exit", false}, {"kill", false}, {"stop", false}, {"garbage", false}, {"twice", false}, {"leak", false}, {"flood", true}} {
		for _, side := range []string{"initiator", "target"} {
			t.Run(c.fault+" "+side, func(t *testing.T) {
				good, bad := section(t, moverProgram, nil), section(t, faultyProgram, map[string]any{"fault": c.fault, "after": 200})
				bad.MemoryLimit = 256 << 20
				ca, cb := good, bad
				if side == "initiator" {
					ca, cb = bad, good
				}
				a, b := startEngine(t, ca, arena), startEngine(t, cb, arena)
				testFault(t, a, b, side == "target", c.stays)
			})
		}
	}
}

func testFault(t *testing.T, a, b *engine, atTarget, stays bool) {
	cacheA, cacheB := a.mem[arena-cached:], b.mem[arena-cached:]
	transporttest.Fill(cacheA, 1)
	transporttest.Fill(cacheB, 2)
	to, err := a.Open(t.Context(), b.Name())
	if err != nil {
		t.Fatal(err)
	}
	back, err := b.Open(t.Context(), a.Name())
	if err != nil {
		t.Fatal(err)
	}
	bad := a
	if atTarget {
		bad = b
	}
	first, err := bad.plugin.session()
	if err != nil {
		t.Fatal(err)
	}

	var stop, failed, done atomic.Int64
	var worst atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			src, dst := a.mem[w*slot:(w+1)*slot], a.mem[(workers+w)*slot:(workers+w+1)*slot]
			remote := b.addr + uint64(w*slot)
			for i := 0; stop.Load() == 0; i++ {
				transporttest.Fill(src, i*workers+w)
				begin := time.Now()
				err := a.Write(t.Context(), to, src, remote)
				if err == nil {
					err = a.Read(t.Context(), to, dst, remote)
				}
				if took := time.Since(begin); took > time.Duration(worst.Load()) {
					worst.Store(int64(took))
				}
				done.Add(1)
				switch {
				case err == nil && !bytes.Equal(src, dst):
					t.Errorf("worker %d, round %d: other bytes came back than were sent", w, i)
					return
				case err != nil:
					failed.Add(1)
					t.Logf("worker %d, round %d: %v", w, i, err)
					if !errors.Is(err, transports.ErrInterrupted) && !errors.Is(err, transports.ErrUnreachable) && !errors.Is(err, transfer.ErrNoPath) {
						t.Errorf("an untyped error: %v", err)
					}
				}
				if atTarget { // whose plugin counts its own operations only
					if err := b.Write(t.Context(), back, b.mem[pings+w*64:][:64], a.addr+pings+uint64(w*64)); err != nil {
						failed.Add(1)
						t.Logf("worker %d, round %d, the other way: %v", w, i, err)
					}
				}
			}
		})
	}
	defer wg.Wait()
	defer stop.Store(1)

	if stays {
		waitFor(t, func() string {
			if n := moved(t, a, b.Name(), "mover"); n < 2000 {
				return fmt.Sprintf("only %d requests over the plugin", n)
			}
			return ""
		})
		if first.isDead() {
			t.Error("the plugin did not survive")
		}
	} else {
		// The gap is what the caller sees of it: no request goes over the plugin, all go over tcp.
		last, since, longest := uint64(0), time.Now(), time.Duration(0)
		waitFor(t, func() string {
			if n := moved(t, a, b.Name(), "mover"); n != last {
				if !first.isDead() {
					longest = 0
				}
				longest = max(longest, time.Since(since))
				last, since = n, time.Now()
				if longest > 100*time.Millisecond && first.isDead() {
					return ""
				}
			}
			return fmt.Sprintf("%d requests over the plugin, first process dead: %v", last, first.isDead())
		})
		t.Logf("the plugin carried nothing for %v", longest.Round(time.Millisecond))
		if n := moved(t, a, b.Name(), "tcp"); n == 0 {
			t.Error("no request went over tcp meanwhile")
		}
	}
	stop.Store(1)
	wg.Wait()
	t.Logf("%d rounds, %d failed, the longest took %v", done.Load(), failed.Load(), time.Duration(worst.Load()).Round(time.Millisecond))
	if failed.Load() > 0 {
		t.Errorf("%d requests failed although there was another path", failed.Load())
	}
	transporttest.CheckFill(t, "memory of the initiator", cacheA, 1)
	transporttest.CheckFill(t, "memory of the target", cacheB, 2)
}
