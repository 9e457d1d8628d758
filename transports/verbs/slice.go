package verbs

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// op is one transports.Op under way. The peer's mu guards it.
type op struct {
	b          *batch
	reg        *registration
	cookie     uint64
	write      bool
	aborted    atomic.Bool
	started    bool // a slice was handed to a device
	local      uint64
	remote     uint64
	len, cut   uint64
	out        int // slices
	err        error
	since      time.Duration // of the abort
	prev, next *op
}

// opList is a doubly linked list of ops in order.
type opList struct {
	first, last *op
	n           int
}

func (l *opList) add(o *op) {
	o.prev, o.next = l.last, nil
	if l.last == nil {
		l.first = o
	} else {
		l.last.next = o
	}
	l.last = o
	l.n++
}

func (l *opList) remove(o *op) {
	if o.prev != nil {
		o.prev.next = o.next
	} else {
		l.first = o.next
	}
	if o.next != nil {
		o.next.prev = o.prev
	} else {
		l.last = o.prev
	}
	l.n--
}

// batch is one Submit.
type batch struct {
	p     *Peer
	ctx   context.Context
	done  transports.Completion
	start time.Time
	left  atomic.Int64 // ops, and one for Submit itself
	watch transports.Watch
	ops   []op
}

func (b *batch) leave() {
	if b.left.Add(-1) == 0 {
		b.watch.Stop()
	}
}

// slice is one work request. Who holds it owns it: an endpoint's queue, a queue pair's slot, or a goroutine.
type slice struct {
	op     *op // nil for a probe
	local  *chunk
	addr   uint64
	remote uint64
	len    uint32
	buf    int   // of the peer's buffers
	way    way   // taken last
	last   *rail // failed last
	tries  int
	ep     *endpoint
	err    error // of its own work request
	next   *slice
}

func (s *slice) rkey() uint32 { return s.op.b.p.r.buffers[s.buf].keys[s.way.dev] }

// cut takes the next slice off an op: no longer than a slice, or with its rest a bit longer, and never across the end of
// a memory region on either side. p.mu is held.
func (p *Peer) cut(o *op) *slice {
	s := p.free
	if s == nil {
		s = &slice{}
	} else {
		p.free, s.next = s.next, nil
		p.nfree--
	}
	s.op, s.addr, s.remote = o, o.local+o.cut, o.remote+o.cut
	s.local = o.reg.chunkOf(s.addr)
	s.buf = p.r.find(s.remote)
	room := min(o.len-o.cut, s.local.addr+s.local.len-s.addr, p.r.buffers[s.buf].end-s.remote)
	size := uint64(p.t.cfg.SliceSize)
	n := min(room, size)
	if room > size && room-size <= size/uint64(p.t.cfg.FragmentRatio) {
		n = room
	}
	s.len = uint32(n)
	o.cut += n
	o.out++
	p.out++
	return s
}

// worthWaiting tells whether a slice that has failed should wait for the end of a pause: after a lost connection, but
// not long for a peer that refuses a new one, since there may be another transport to it.
func (s *slice) worthWaiting() bool {
	var c *connectError
	return s.last != nil && (!errors.As(s.err, &c) || s.tries <= connectTries)
}

// finishSlices reports slices that were moved.
func finishSlices(s *slice) {
	for s != nil {
		next := s.next
		s.next = nil
		if s.op == nil {
			s = next
			continue
		}
		p := s.op.b.p
		s.way.worked()
		s.way.n.bytes.Add(-int64(s.len))
		s.err = nil
		first := s
		for next != nil && next.op != nil && next.op.b.p == p { // take those of the same peer together
			s.next, s = next, next
			next = s.next
			s.next = nil
			s.way.worked()
			s.way.n.bytes.Add(-int64(s.len))
			s.err = nil
		}
		p.finish(first)
		s = next
	}
}

// bounce takes slices back that could not be moved over the way they took: each looks for another one, unless it has
// failed too often or its op is over.
func bounce(s *slice, why error) {
	for s != nil {
		next := s.next
		s.next = nil
		if s.op != nil {
			s.op.b.p.bounced(s, why)
		}
		s = next
	}
}

// reason is a label for an error.
func reason(err error) string {
	for _, r := range []struct {
		err  error
		name string
	}{
		{transports.ErrRejected, "rejected"}, {transports.ErrUnquiet, "unquiet"}, {transports.ErrClosed, "closed"},
		{context.Canceled, "canceled"}, {context.DeadlineExceeded, "canceled"}, {transports.ErrNotShareable, "not_shareable"},
		{transports.ErrNotRegistered, "not_registered"}, {transports.ErrInterrupted, "interrupted"},
		{transports.ErrUnreachable, "unreachable"}, {transports.ErrProtocol, "protocol"},
	} {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return "other"
}
