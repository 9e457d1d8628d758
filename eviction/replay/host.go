package replay

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/mooncake-agent/mooncake/eviction"
)

// host is what the store does about policies that misbehave, on the clock of the trace.
type host struct {
	lru     *hostLRU // made when first needed
	faults  []uint64 // times of the last failures
	retryAt uint64   // when a failed policy is tried again, 0 if it is not
	guard   *guard
	round   uint64   // number of the present search for room
	turned  []uint64 // by handle: last round in which it was proposed and not taken; nil until that happens
}

// A policy that fails so often within so long stays off.
const (
	maxFaults   = 3
	faultWindow = uint64(10 * time.Minute / time.Millisecond)
	never       = math.MaxUint64
)

// maxTurned bounds the victims of one search that are not taken.
const maxTurned = 1 << 14

// instance makes a policy.
func (s *sim) instance() error {
	p, err := s.f.New(s.spec)
	if err != nil {
		return err
	}
	s.p = p
	if s.o.Admission {
		s.admit, _ = p.(eviction.Admitter)
	}
	return nil
}

// failed discards the instance; the host's LRU serves until the policy is tried again.
func (s *sim) failed(err error) {
	s.res.Faults++
	if s.res.Fault == "" {
		s.res.Fault = fmt.Sprintf("at %d ms: %v", s.now, err)
	}
	s.drop()
	f := slices.DeleteFunc(append(s.host.faults, s.now), func(at uint64) bool { return at+faultWindow < s.now })
	s.host.faults = f
	if len(f) >= maxFaults {
		s.host.retryAt = never
		return
	}
	s.host.retryAt = s.now + uint64(time.Second<<(2*(len(f)-1))/time.Millisecond)
}

// drop closes the instance and lets the host's LRU serve.
func (s *sim) drop() {
	if s.p != nil {
		_ = s.p.Close()
	}
	s.p, s.admit = nil, nil
	s.ownLRU()
}

// retry makes a new instance and tells it what is resident, oldest first.
func (s *sim) retry() {
	s.flush() // nobody listens
	s.host.retryAt = 0
	if err := s.instance(); err != nil {
		s.failed(fmt.Errorf("new instance: %w", err))
		return
	}
	l := s.ownLRU()
	for h := l.back; h != 0 && s.p != nil; h = l.newer[h] {
		id := s.ids[h]
		*s.next() = eviction.Event{Kind: eviction.Restore, Handle: h, Size: s.t.Size(id), NowMS: s.now, KeyHash: s.t.keys[id]}
	}
	s.flush()
}

// room makes size bytes free. It reports failure when nothing can go.
func (s *sim) room(size uint64) bool {
	for s.used+size > s.cap {
		if s.o.Watermark > 0 || !s.evict(s.used+size-s.cap) {
			s.res.NoSpace++
			return false
		}
	}
	return true
}

// aboveWatermark evicts as upstream's master does when a greater share of its memory is in use: so many of the objects
// that the use comes down by EvictRatio below the watermark, at least EvictRatio of them.
func (s *sim) aboveWatermark() {
	share := float64(s.used) / float64(s.cap)
	if share <= s.o.Watermark {
		return
	}
	n := math.Ceil(float64(s.count) * max(s.o.EvictRatio, share-s.o.Watermark+s.o.EvictRatio))
	for range int(n) {
		if !s.evict(1) {
			return
		}
	}
}

// evict takes one victim.
func (s *sim) evict(bytes uint64) bool {
	s.flush()
	s.host.round++
	for range maxTurned {
		if s.p == nil {
			break
		}
		v, err := s.p.Victims(s.victims[:0], eviction.Need{Bytes: bytes, Max: 1, Tenant: eviction.AnyTenant})
		if err == nil && len(v) > 1 {
			err = fmt.Errorf("%d victims, asked for 1", len(v))
		}
		if err != nil {
			s.failed(fmt.Errorf("victims: %w", err))
			break
		}
		s.victims = v
		if len(v) == 0 {
			break
		}
		id, ok := s.resident(v[0])
		if ok && (s.lease == nil || s.lease[id] <= s.now) {
			s.remove(id, eviction.CodeEvicted)
			s.res.Evictions++
			return true
		}
		code := eviction.CodeUnknown
		if ok {
			code = eviction.CodeLeased
		}
		if !s.turnDown(v[0], code) {
			break // it has nothing else to say
		}
	}
	h := s.ownLRU().oldest(s)
	if h == 0 {
		return false
	}
	s.res.Helped++
	s.res.Evictions++
	s.remove(s.ids[h], eviction.CodeEvicted)
	return true
}

