package master

import (
	"sync"

	"github.com/mooncake-agent/mooncake/eviction"
)

// chains remembers which keys were asked for lately and were not there, so that the put of the rest of a chain
// is told with its place in the chain: a client asks for all blocks of a request in order, reads those that
// are there and puts the others. Questions carry no client id, so the keys themselves tell who
// belongs to whom: the put of a key that somebody has just missed continues that chain.
//
// It also tells the read that follows a question from a request of its own, so that the same blocks are not
// counted twice. A newer entry takes the place of an older one: 1.5 MiB for a domain with a policy.
type chains struct {
	mu    sync.Mutex // a leaf
	miss  []missed   // by key hash
	first []firstKey // by hash of the first key of a question
}

// missed is a key that was not there.
type missed struct {
	hash, prev uint64 // its own, and that of the key before it in the chain
	depth      uint32
	matched    uint32 // leading keys of the chain that were there
}

type firstKey struct {
	hash    uint64
	at      int64
	matched uint32
	_       uint32
}

const (
	missBits  = 16
	firstBits = 12
	// askedTime is how long a read after a question for the same chain belongs to it, in milliseconds.
	askedTime = 60_000
)

// ask notes a question for the keys with the given hashes, of which the first matched and those that are there are
// there. base is the place of the first one in the chain.
func (c *chains) ask(p *piece, n int, base, matched uint32, before uint64, told bool, now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if base == 0 {
		if c.first == nil {
			c.first = make([]firstKey, 1<<firstBits)
		}
		c.first[p.hashes[0]>>8&(1<<firstBits-1)] = firstKey{hash: p.hashes[0], at: now, matched: matched}
	}
	if !told {
		return
	}
	if c.miss == nil {
		c.miss = make([]missed, 1<<missBits)
	}
	for i := range n {
		if p.nums[i] == 0 {
			m := missed{hash: p.hashes[i], prev: before, depth: base + uint32(i), matched: matched}
			if i > 0 {
				m.prev = p.hashes[i-1]
			}
			c.miss[m.hash>>8&(1<<missBits-1)] = m
		}
	}
}

// read tells whether a read whose first key has the given hash follows a question for it, and what was found
// then. It counts for one read.
func (c *chains) read(hash uint64, now int64) (matched uint32, asked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first == nil {
		return 0, false
	}
	f := &c.first[hash>>8&(1<<firstBits-1)]
	if f.hash != hash || now-f.at > askedTime {
		return 0, false
	}
	matched = f.matched
	*f = firstKey{}
	return matched, true
}

// find returns the place of a key that was missed lately.
func (c *chains) find(hash uint64) (m missed, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.miss == nil {
		return m, false
	}
	m = c.miss[hash>>8&(1<<missBits-1)]
	return m, m.hash == hash
}

// leading is the number of keys at the beginning of a piece that can be read.
func (s *Service) leading(p *piece, n int) int {
	for i := range n {
		if p.nums[i] == 0 {
			return i
		}
		sh, _ := s.shardOf(p.hashes[i])
		if !s.hasReadable(sh, sh.objects.at(p.nums[i])) {
			return i
		}
	}
	return n
}

// byHash returns the object with a hash, without comparing keys: for hints. Its shard must be locked.
func (sh *shard) byHash(hash uint64, tenant uint16) *object {
	x := &sh.index
	if x.used == 0 {
		return nil
	}
	mask := uint32(len(x.slots) - 1)
	tag := uint32(hash)
	for i := tag & mask; x.slots[i].object != 0; i = (i + 1) & mask {
		if x.slots[i].tag == tag {
			if o := sh.objects.at(x.slots[i].object); o.hash == hash && o.tenant == tenant {
				return o
			}
		}
	}
	return nil
}

// partial reports whether the last object of a batch is smaller than the others: a block that is not full.
func partial(size, others uint64) eviction.Flags {
	if size < others {
		return eviction.FlagPartial
	}
	return 0
}
