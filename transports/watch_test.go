package transports

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// watchable is the smallest context that can be watched.
type watchable struct {
	context.Context
	l Watches
}

func (w *watchable) Watches() *Watches { return &w.l }

func TestWatch(t *testing.T) {
	for name, open := range map[string]func() (context.Context, func()){
		"plain": func() (context.Context, func()) { return context.WithCancel(context.Background()) },
		"watchable": func() (context.Context, func()) {
			w := &watchable{Context: context.Background()}
			return w, w.l.End
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, end := open()
			var n atomic.Int32
			var fired sync.WaitGroup
			watches := make([]Watch, 5)
			for i := range watches {
				watches[i].F = func() { n.Add(1); fired.Done() }
				watches[i].Start(ctx)
			}
			for _, i := range []int{2, 0, 4} { // middle, ends
				if !watches[i].Stop() {
					t.Errorf("watch %d could not be stopped", i)
				}
			}
			watches[0].Start(ctx) // again
			fired.Add(3)
			end()
			fired.Wait()
			for i, want := range []bool{false, false, true, false, true} {
				if got := watches[i].Stop(); got != want {
					t.Errorf("stop of watch %d after the end: %v", i, got)
				}
			}
			fired.Add(1)
			late := Watch{F: func() { n.Add(1); fired.Done() }}
			late.Start(ctx)
			fired.Wait()
			if late.Stop() || n.Load() != 4 {
				t.Errorf("%d functions were called, 4 expected", n.Load())
			}
		})
	}
	never := Watch{F: func() { t.Error("the background ended") }}
	never.Start(context.Background())
	if !never.Stop() {
		t.Error("a watch over a context without end")
	}
}

func TestWatchRaces(t *testing.T) {
	for range 200 {
		w := &watchable{Context: context.Background()}
		var n, stopped atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				watch := Watch{F: func() { n.Add(1) }}
				watch.Start(w)
				if watch.Stop() {
					stopped.Add(1)
				}
			})
		}
		wg.Go(w.l.End)
		wg.Wait()
		for end := time.Now().Add(10 * time.Second); n.Load()+stopped.Load() != 4; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d stopped, %d called, of 4", stopped.Load(), n.Load())
			}
		}
	}
}

func BenchmarkWatch(b *testing.B) {
	b.ReportAllocs()
	ctx := &watchable{Context: context.Background()}
	w := Watch{F: func() {}}
	for b.Loop() {
		w.Start(ctx)
		w.Stop()
	}
}
