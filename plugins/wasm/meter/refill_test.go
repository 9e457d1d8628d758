package meter

import (
	"context"
	"runtime"
	"strings"
	"testing"
)

// callSliced calls with a little of the budget in the tank and the rest in the reserve.
func (g *guest) callSliced(first, budget int64, name string, args ...uint64) (seen string, left int64, err error) {
	first = min(first, budget)
	reserve := g.mod.ExportedGlobal(ReserveExport).(interface {
		Get() uint64
		Set(v uint64)
	})
	reserve.Set(uint64(budget - first))
	seen, left, err = g.callWith(first, name, args...)
	return seen, left + int64(reserve.Get()), err
}

// Where the fuel comes from changes nothing: what a call computes and is charged, and that it traps when it lacks one unit.
func TestReserve(t *testing.T) {
	for _, name := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := mustRewrite(t, load(t, name))
			c := engines["compiler"]
			whole := newGuest(t, c(), m.Code, m.Facts.Imports)
			sliced := newGuest(t, c(), m.Code, m.Facts.Imports)
			exact := newGuest(t, c(), m.Code, m.Facts.Imports)
			tried := map[string]bool{}
			script(m.Facts, func(f string, args []uint64) {
				want, left, _ := whole.callWith(plenty, f, args...)
				charge := plenty - left
				got, left, _ := sliced.callSliced(3, plenty, f, args...)
				if got != want || plenty-left != charge {
					t.Errorf("%s%v with a reserve: charged %d, %s\nwithout: %d, %s", f, args, plenty-left, got, charge, want)
				}
				if got, left, _ := exact.callSliced(charge/2, charge, f, args...); got != want || left != 0 {
					t.Errorf("%s%v with exactly its charge: left %d, %s\nwant %s", f, args, left, got, want)
				}
				if charge == 0 || tried[f] {
					return
				}
				tried[f] = true
				fresh := newGuest(t, c(), m.Code, m.Facts.Imports)
				_, left, _ = fresh.callWith(plenty, f, args...)
				charge = plenty - left
				fresh = newGuest(t, c(), m.Code, m.Facts.Imports)
				if got, left, err := fresh.callSliced(charge/2, charge-1, f, args...); err == nil || left >= 0 || !strings.HasPrefix(got, "trap wasm error: unreachable") {
					t.Errorf("%s%v with one less than its charge: left %d, %s", f, args, left, got)
				}
			})
		})
	}
}

// The garbage collector, which has to stop everything, does not wait for the end of a call: it comes by several times.
func TestGuestsCanBeInterrupted(t *testing.T) {
	m := mustRewrite(t, oneFunction(noParams, noLocals, []byte{opLoop, blockEmpty, opBr, 0, opEnd}))
	g := newGuest(t, engines["compiler"](), m.Code, nil)
	const budget = 1_000_000_000 // a second and more
	g.fuel().Set(0)
	g.mod.ExportedGlobal(ReserveExport).(interface{ Set(v uint64) }).Set(budget)
	f := g.mod.ExportedFunction("f")
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		close(started)
		_, err := f.Call(context.Background())
		ended <- err
	}()
	<-started
	for n := range 3 {
		runtime.GC()
		select {
		case err := <-ended:
			t.Fatalf("the call ended before collection %d: %v", n+1, err)
		default:
		}
	}
	if err := <-ended; err == nil || g.fuel().Get() < 1<<63 {
		t.Errorf("an endless loop ended with %d: %v", int64(g.fuel().Get()), err)
	}
}
