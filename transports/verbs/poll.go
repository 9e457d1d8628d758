package verbs

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/mooncake-agent/mooncake/internal/spin"
	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

// run is a completion queue's goroutine: it polls while completions come, looks a moment longer while work is
// outstanding, and otherwise sleeps until the device tells of the next one.
func (q *queue) run() {
	fail := func(err error) {
		if q.end.Err() == nil && !errors.Is(err, device.ErrClosed) {
			q.n.mu.RLock()
			dev := q.n.dev
			q.n.mu.RUnlock()
			q.n.lose(dev, fmt.Errorf("completion queue: %w", err))
		}
	}
	for q.end.Err() == nil {
		found, err := q.take()
		if err == nil && !found && q.used.Load() > 0 {
			found, err = q.look()
		}
		if err != nil {
			fail(err)
			return
		}
		if found {
			continue
		}
		if err := q.cq.Arm(); err != nil {
			fail(err)
			return
		}
		// What came before Arm gives no event. Somebody else who polls just now may have found it, or finds it.
		q.poll.Lock()
		var wcs [pollBatch]device.Completion
		n, err := q.cq.Poll(wcs[:])
		q.poll.Unlock()
		if err != nil {
			fail(err)
			return
		}
		if n > 0 {
			q.handle(wcs[:n])
			continue
		}
		q.n.t.m.sleeps.Inc()
		if err := q.cq.Wait(q.end); err != nil {
			fail(err)
			return
		}
	}
}

// look polls for a moment, offering the processor to others between two looks.
func (q *queue) look() (found bool, err error) {
	if q.n.t.cfg.BusyPoll <= 0 || !spin.Enter() {
		return false, nil
	}
	defer spin.Leave()
	for end := time.Now().Add(q.n.t.cfg.BusyPoll); time.Now().Before(end); runtime.Gosched() {
		if found, err = q.take(); found || err != nil {
			return found, err
		}
	}
	return false, nil
}
