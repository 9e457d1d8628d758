package order

import "math/bits"

// index is an open-addressing hash table from keys to slots of an array, linear probing, 5 bytes an entry. The
// keys live with the caller, by slot: 64-bit hashes, or 32-bit fingerprints where memory counts more than one
// mistake in thousands.
type index[K uint32 | uint64] struct {
	t []uint32 // slot + 1; 0 empty
}

// newIndex makes a table for at most n entries.
func newIndex[K uint32 | uint64](n int) index[K] { return index[K]{make([]uint32, n+n/4+8)} }

// fingerprint of a key hash. Two keys that share one are taken for the same: 1 in 400 at 10 M ghosts.
func fingerprint(key uint64) uint32 { return uint32(key>>32) ^ uint32(key) }

// home is where a search for key starts. The multiplication spreads keys that the caller did not hash well.
func (x *index[K]) home(key K) int {
	hi, _ := bits.Mul64(uint64(key)*0x9e3779b97f4a7c15, uint64(len(x.t)))
	return int(hi)
}

func (x *index[K]) next(i int) int {
	if i++; i == len(x.t) {
		return 0
	}
	return i
}

// find returns the place of key in the table, or of the empty place where the search ended.
func (x *index[K]) find(key K, keys []K) (at int, found bool) {
	at = x.home(key)
	for x.t[at] != 0 {
		if keys[x.t[at]-1] == key {
			return at, true
		}
		at = x.next(at)
	}
	return at, false
}

// drop empties a place and moves later entries of the same run up, so that no tombstones are needed.
func (x *index[K]) drop(at int, keys []K) {
	hole := at
	for i := x.next(at); x.t[i] != 0; i = x.next(i) {
		home := x.home(keys[x.t[i]-1])
		// The entry may move to the hole unless its home lies in (hole, i], going round.
		if hole <= i {
			if home > hole && home <= i {
				continue
			}
		} else if home > hole || home <= i {
			continue
		}
		x.t[hole] = x.t[i]
		hole = i
	}
	x.t[hole] = 0
}
