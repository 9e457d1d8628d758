package adaptive

import "github.com/mooncake-agent/mooncake/eviction"

// known remembers keys that were seen, resident or not, with what the classes need to know of them: 4 bytes a
// key in buckets of eight, the least recently used of a bucket is overwritten. A key that was not seen is
// taken for known once in about 100,000.
//
//	bits 31..12 fingerprint   11..8 reuse (up to 15)   7..4 turn (up to 15)   3..0 not used
type known struct {
	slots []uint32 // 0 empty; in each bucket most recently used first
}

const bucket = 8

func newKnown(keys uint64) known {
	return known{make([]uint32, bucket*max(1, keys/bucket))}
}

func (k *known) bucket(key uint64) (b []uint32, print uint32) {
	n := uint64(len(k.slots) / bucket)
	at := int((key >> 32 * n) >> 32)
	return k.slots[at*bucket : (at+1)*bucket], uint32(key)&^0xfff | 1
}

// get returns what is known of a key.
func (k *known) get(key uint64) (turn, reuse uint8, ok bool) {
	b, print := k.bucket(key)
	for _, s := range b {
		if s&^0xffe == print {
			return uint8(s >> 4 & 15), uint8(s >> 8 & 15), true
		}
	}
	return 0, 0, false
}

// set remembers a key as the most recent.
func (k *known) set(key uint64, turn, reuse uint8) {
	b, print := k.bucket(key)
	i := 0
	for i < bucket-1 && b[i]&^0xffe != print && b[i] != 0 {
		i++
	}
	copy(b[1:i+1], b[:i])
	b[0] = print | uint32(min(turn, 15))<<4 | uint32(min(reuse, 15))<<8
}

// fetch reads the buckets of keys that come or go, see order.Fetcher.
func (k *known) fetch(events []eviction.Event) (sum uint32) {
	for i := range events {
		switch e := &events[i]; e.Kind {
		case eviction.Insert, eviction.Restore, eviction.Remove:
			b, _ := k.bucket(e.KeyHash)
			sum += b[0]
		}
	}
	return sum
}

func (k *known) memoryBytes() uint64 { return uint64(cap(k.slots)) * 4 }
