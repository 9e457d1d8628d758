package order

import "github.com/mooncake-agent/mooncake/eviction"

// SecondChance is a queue with a small use counter per handle (CLOCK generalised): a handle that comes to the
// back with a count goes to the front again with one less. The queue turns only when a victim is taken, so
// that naming victims changes nothing.
type SecondChance struct {
	Lists *Lists
	List  int
	Count []uint8 // by handle
	Max   uint8
	Len   int
}

// Push adds h at the front with the given count.
func (q *SecondChance) Push(h eviction.Handle, count uint8) {
	q.Count[h] = count
	q.Lists.PushFront(q.List, h)
	q.Len++
}

// Touch counts a use.
func (q *SecondChance) Touch(h eviction.Handle) {
	if q.Count[h] < q.Max {
		q.Count[h]++
	}
}

// Remove takes h out without turning the queue.
func (q *SecondChance) Remove(h eviction.Handle) {
	q.Lists.Remove(h)
	q.Len--
}

// Take takes h out as a victim: the queue turns until h is at the back with no count.
func (q *SecondChance) Take(h eviction.Handle) {
	for q.Count[h] > 0 {
		for x := q.Lists.Back(q.List); x != 0; x = q.Lists.Newer(x) { // a whole turn keeps the order
			if q.Count[x] > 0 {
				q.Count[x]--
			}
		}
	}
	for x := q.Lists.Back(q.List); x != h; {
		newer := q.Lists.Newer(x)
		if q.Count[x] > 0 {
			q.Count[x]--
			q.Lists.MoveFront(q.List, x)
		}
		x = newer
	}
	q.Remove(h)
}

// Refuse takes h as a victim and puts it back with a full count, behind all others.
func (q *SecondChance) Refuse(h eviction.Handle) {
	q.Take(h)
	q.Push(h, q.Max)
}

// Cursor goes through the handles in the order in which they would be taken.
type Cursor struct {
	q     *SecondChance
	at    eviction.Handle
	count uint8
}

// Cursor starts at the first victim.
func (q *SecondChance) Cursor() Cursor {
	return Cursor{q: q, at: q.Lists.Back(q.List)}
}

// Next returns the next victim, 0 at the end.
func (c *Cursor) Next() eviction.Handle {
	for {
		for h := c.at; h != 0; h = c.q.Lists.Newer(h) {
			if c.q.Count[h] == c.count {
				c.at = c.q.Lists.Newer(h)
				return h
			}
		}
		if c.count >= c.q.Max {
			c.at = 0
			return 0
		}
		c.count++
		c.at = c.q.Lists.Back(c.q.List)
	}
}
