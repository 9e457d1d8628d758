package segment

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// refs counts the users of something that is taken away in the end. The zero value is open and has no
// user. A reference costs one atomic addition; after shut none is given any more.
type refs struct {
	n     atomic.Int64
	drain atomic.Pointer[drain] // set by shut, before the closing bit
}

type drain struct {
	once sync.Once
	done chan struct{} // closed when shut and without users
}

// closing is added to refs.n once. It is far above any count of users.
const closing = math.MaxInt64/2 + 1

func (r *refs) acquire() bool {
	if r.n.Add(1) < closing {
		return true
	}
	r.release()
	return false
}

func (r *refs) release() {
	switch v := r.n.Add(-1); {
	case v < 0:
		panic("segment: reference released twice")
	case v == closing:
		r.drained()
	}
}

// drained may run several times: a refused acquire passes the same count again.
func (r *refs) drained() {
	d := r.drain.Load()
	d.once.Do(func() { close(d.done) })
}

// shut refuses new references from now on and tells whether this call did it.
func (r *refs) shut() bool {
	if !r.drain.CompareAndSwap(nil, &drain{done: make(chan struct{})}) {
		return false
	}
	if r.n.Add(closing) == closing {
		r.drained()
	}
	return true
}

func (r *refs) shutting() bool { return r.drain.Load() != nil }

// wait returns nil when no reference is left. Legal only after shut.
func (r *refs) wait(ctx context.Context) error {
	d := r.drain.Load()
	select {
	case <-d.done:
		return nil
	default:
	}
	select {
	case <-d.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d users left: %w", max(r.n.Load()-closing, 1), context.Cause(ctx))
	}
}
