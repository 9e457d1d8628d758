package master

import (
	"fmt"
	"time"

	"github.com/mooncake-agent/mooncake/eviction"
)

// guard compares a domain's policy with what a tail-first LRU of the same room would have done: a shadow cache
// of a sample of the keys, by hash. A block is a useful hit when all blocks of its request before it are
// there too, for both: in the store by the whole request, in the shadow by the sampled part of it.
//
// Keys are sampled, not chains: chains that share their first block (a system prompt) cannot be told
// apart by it, and a sample of keys needs exactly its share of the room. 1/16 of the keys, more in small
// domains. 2 bytes a key of the domain. Guarded by domain.mu.
type guard struct {
	on     bool
	mask   uint64 // keys with hash&mask == 0 are in the sample
	cache  shadow
	use    uint64 // bytes of the domain's resident objects
	keys   int    // resident objects
	batch  uint32 // number of the call whose keys are being looked at
	deeper []bool // which of its sampled keys the shadow had, deepest first

	minute  int64 // number of the present bucket
	now     guardBucket
	last    [guardMinutes]guardBucket
	worseAt int64 // since when the policy has been worse, 0 if it is not
	alarm   bool
}

// guardBucket counts the sampled keys of one minute that were asked for.
type guardBucket struct{ asked, store, shadow uint64 }

const (
	guardMinutes = 10               // in which a policy may be worse
	guardMargin  = 0.01             // by so much
	guardLeast   = 1000             // sampled keys asked for, below which nothing is concluded
	guardSample  = 4096             // keys of a sample from which on it may be halved
	guardMask    = 15               // the smallest sample is 1/16
	minuteMS     = int64(60 * 1000) // a bucket
)

// start begins anew for another policy.
func (g *guard) start(on bool) {
	use, keys := g.use, g.keys
	*g = guard{on: on, use: use, keys: keys}
}

// restart forgets the comparison: the policy began anew.
func (g *guard) restart() {
	g.now, g.last, g.worseAt = guardBucket{}, [guardMinutes]guardBucket{}, 0
}

// Marks of events on their way from a request to the guard; no policy sees them.
const (
	flagAsk  eviction.Flags = 64  // a request wants the block: its first question for it
	flagLead eviction.Flags = 128 // all blocks before it in the request are there
	marks                   = flagAsk | flagLead
)

// observe follows one event of the domain before the LRU does, and takes the marks off.
func (d *domain) observe(e *eviction.Event) {
	g := &d.guard
	flags := e.Flags
	e.Flags &^= marks
	switch e.Kind {
	case eviction.Insert:
		g.use += e.Size
		g.keys++
	case eviction.Remove:
		g.use -= min(g.use, e.Size)
		g.keys--
		if e.Code == eviction.CodeEvicted {
			d.regret.evicted(e.KeyHash, e.NowMS)
		}
	case eviction.Access:
		e.Segment = 0
	case eviction.Ghost:
		e.Segment = 0
		d.regretted(e)
	}
	if g.on && e.KeyHash&g.mask == 0 {
		g.observe(e, flags)
	}
}

func (g *guard) observe(e *eviction.Event, flags eviction.Flags) {
	c := &g.cache
	switch e.Kind {
	case eviction.Insert, eviction.Access, eviction.Probe, eviction.Ghost:
	case eviction.Remove:
		if e.Code != eviction.CodeEvicted {
			c.remove(e.KeyHash)
		}
		return
	default:
		return
	}
	there := c.find(e.KeyHash)
	if flags&flagAsk != 0 {
		if e.Req != g.batch {
			g.close()
			g.batch = e.Req
		}
		g.deeper = append(g.deeper, there != 0)
		g.now.asked++
		if flags&flagLead != 0 && e.Kind != eviction.Ghost {
			g.now.store++
		}
	}
	switch {
	case there != 0 && e.Kind != eviction.Probe:
		c.touch(there)
	case there == 0 && e.Kind != eviction.Ghost:
		c.insert(e.KeyHash, e.Size)
		g.fit()
	}
}

// close counts the leading hits of the shadow in the batch that has ended.
func (g *guard) close() {
	for i := len(g.deeper) - 1; i >= 0 && g.deeper[i]; i-- {
		g.now.shadow++
	}
	g.deeper = g.deeper[:0]
}

// fit keeps the shadow within its share of the room that the domain really uses.
func (g *guard) fit() {
	if g.mask < guardMask && g.cache.n > guardSample {
		g.mask = g.mask<<1 | 1
		g.cache.thin(g.mask)
	}
	share := g.use / (g.mask + 1)
	for g.cache.bytes > share && g.cache.n > 1 {
		g.cache.remove(g.cache.hash[g.cache.back])
	}
}

