package transfer

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/mooncake-agent/mooncake/transports"
)

// quarantine holds the ranges of local memory that a transport may still touch although their request is
// over, and their holds on registered regions. New requests do not get them.
type quarantine struct {
	n  atomic.Int64 // ranges, so that the usual case costs one load
	mu sync.Mutex
	m  map[*task]held
}

type held struct {
	addr, len uint64
	ref       transports.Ref
}

// add takes the local range of t, which the caller owns.
func (q *quarantine) add(t *task) {
	h := held{addr: t.local.Addr() + t.offset, len: t.len, ref: t.ref}
	t.ref = transports.Ref{}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.m == nil {
		q.m = map[*task]held{}
	}
	q.m[t] = h
	q.n.Store(int64(len(q.m)))
}

// remove ends the quarantine of t's range: its transport has reported.
func (q *quarantine) remove(t *task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.end(t, q.m[t])
}

// release ends the quarantine of all ranges inside a region: its transports have all let go of it.
func (q *quarantine) release(addr, n uint64) {
	if q.n.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for t, h := range q.m {
		if overlap(h.addr, h.len, addr, n) {
			q.end(t, h)
		}
	}
}

func (q *quarantine) end(t *task, h held) {
	h.ref.Release()
	delete(q.m, t)
	q.n.Store(int64(len(q.m)))
}

// check refuses a range that is quarantined.
func (q *quarantine) check(addr, n uint64) error {
	if q.n.Load() == 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, h := range q.m {
		if overlap(h.addr, h.len, addr, n) {
			return fmt.Errorf("%w: %d bytes at %#x belong to a request that ended without its transport", ErrUnquiet, h.len, h.addr)
		}
	}
	return nil
}

func overlap(a, an, b, bn uint64) bool { return a < b+bn && b < a+an }
