package transports

import (
	"context"
	"sync"
)

// Watchable is a context that can be watched without an allocation. The contexts that the engine hands to
// [Peer.Submit] are.
type Watchable interface {
	context.Context
	// Watches is the list of those who watch.
	Watches() *Watches
}

// Watch calls a function once when a context ends, as [context.AfterFunc] does: in a goroutine of its own, and
// at once when the context has ended before. On a [Watchable] it allocates nothing, so that a transport can
// have one for each Submit. It can be started again after Stop has returned true. A Watch must not be copied.
type Watch struct {
	F func()

	list       *Watches // nil while it watches no Watchable
	next, prev *Watch
	stop       func() bool
}

// Start begins to watch ctx. Start and Stop must not be called at the same time.
func (w *Watch) Start(ctx context.Context) {
	if c, ok := ctx.(Watchable); ok {
		c.Watches().Add(w)
	} else if ctx.Done() != nil {
		w.stop = context.AfterFunc(ctx, w.F)
	}
}

// Stop ends the watch. It is false when F was called, or is about to be.
func (w *Watch) Stop() bool {
	if stop := w.stop; stop != nil {
		w.stop = nil
		return stop()
	}
	if l := w.list; l != nil {
		return l.remove(w)
	}
	return true
}

// Watches is a list of watches over one event. The zero value is empty.
type Watches struct {
	mu    sync.Mutex
	first *Watch
	over  bool
}

// Add puts w on the list; once End was called, its function is started at once.
func (l *Watches) Add(w *Watch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.list = l
	if l.over {
		go w.F()
		return
	}
	w.prev, w.next = nil, l.first
	if l.first != nil {
		l.first.prev = w
	}
	l.first = w
}

func (l *Watches) remove(w *Watch) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return false
	}
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	}
	w.list, w.next, w.prev = nil, nil, nil
	return true
}

// End starts the functions of all watches, each in a goroutine. Further calls do nothing.
func (l *Watches) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	for w := l.first; w != nil; {
		next := w.next
		go w.F()
		w = next
	}
	l.first = nil
}
