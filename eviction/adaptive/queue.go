package adaptive

import (
	"math"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/order"
)

// queue holds members (handles of the store, or slots of the sample) in one list per class, most recently
// used in front, and finds the one with the lowest index among the oldest of each class.
type queue struct {
	lists  order.Lists
	class  []uint8  // by member
	last   []uint64 // ms of the last use by member
	oldest [classes]oldest
}

// oldest is what worst last saw of the oldest member of a class. It stays true until that member changes, gets
// into the next age bin, or there is a new table.
type oldest struct {
	count int
	index float32
	used  uint64 // when it was last used
	until uint64 // good for times below; 0 = look again
}

func newQueue(members uint32) queue {
	return queue{
		lists: order.NewLists(members, classes),
		class: make([]uint8, int(members)+1), last: make([]uint64, int(members)+1),
	}
}

func (q *queue) push(h eviction.Handle, class uint8, now uint64) {
	q.class[h], q.last[h] = class, now
	q.lists.PushFront(int(class), h)
	if o := &q.oldest[class]; o.count == 0 {
		*o = oldest{count: 1}
	} else {
		o.count++
	}
}

func (q *queue) remove(h eviction.Handle) {
	q.leave(h)
	q.lists.Remove(h)
}

func (q *queue) leave(h eviction.Handle) {
	c := q.class[h]
	o := &q.oldest[c]
	o.count--
	if o.until != 0 && q.last[h] <= o.used && q.lists.Back(int(c)) == h {
		o.until = 0
	}
}

func (q *queue) touch(h eviction.Handle, class uint8, now uint64) {
	q.leave(h)
	q.class[h], q.last[h] = class, now
	q.lists.MoveFront(int(class), h)
	if o := &q.oldest[class]; o.count == 0 {
		*o = oldest{count: 1}
	} else {
		o.count++
	}
}

// tableChanged makes worst look at every class again.
func (q *queue) tableChanged() {
	for c := range q.oldest {
		q.oldest[c].until = 0
	}
}

// worst returns the member with the lowest index among those last used before the horizon, the older of two that
// are equal; if none is so old, the oldest of all; 0 if there is none.
func (q *queue) worst(t *table, now, horizon uint64) eviction.Handle {
	best, old := -1, -1
	for c := range q.oldest {
		o := &q.oldest[c]
		if o.count == 0 {
			continue
		}
		if now >= o.until {
			q.look(c, t, now)
		}
		if old < 0 || o.used < q.oldest[old].used {
			old = c
		}
		if o.used >= horizon {
			continue
		}
		if best < 0 {
			best = c
			continue
		}
		if w := &q.oldest[best]; o.index < w.index || o.index == w.index && o.used < w.used {
			best = c
		}
	}
	if best < 0 {
		best = old
	}
	if best < 0 {
		return 0
	}
	return q.lists.Back(best)
}

func (q *queue) look(c int, t *table, now uint64) {
	o := &q.oldest[c]
	o.used = q.last[q.lists.Back(c)]
	o.until = math.MaxUint64
	b := ageBin(now - o.used)
	o.index = t[c][b]
	if end := binEnd(b); end < math.MaxUint64-o.used {
		o.until = o.used + end
	}
}

func (q *queue) memoryBytes() uint64 {
	return q.lists.MemoryBytes() + uint64(cap(q.class)) + uint64(cap(q.last))*8
}
