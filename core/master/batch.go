package master

import (
	"math/bits"
	"sync"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// Batch calls that concern the eviction order hold all shards of their keys at once, in pieces: so their
// events reach the policy back to back, the deepest block first, and none of their objects can change in
// between. A long batch is served from its end, piece by piece; its answers keep the order of the keys.

// pieceKeys is the number of keys for which shards are held at a time.
const pieceKeys = 256

// piece is the scratch of one batch call.
type piece struct {
	hashes [pieceKeys]uint64
	nums   [pieceKeys]uint32 // object numbers, 0 not found
	fresh  [pieceKeys]bool   // to be announced
	locked [numShards / 64]uint64
	before uint64 // hash of the key before the first one of a put, 0 none
}

var pieces = sync.Pool{New: func() any { return new(piece) }}

func (s *Service) lockShards(p *piece) {
	for w, m := range p.locked {
		for ; m != 0; m &= m - 1 {
			s.shards[w*64+bits.TrailingZeros64(m)].mu.Lock()
		}
	}
}

func (s *Service) unlockShards(p *piece) {
	for w, m := range p.locked {
		for ; m != 0; m &= m - 1 {
			s.shards[w*64+bits.TrailingZeros64(m)].mu.Unlock()
		}
	}
}

// hold locks the shards of up to pieceKeys keys and looks the keys up.
func (s *Service) hold(p *piece, t *tenant, n int, key func(int) string) {
	p.locked = [numShards / 64]uint64{}
	if p.before != 0 {
		shard := p.before >> (64 - shardBits)
		p.locked[shard/64] |= 1 << (shard % 64)
	}
	for i := range n {
		h := eviction.KeyHash(t.name, key(i))
		p.hashes[i] = h
		shard := h >> (64 - shardBits)
		p.locked[shard/64] |= 1 << (shard % 64)
	}
	s.lockShards(p)
	for i := range n {
		sh, _ := s.shardOf(p.hashes[i])
		p.nums[i] = sh.find(p.hashes[i], t.number, key(i))
	}
}

// inPieces calls f for the ranges of a batch, the last first.
func inPieces(n int, f func(from, to int)) {
	for to := n; to > 0; {
		from := max(0, to-pieceKeys)
		f(from, to)
		to = from
	}
}

// chainAt is the place of key i of a batch piece in its chain; c has the place of the batch.
func (s *Service) chainAt(p *piece, i, from int, c chain) chain {
	c.depth += uint32(from + i)
	if i > 0 {
		c.parent = 0
		if p.nums[i-1] != 0 {
			sh, _ := s.shardOf(p.hashes[i-1])
			c.parent = sh.objects.at(p.nums[i-1]).handle
		}
	}
	return c
}

// continues gives a put its place in the chain whose first missing key it brings: the place of the batch, and the
// object before its first key. The shard of that one is locked with those of the piece.
func (s *Service) continues(p *piece, d *domain, t *tenant, key string, c *chain) {
	if !d.told.Load() {
		return
	}
	m, ok := d.chains.find(eviction.KeyHash(t.name, key))
	if !ok {
		return
	}
	c.depth, c.matched, p.before = m.depth, m.matched, m.prev
}

// parentOf returns the handle of the object before the first key of a batch, 0 if it is not there.
func (s *Service) parentOf(p *piece, t *tenant) eviction.Handle {
	if p.before == 0 {
		return 0
	}
	sh, _ := s.shardOf(p.before)
	if o := sh.byHash(p.before, t.number); o != nil {
		return o.handle
	}
	return 0
}

// BatchPutEnd is PutEnd for several keys.
func (s *Service) BatchPutEnd(req *wire.BatchPutEndRequest, resp *[]wire.Result[wire.Void]) {
	s.batchEnd(req, resp, req.Type)
	count(&s.counters.BatchPutEnd, *resp)
}

func (s *Service) batchEnd(req *wire.BatchPutEndRequest, resp *[]wire.Result[wire.Void], typ wire.ReplicaType) {
	out := results(resp, len(req.Metas))
	t, code := s.readTenant(req.Tenant)
	if code == wire.OK && t == nil {
		code = wire.ErrObjectNotFound
	}
	if code != wire.OK {
		for i := range out {
			out[i].Code = code
		}
		return
	}
	now := s.now()
	p := pieces.Get().(*piece)
	defer pieces.Put(p)
	c := chain{req: t.dom().request(), batch: len(out) > 1}
	if p.before = 0; len(out) > 0 {
		s.continues(p, t.dom(), t, req.Metas[0].Key, &c)
	}
	fresh := uint32(0)
	inPieces(len(out), func(from, to int) {
		metas := req.Metas[from:to]
		s.hold(p, t, len(metas), func(i int) string { return metas[i].Key })
		at0 := c
		if from == 0 {
			at0.parent = s.parentOf(p, t)
		}
		for i := range metas {
			sh, si := s.shardOf(p.hashes[i])
			n := p.nums[i]
			if n != 0 && sh.live(n) == nil {
				n = 0 // an earlier key of this batch named the same object, which is gone
			}
			p.fresh[i], out[from+i].Code = s.endOf(sh, si, n, req.Client, &metas[i], typ, now)
			if p.fresh[i] {
				s.announce(t.dom(), makeRef(si, n), sh.objects.at(n))
				fresh++
			} else if n != 0 && sh.live(n) == nil {
				p.nums[i] = 0
			}
		}
		at0.added = fresh + uint32(from) // the keys before this piece are taken to be new, too
		for i := len(metas) - 1; i >= 0; i-- {
			if p.fresh[i] {
				sh, si := s.shardOf(p.hashes[i])
				o := sh.objects.at(p.nums[i])
				at := s.chainAt(p, i, from, at0)
				if i > 0 && from+i == len(out)-1 && p.fresh[i-1] {
					first, _ := s.shardOf(p.hashes[i-1])
					at.marks = partial(o.size, first.objects.at(p.nums[i-1]).size)
				}
				s.emitInsert(sh, makeRef(si, p.nums[i]), o, t.dom(), &at, now)
			}
		}
		s.unlockShards(p)
	})
	s.relieve(t.dom(), now)
}

// BatchExistKey is ExistKey for several keys.
func (s *Service) BatchExistKey(req *wire.KeysRequest, resp *[]wire.Result[bool]) {
	out := results(resp, len(req.Keys))
	defer func() { count(&s.counters.BatchExistKey, out) }()
	t, code := s.readTenant(req.Tenant)
	for i := range out {
		out[i] = wire.Result[bool]{Code: code}
	}
	if code != wire.OK || t == nil {
		return
	}
	now := s.now()
	p := pieces.Get().(*piece)
	defer pieces.Put(p)
	d := t.dom()
	told := d.told.Load()
	c := chain{batch: len(out) > 1, marks: flagAsk}
	if told {
		c.req = d.request()
	}
	p.before = 0
	inPieces(len(out), func(from, to int) {
		keys := req.Keys[from:to]
		s.hold(p, t, len(keys), func(i int) string { return keys[i] })
		lead := 0
		if told || from == 0 {
			lead = s.leading(p, len(keys))
			s.asked(p, d, t, req.Keys, from, lead, told, now)
		}
		for i := len(keys) - 1; i >= 0; i-- {
			sh, _ := s.shardOf(p.hashes[i])
			n := p.nums[i]
			ok := n != 0 && s.hasReadable(sh, sh.objects.at(n))
			out[from+i].Value = ok
			if ok {
				s.grantProbe(sh.objects.at(n), now)
			}
			if told {
				at := s.chainAt(p, i, from, c)
				if i < lead {
					at.marks |= flagLead
				}
				if ok {
					s.emitProbe(sh.objects.at(n), t.dom(), &at, now)
				} else {
					s.emitGhost(t.dom(), t, p.hashes[i], 0, &at, now)
				}
			} else if !ok {
				s.emitGhost(t.dom(), t, p.hashes[i], 0, &c, now)
			}
		}
		s.unlockShards(p)
	})
	d.count.exist.add(len(out), func(i int) bool { return out[i].Value })
}

// asked notes a piece of a question, so that the read and the put that follow it are known to belong to it.
func (s *Service) asked(p *piece, d *domain, t *tenant, keys []string, from, lead int, told bool, now int64) {
	before := uint64(0)
	if from > 0 {
		before = eviction.KeyHash(t.name, keys[from-1])
	}
	n := min(len(keys)-from, pieceKeys)
	d.chains.ask(p, n, uint32(from), uint32(from+lead), before, told, now)
}

// BatchGetReplicaList is GetReplicaList for several keys.
func (s *Service) BatchGetReplicaList(req *wire.KeysRequest, resp *[]wire.Result[wire.ReplicaList]) {
	out := results(resp, len(req.Keys))
	defer func() { count(&s.counters.BatchGetReplicaList, out) }()
	t, code := s.readTenant(req.Tenant)
	if code == wire.OK && t == nil {
		code = wire.ErrObjectNotFound
	}
	for i := range out {
		v := &out[i].Value
		v.Replicas, v.LeaseTTLMS, v.Checksum = v.Replicas[:0], 0, wire.Opt[uint64]{}
		out[i].Code = code
	}
	if code != wire.OK {
		return
	}
	now := s.now()
	p := pieces.Get().(*piece)
	defer pieces.Put(p)
	d := t.dom()
	told := d.told.Load()
	c := chain{batch: len(out) > 1, get: true, req: d.request()}
	// A read that follows a question for the same chain is no request of its own.
	follows := false
	if len(out) > 0 {
		if c.matched, follows = d.chains.read(eviction.KeyHash(t.name, req.Keys[0]), now); !follows {
			c.marks = flagAsk
		}
	}
	var hits readHits
	p.before = 0
	inPieces(len(out), func(from, to int) {
		keys := req.Keys[from:to]
		s.hold(p, t, len(keys), func(i int) string { return keys[i] })
		lead := 0
		if told && !follows {
			if lead = s.leading(p, len(keys)); lead < len(keys) {
				s.asked(p, d, t, req.Keys, from, lead, told, now)
			}
		}
		for i := len(keys) - 1; i >= 0; i-- {
			sh, si := s.shardOf(p.hashes[i])
			at := s.chainAt(p, i, from, c)
			if i < lead {
				at.marks |= flagLead
			}
			out[from+i].Code = s.read(sh, si, p.nums[i], t, p.hashes[i], &at, now, &out[from+i].Value, &hits)
		}
		s.unlockShards(p)
	})
	s.countReads(&hits, len(out))
	count := &d.count.get
	if follows {
		count = &d.count.follow
	}
	count.add(len(out), func(i int) bool { return out[i].Code == wire.OK })
}