// resident returns the block that has the handle.
func (s *sim) resident(h eviction.Handle) (id uint32, ok bool) {
	if h == 0 || int(h) >= len(s.ids) {
		return 0, false
	}
	id = s.ids[h]
	return id, int(id) < len(s.st) && s.st[id].handle == h
}

// turnDown tells the policy that a victim was not taken. It reports whether that is new to it.
func (s *sim) turnDown(h eviction.Handle, code eviction.Code) bool {
	e := eviction.Event{Kind: eviction.Reject, Code: code, Handle: h, NowMS: s.now}
	if code == eviction.CodeUnknown {
		s.res.Strikes++
		if int(h) >= len(s.ids) {
			return false // it could not be told
		}
	} else {
		s.res.Leased++
		id := s.ids[h]
		e.Size, e.KeyHash = s.t.Size(id), s.t.keys[id]
	}
	if s.host.turned == nil {
		s.host.turned = make([]uint64, len(s.ids))
	}
	fresh := s.host.turned[h] != s.host.round
	s.host.turned[h] = s.host.round
	*s.next() = e
	s.flush()
	return fresh
}

// ownLRU returns the host's order of the resident blocks, which is kept from the first time that it is needed.
func (s *sim) ownLRU() *hostLRU {
	if s.host.lru != nil {
		return s.host.lru
	}
	l := &hostLRU{older: make([]eviction.Handle, len(s.ids)), newer: make([]eviction.Handle, len(s.ids))}
	var ids []uint32
	for id := range s.st {
		if s.st[id].handle != 0 {
			ids = append(ids, uint32(id))
		}
	}
	slices.SortFunc(ids, func(a, b uint32) int { return cmp.Compare(s.st[a].at, s.st[b].at) })
	for _, id := range ids {
		l.push(s.st[id].handle)
	}
	s.host.lru = l
	return l
}

// hostLRU is a list of handles.
type hostLRU struct {
	older, newer []eviction.Handle
	front, back  eviction.Handle
}

func (l *hostLRU) push(h eviction.Handle) {
	l.older[h], l.newer[h] = l.front, 0
	if l.front != 0 {
		l.newer[l.front] = h
	} else {
		l.back = h
	}
	l.front = h
}

func (l *hostLRU) remove(h eviction.Handle) {
	o, n := l.older[h], l.newer[h]
	if o != 0 {
		l.newer[o] = n
	} else {
		l.back = n
	}
	if n != 0 {
		l.older[n] = o
	} else {
		l.front = o
	}
}

func (l *hostLRU) touch(h eviction.Handle) {
	if h != l.front {
		l.remove(h)
		l.push(h)
	}
}

// oldest returns the oldest handle that may go, 0 if there is none among the first maxTurned.
func (l *hostLRU) oldest(s *sim) eviction.Handle {
	h := l.back
	for range maxTurned {
		if h == 0 || s.lease == nil || s.lease[s.ids[h]] <= s.now {
			return h
		}
		h = l.newer[h]
	}
	return 0
}

// finish closes the policy and adds what it says of itself.
func (s *sim) finish() (Result, error) {
	if s.p == nil {
		return s.res, nil
	}
	if m, ok := s.p.(eviction.MemoryUser); ok {
		s.res.Memory = m.MemoryBytes()
	}
	if g, ok := s.p.(eviction.Supervised); ok {
		v := g.Supervision()
		for _, n := range v.Faults {
			s.res.Faults += n
		}
		for _, n := range v.Strikes {
			s.res.Strikes += n
		}
		s.res.Helped += v.Fallbacks
		if s.res.Fault == "" && v.Fault != "" {
			s.res.Fault = fmt.Sprintf("at %d ms: %s", v.FaultMS, v.Fault)
		}
	}
	return s.res, s.p.Close()
}
