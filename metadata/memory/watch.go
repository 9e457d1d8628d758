package memory

import (
	"sync"

	"github.com/mooncake-agent/mooncake/metadata"
)

// backlog is how many events a watcher may be behind before it is told to list again.
const backlog = 4096

// watcher queues the events of one Watch.
type watcher struct {
	prefix string
	wake   chan struct{} // holds at most one token

	mu     sync.Mutex
	events []metadata.Event
}

func (s *Store) watch(prefix string) *watcher {
	w := &watcher{prefix: prefix, wake: make(chan struct{}, 1)}
	w.reset()
	s.mu.Lock()
	s.watchers[w] = struct{}{}
	s.mu.Unlock()
	return w
}

func (s *Store) unwatch(w *watcher) {
	s.mu.Lock()
	delete(s.watchers, w)
	s.mu.Unlock()
}

func (w *watcher) push(ev metadata.Event) {
	w.mu.Lock()
	full := len(w.events) >= backlog
	if !full {
		w.events = append(w.events, ev)
	}
	w.mu.Unlock()
	if full {
		w.reset()
		return
	}
	w.signal()
}

func (w *watcher) reset() {
	w.mu.Lock()
	w.events = []metadata.Event{{Type: metadata.EventReset}}
	w.mu.Unlock()
	w.signal()
}

func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) take() []metadata.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.events
	w.events = nil
	return events
}
