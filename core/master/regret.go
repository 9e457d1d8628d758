package master

import "github.com/mooncake-agent/mooncake/eviction"

// regret remembers keys that were evicted, or that the policy did not want, to count how many of them
// are asked for again soon. Evicted keys are a sample of 1/16 by hash; 12 bytes for each of 65536 slots, where a
// newer key takes the place of an older one. Guarded by domain.mu.
type regret struct {
	slots []regretSlot
}

type regretSlot struct {
	tag uint32 // of the hash; 0 none
	at  uint32 // seconds
	why uint8
}

const (
	regretBits          = 16
	regretMask   uint64 = 15 // evicted keys with hash&regretMask == 0 are remembered
	wasEvicted          = 1
	wasRefused          = 2
	regretWeight        = 16 // keys that one of the sample stands for
)

func (r *regret) slot(hash uint64) (*regretSlot, uint32) {
	if r.slots == nil {
		r.slots = make([]regretSlot, 1<<regretBits)
	}
	return &r.slots[hash>>8&(1<<regretBits-1)], uint32(hash>>32) | 1
}

func (r *regret) evicted(hash, nowMS uint64) {
	if hash&regretMask == 0 {
		s, tag := r.slot(hash)
		*s = regretSlot{tag, uint32(nowMS / 1000), wasEvicted}
	}
}

func (r *regret) refused(hash, nowMS uint64) {
	s, tag := r.slot(hash)
	*s = regretSlot{tag, uint32(nowMS / 1000), wasRefused}
}

// asked returns why a key that was asked for is not there, 0 if that is not known or longer ago than window
// seconds.
func (r *regret) asked(hash, nowMS uint64, window uint32) uint8 {
	if r.slots == nil {
		return 0
	}
	s, tag := r.slot(hash)
	if s.tag != tag {
		return 0
	}
	why := s.why
	if uint32(nowMS/1000)-s.at > window {
		why = 0
	}
	*s = regretSlot{}
	return why
}

// regretted counts a key that was asked for and is not there; called with mu held.
func (d *domain) regretted(e *eviction.Event) {
	if e.Size != 0 {
		return // it is about to be put: nobody asked for its bytes
	}
	switch d.regret.asked(e.KeyHash, e.NowMS, uint32(d.s.cfg.RegretWindow.Seconds())) {
	case wasEvicted:
		d.count.regret.Add(regretWeight)
	case wasRefused:
		d.count.refusedAsked.Add(1)
	}
}
