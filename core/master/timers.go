package master

import (
	"container/heap"
	"sync"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/core/segment/space"
)

// timers are the deadlines that few things have: ends of soft pins, of quarantines and of graceful
// unmounts. Nothing is searched for; a deadline that no longer counts is found void when it comes up.
type timers struct {
	mu         sync.Mutex // a leaf
	pins       pinHeap
	quarantine holdHeap
	// held are ranges of finished values that nobody reads any more, kept as long as upstream keeps them;
	// they are given back at once when room is needed. Oldest first, from start on.
	held   []hold
	start  int
	leaves []leave // graceful unmounts
}

// pinEnd is the deadline of a soft pin. It counts if the pin still has it.
type pinEnd struct {
	at     int64
	object ref
}

// hold is a range without an object. It must not be used before safe; it need not be used before due.
type hold struct {
	safe, due int64
	seg       *segment
	node      space.Handle
	size      uint64 // requested bytes
	counted   bool   // counts as a discarded put
}

// leave is a graceful unmount.
type leave struct {
	at     int64
	id     wire.UUID
	client wire.UUID
}

type pinHeap []pinEnd

func (h pinHeap) Len() int           { return len(h) }
func (h pinHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h pinHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *pinHeap) Push(x any)        { *h = append(*h, x.(pinEnd)) }
func (h *pinHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

type holdHeap []hold

func (h holdHeap) Len() int           { return len(h) }
func (h holdHeap) Less(i, j int) bool { return h[i].safe < h[j].safe }
func (h holdHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *holdHeap) Push(x any)        { *h = append(*h, x.(hold)) }
func (h *holdHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = hold{}
	*h = old[:len(old)-1]
	return x
}

func (s *Service) pinEnds(at int64, r ref) {
	s.timers.mu.Lock()
	heap.Push(&s.timers.pins, pinEnd{at, r})
	s.timers.mu.Unlock()
}

// quarantine keeps a range from being used again until safe, and until due unless room is needed.
func (s *Service) quarantine(h hold) {
	rounded, alive := h.seg.hold(h.node)
	if !alive {
		return
	}
	s.counters.QuarantinedBytes.Add(int64(rounded))
	if h.counted {
		s.counters.Discarded.Add(1)
		s.counters.DiscardedBytes.Add(int64(h.size))
	}
	s.timers.mu.Lock()
	heap.Push(&s.timers.quarantine, h)
	s.timers.mu.Unlock()
}

// release frees a range that was held.
func (s *Service) release(h *hold) {
	if h.counted {
		s.counters.DiscardedBytes.Add(-int64(h.size))
		s.counters.Released.Add(1)
	}
	rounded, alive := h.seg.endHold(h.node, h.size)
	if !alive {
		return
	}
	s.counters.QuarantinedBytes.Add(-int64(rounded))
	s.counters.AllocatedBytes.Add(-int64(rounded))
	s.counters.RequestedBytes.Add(-int64(h.size))
}

// releaseDue frees the ranges whose time has come; with pressure also those that are only kept for
// upstream's sake. It returns the number freed.
func (s *Service) releaseDue(now int64, pressure bool) int {
	t := &s.timers
	n := 0
	for {
		t.mu.Lock()
		var batch [64]hold
		k := 0
		for k < len(batch) && len(t.quarantine) > 0 && t.quarantine[0].safe <= now {
			h := heap.Pop(&t.quarantine).(hold)
			if h.due > now && !pressure {
				t.held = append(t.held, h)
				continue
			}
			batch[k] = h
			k++
		}
		for k < len(batch) && t.start < len(t.held) && (pressure || t.held[t.start].due <= now) {
			batch[k] = t.held[t.start]
			t.held[t.start] = hold{}
			t.start++
			k++
		}
		if t.start == len(t.held) {
			t.held, t.start = t.held[:0], 0
		} else if t.start > 1024 && t.start > len(t.held)/2 {
			t.held = append(t.held[:0], t.held[t.start:]...)
			t.start = 0
		}
		t.mu.Unlock()
		for i := range k {
			s.release(&batch[i])
		}
		if n += k; k < len(batch) {
			return n
		}
	}
}

// endPins ends the soft pins whose time has come.
func (s *Service) endPins(now int64) {
	for {
		s.timers.mu.Lock()
		if len(s.timers.pins) == 0 || s.timers.pins[0].at > now {
			s.timers.mu.Unlock()
			return
		}
		p := heap.Pop(&s.timers.pins).(pinEnd)
		s.timers.mu.Unlock()

		sh := &s.shards[p.object.shard()]
		sh.mu.Lock()
		if o := sh.live(p.object.index()); o != nil && o.is(fSoftPin) && sh.pins[p.object.index()].until <= now {
			s.endSoftPin(sh, p.object.index(), o)
			s.emitPin(sh, p.object.index(), o, now)
		}
		sh.mu.Unlock()
	}
}

// reapWrites ends the writes that have run for longer than the release timeout: their replicas are given
// back, for their writers have had their time.
func (s *Service) reapWrites(now int64) {
	limit := s.cfg.PutRelease.Milliseconds()
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for len(sh.writes) > 0 {
			w := sh.writes[0]
			running := sh.running(w)
			if running && w.start+limit >= now {
				break
			}
			sh.writes = sh.writes[1:] // before the object goes, and perhaps the list with it
			if running {
				s.abandonWrite(sh, w.object, now)
			}
		}
		if len(sh.writes) == 0 {
			sh.writes = nil
		}
		s.reapTasks(sh, now)
		sh.mu.Unlock()
	}
}