// judge closes the minute when it is over; it returns "alarm" when the policy has been worse for too long,
// once.
func (g *guard) judge(now int64, running bool) (verdict string) {
	m := now / minuteMS
	if !g.on || m == g.minute {
		return ""
	}
	g.close()
	if g.minute != 0 && g.now.asked > 0 {
		copy(g.last[1:], g.last[:])
		g.last[0] = g.now
		sum := g.sum()
		switch {
		case sum.asked < guardLeast:
		case !running || sum.lag() <= guardMargin:
			g.worseAt, g.alarm = 0, false
		case g.worseAt == 0:
			g.worseAt = g.minute * minuteMS
		}
	}
	g.minute, g.now = m, guardBucket{}
	if g.worseAt != 0 && !g.alarm && now-g.worseAt >= guardMinutes*minuteMS {
		g.alarm = true
		return "alarm"
	}
	return ""
}

// sum is what was counted in the last minutes that had traffic.
func (g *guard) sum() (t guardBucket) {
	for _, b := range g.last {
		t.asked += b.asked
		t.store += b.store
		t.shadow += b.shadow
	}
	return t
}

// lag is by how much of what was asked for the store is behind the shadow.
func (b guardBucket) lag() float64 {
	if b.asked == 0 {
		return 0
	}
	return (float64(b.shadow) - float64(b.store)) / float64(b.asked)
}

// judged acts on a verdict; called with mu held.
func (d *domain) judged(_ string, now int64) {
	sum := d.guard.sum()
	d.s.counters.GuardAlarms.Add(1)
	d.count.alarms.Add(1)
	text := fmt.Sprintf("%.1f%% useful hits, the built-in LRU would have %.1f%%, for %v", 100*float64(sum.store)/float64(sum.asked),
		100*float64(sum.shadow)/float64(sum.asked), time.Duration(now-d.guard.worseAt)*time.Millisecond)
	if d.rule.Guard == GuardAlarm {
		d.s.log.Error("eviction policy is worse than the built-in LRU; guard=alarm keeps it", "domain", d.name, "policy", d.rule.name(), "seen", text)
		return
	}
	d.s.log.Error("eviction policy is worse than the built-in LRU, which serves from now on; mooncake policy set chooses anew", "domain", d.name, "policy", d.rule.name(), "seen", text)
	closePolicy(d.policy)
	d.policy, d.fallen, d.fault = nil, true, "worse than the built-in LRU: "+text
	d.dropReserve()
}

// shadow is an LRU of key hashes with sizes: 28 bytes a key and 8 for the table.
type shadow struct {
	table       index
	hash        []uint64 // by entry; 0 is none
	size        []uint64
	prev, next  []uint32
	free        []uint32
	front, back uint32
	n           int
	bytes       uint64
}

func (c *shadow) find(hash uint64) uint32 {
	x := &c.table
	if x.used == 0 {
		return 0
	}
	mask := uint32(len(x.slots) - 1)
	for i := spread(hash) & mask; ; i = (i + 1) & mask {
		s := x.slots[i]
		if s.object == 0 {
			return 0
		}
		if s.tag == spread(hash) && c.hash[s.object] == hash {
			return s.object
		}
	}
}

// spread is the part of a hash that sampling left at random.
func spread(hash uint64) uint32 { return uint32(hash >> 16) }

func (c *shadow) insert(hash, size uint64) {
	var i uint32
	if n := len(c.free); n > 0 {
		i = c.free[n-1]
		c.free = c.free[:n-1]
	} else {
		if len(c.hash) == 0 {
			c.hash, c.size, c.prev, c.next = make([]uint64, 1, 64), make([]uint64, 1, 64), make([]uint32, 1, 64), make([]uint32, 1, 64)
		}
		i = uint32(len(c.hash))
		c.hash, c.size, c.prev, c.next = append(c.hash, 0), append(c.size, 0), append(c.prev, 0), append(c.next, 0)
	}
	c.hash[i], c.size[i] = hash, size
	c.table.insert(uint64(spread(hash)), i)
	c.push(i)
	c.n++
	c.bytes += size
}

func (c *shadow) push(i uint32) {
	c.prev[i], c.next[i] = 0, c.front
	if c.front == 0 {
		c.back = i
	} else {
		c.prev[c.front] = i
	}
	c.front = i
}

func (c *shadow) unlink(i uint32) {
	p, n := c.prev[i], c.next[i]
	if p == 0 {
		c.front = n
	} else {
		c.next[p] = n
	}
	if n == 0 {
		c.back = p
	} else {
		c.prev[n] = p
	}
}

func (c *shadow) touch(i uint32) {
	if c.front != i {
		c.unlink(i)
		c.push(i)
	}
}

func (c *shadow) remove(hash uint64) {
	i := c.find(hash)
	if i == 0 {
		return
	}
	c.unlink(i)
	c.table.remove(uint64(spread(hash)), i)
	c.bytes -= c.size[i]
	c.n--
	c.free = append(c.free, i)
}

// thin removes what is not in a smaller sample.
func (c *shadow) thin(mask uint64) {
	for i := c.back; i != 0; {
		p := c.prev[i]
		if c.hash[i]&mask != 0 {
			c.remove(c.hash[i])
		}
		i = p
	}
}

func (c *shadow) memoryBytes() uint64 {
	return uint64(cap(c.hash))*24 + uint64(len(c.table.slots))*8 + uint64(cap(c.free))*4
}
