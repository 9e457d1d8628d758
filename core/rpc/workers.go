package rpc

import "sync"

// workers runs slow calls on at most max goroutines, which end when there is nothing to do.
type workers struct {
	mu      sync.Mutex
	queue   []*Call
	running int
	max     int
	idle    *sync.Cond // running became 0
}

func newWorkers(max int) *workers {
	w := &workers{max: max}
	w.idle = sync.NewCond(&w.mu)
	return w
}

func (w *workers) submit(c *Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, c)
	if w.running < w.max {
		w.running++
		go w.work()
	}
}

func (w *workers) work() {
	for {
		w.mu.Lock()
		if len(w.queue) == 0 {
			w.running--
			if w.running == 0 {
				w.queue = nil
				w.idle.Broadcast()
			}
			w.mu.Unlock()
			return
		}
		c := w.queue[0]
		w.queue[0] = nil
		w.queue = w.queue[1:]
		w.mu.Unlock()
		c.serve()
	}
}

// wait returns when no call is left, or when stop was called.
func (w *workers) wait(stopped func() bool) (left int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.running > 0 && !stopped() {
		w.idle.Wait()
	}
	return w.running
}

// wake makes wait look at stopped again.
func (w *workers) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle.Broadcast()
}
