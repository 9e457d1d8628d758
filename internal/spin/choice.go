package spin

import (
	"sync/atomic"
	"time"
)

// Choice finds out whether looking or sleeping is faster for one kind of wait, by trying both: on a machine whose
// processors are idle being woken is slow; on one that is busy looking takes a processor from the very process that is
// to answer. The zero value is ready. Safe for concurrent use.
type Choice struct {
	n    atomic.Uint32
	mean [2]atomic.Int64 // ns of waits that slept and that looked; 0: not known
}

const (
	explore = 32 // one wait in so many takes the way that seems slower
	weight  = 4  // a new time counts for a quarter of the mean
	outlier = 8  // and for no more than so many means
)

// Look tells whether the next wait should look.
func (c *Choice) Look() bool {
	sleeps, looks := c.mean[0].Load(), c.mean[1].Load()
	switch {
	case looks == 0:
		return true
	case sleeps == 0:
		return false
	}
	return (looks < sleeps) != (c.n.Add(1)%explore == 0)
}

// Took reports how long a wait took.
func (c *Choice) Took(looked bool, d time.Duration) {
	m := &c.mean[0]
	if looked {
		m = &c.mean[1]
	}
	old, now := m.Load(), max(int64(d), 1)
	if old > 0 {
		now = max(old+(min(now, outlier*old)-old)/weight, 1)
	}
	m.Store(now) // one of two at the same time is lost, which does no harm
}
