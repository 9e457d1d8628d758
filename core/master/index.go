package master

// index maps key hashes to object numbers of one shard: open addressing with linear probing, 8 bytes a
// slot. A slot keeps 32 bits of the hash, enough to find its home and to grow without reading objects.
type index struct {
	slots []indexSlot // a power of two of them
	used  int
}

type indexSlot struct {
	tag    uint32 // low half of the hash
	object uint32 // 0 empty
}

func (x *index) insert(hash uint64, object uint32) {
	if (x.used+1)*4 > len(x.slots)*3 {
		x.resize(max(16, 2*len(x.slots)))
	}
	x.put(indexSlot{uint32(hash), object})
	x.used++
}

func (x *index) put(s indexSlot) {
	mask := uint32(len(x.slots) - 1)
	i := s.tag & mask
	for x.slots[i].object != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = s
}

func (x *index) resize(n int) {
	old := x.slots
	x.slots = make([]indexSlot, n)
	for _, s := range old {
		if s.object != 0 {
			x.put(s)
		}
	}
}

// remove takes out an object that is there.
func (x *index) remove(hash uint64, object uint32) {
	mask := uint32(len(x.slots) - 1)
	i := uint32(hash) & mask
	for x.slots[i].object != object {
		i = (i + 1) & mask
	}
	// Close the gap: move back what would no longer be found across it.
	for j := i; ; {
		j = (j + 1) & mask
		s := x.slots[j]
		if s.object == 0 {
			break
		}
		if home := s.tag & mask; (j-home)&mask >= (j-i)&mask {
			x.slots[i] = s
			i = j
		}
	}
	x.slots[i] = indexSlot{}
	x.used--
	if len(x.slots) > 64 && x.used*8 < len(x.slots) {
		x.resize(len(x.slots) / 4)
	}
}
