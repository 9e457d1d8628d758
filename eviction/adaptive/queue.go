package adaptive

import (
	"math"
	"math/bits"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/order"
)

// queue holds members (handles of the store, or slots of the sample) in one list per class, most recently
// used in front, and finds the one with the lowest index among the oldest of each class.
type queue struct {
	lists  order.ListsOf[member]
	oldest [groups * groupSize]oldest // by class
	best   [groups]best
	some   uint16 // groups that may have members, by bit
}

// member is what is known of one: class in bits 0..7, past in 8..15, ms of the last use above. With the links
// it is 16 bytes that the processor reads at once.
type member uint64

// maxTime is the latest time that a member can be used at: the year 10889.
const maxTime = 1<<48 - 1

func newMember(class, past uint8, used uint64) member {
	return member(used<<16 | uint64(past)<<8 | uint64(class))
}

func (m member) class() uint8 { return uint8(m) }
func (m member) past() uint8  { return uint8(m >> 8) }
func (m member) used() uint64 { return uint64(m >> 16) }

// gone is the class of what is not in the queue.
const gone = 255

// oldest is what worst last saw of the oldest member of a class. It stays true until that member changes, gets
// into the next age bin, or there is a new table.
type oldest struct {
	count int
	index float32
	used  uint64 // when it was last used
	until uint64 // good for times below; 0 = look again
}

// Classes are compared in groups, so that worst need not look at those of which nothing has changed.
const (
	groupSize = 8
	groups    = (classes + groupSize - 1) / groupSize
)

var _ [16 - groups]struct{} // queue.some has a bit for each

// best is what worst last found in a group.
type best struct {
	until    uint64 // good for times below; 0 = look again
	from, to uint64 // and for horizons from..to
	worst    int16  // class of the lowest index before the horizon, -1 if there is none
	old      int16  // class of the oldest of all, -1 if there is none
}

func newQueue(members uint32) queue {
	return queue{lists: order.NewListsOf[member](members, classes)}
}

func (q *queue) push(h eviction.Handle, class uint8, now uint64) {
	*q.lists.Of(h) = newMember(class, 0, now)
	q.lists.PushFront(int(class), h)
	q.join(class)
}

func (q *queue) remove(h eviction.Handle) {
	m := q.lists.Of(h)
	q.leave(h, *m)
	q.lists.Remove(h)
	*m = newMember(gone, m.past(), m.used())
}

func (q *queue) touch(h eviction.Handle, class uint8, now uint64) {
	m := q.lists.Of(h)
	q.leave(h, *m)
	*m = newMember(class, m.past(), now)
	q.lists.MoveFront(int(class), h)
	q.join(class)
}

func (q *queue) join(class uint8) {
	o := &q.oldest[class]
	if o.count++; o.count == 1 {
		q.changed(class)
		q.some |= 1 << (class / groupSize)
	}
}

func (q *queue) leave(h eviction.Handle, m member) {
	c := m.class()
	o := &q.oldest[c]
	o.count--
	if o.until != 0 && m.used() <= o.used && q.lists.Back(int(c)) == h {
		q.changed(c)
	}
}

// changed makes worst look at a class again.
func (q *queue) changed(class uint8) {
	q.oldest[class].until = 0
	q.best[class/groupSize].until = 0
}

// tableChanged makes worst look at every class again.
func (q *queue) tableChanged() {
	for c := range uint8(classes) {
		q.changed(c)
	}
}

// classOf is the class of h, gone if it is not in the queue.
func (q *queue) classOf(h eviction.Handle) uint8 { return q.lists.Of(h).class() }

// past is what was last set as the past of h, 0 if it was pushed since.
func (q *queue) past(h eviction.Handle) uint8 { return q.lists.Of(h).past() }

func (q *queue) setPast(h eviction.Handle, past uint8) {
	m := q.lists.Of(h)
	*m = newMember(m.class(), past, m.used())
}

// worst returns the member with the lowest index among those last used before the horizon, the older of two that
// are equal; if none is so old, the oldest of all; 0 if there is none.
func (q *queue) worst(t *table, now, horizon uint64) eviction.Handle {
	lowest := -1
	for some := q.some; some != 0; some &= some - 1 {
		g := bits.TrailingZeros16(some)
		b := &q.best[g]
		if now >= b.until || horizon < b.from || horizon > b.to {
			q.compare(g, t, now, horizon)
		}
		if c := int(b.worst); c >= 0 && (lowest < 0 || q.oldest[c].before(&q.oldest[lowest])) {
			lowest = c
		}
	}
	if lowest < 0 {
		for some := q.some; some != 0; some &= some - 1 {
			g := bits.TrailingZeros16(some)
			if c := int(q.best[g].old); c >= 0 && (lowest < 0 || q.oldest[c].used < q.oldest[lowest].used) {
				lowest = c
			}
		}
	}
	if lowest < 0 {
		return 0
	}
	return q.lists.Back(lowest)
}

// victim is the member that goes first. Of the blocks of one request that is the one at the end that is not full: the
// others are of use without it, it is of none without them.
func (q *queue) victim(t *table, now, horizon uint64) eviction.Handle {
	h := q.worst(t, now, horizon)
	if end := q.lists.Back(partial); h != 0 && end != 0 && q.lists.Of(end).used() == q.lists.Of(h).used() {
		return end
	}
	return h
}

// before tells whether o is to go before w.
func (o *oldest) before(w *oldest) bool {
	return o.index < w.index || o.index == w.index && o.used < w.used
}

// compare finds the best of a group, and for how long and which horizons it is.
func (q *queue) compare(g int, t *table, now, horizon uint64) {
	b := best{until: math.MaxUint64, to: math.MaxUint64, worst: -1, old: -1}
	for c := g * groupSize; c < (g+1)*groupSize; c++ {
		o := &q.oldest[c]
		if o.count == 0 {
			continue
		}
		if now >= o.until {
			q.look(c, t, now)
		}
		b.until = min(b.until, o.until)
		if b.old < 0 || o.used < q.oldest[b.old].used {
			b.old = int16(c)
		}
		if o.used >= horizon {
			b.to = min(b.to, o.used)
			continue
		}
		b.from = max(b.from, o.used+1)
		if b.worst < 0 || o.before(&q.oldest[b.worst]) {
			b.worst = int16(c)
		}
	}
	q.best[g] = b
	if b.old < 0 {
		q.some &^= 1 << g
	}
}

func (q *queue) look(c int, t *table, now uint64) {
	o := &q.oldest[c]
	o.used = q.lists.Of(q.lists.Back(c)).used()
	o.until = math.MaxUint64
	b := ageBin(now - o.used)
	o.index = t[c][b]
	if end := binEnd(b); end < math.MaxUint64-o.used {
		o.until = o.used + end
	}
}

func (q *queue) memoryBytes() uint64 { return q.lists.MemoryBytes() }
