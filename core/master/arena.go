package master

import "math/bits"

// arena holds the key bytes of a shard, each once, in blocks of equal slots; so a million keys are a few
// thousand allocations without pointers. A reference is the slot's class and number.
type arena struct {
	classes [arenaClasses]arenaClass
}

type arenaClass struct {
	blocks [][]byte // slotsPerBlock slots each; one slot each for the last class
	free   []uint32
	next   uint32
}

const (
	slotsPerBlock = 64
	// Slots of 8, 16, ... 256 bytes, then of 4 sizes for each power of two up to 8 KiB, then single slots.
	smallClasses  = 32
	smallStep     = 8
	largeClasses  = 20
	hugeClass     = smallClasses + largeClasses
	arenaClasses  = hugeClass + 1
	slotBits      = 26
	largestSlot   = smallClasses * smallStep << (largeClasses / 4)
	arenaMaxSlots = 1<<slotBits - 1
)

// arenaClassOf returns the class for n bytes and the size of its slots.
func arenaClassOf(n int) (class, size int) {
	if n <= smallClasses*smallStep {
		c := (max(n, 1) - 1) / smallStep
		return c, (c + 1) * smallStep
	}
	if n > largestSlot {
		return hugeClass, n
	}
	e := bits.Len(uint(n-1)) - 1 // 2^e < n <= 2^(e+1), e >= 8
	quarter := 1 << (e - 2)
	q := (n - 1<<e + quarter - 1) / quarter // 1..4
	return smallClasses + (e-8)*4 + q - 1, 1<<e + q*quarter
}

// add copies key. ok is false when the shard cannot hold more keys of this size.
func (a *arena) add(key string) (at uint32, ok bool) {
	class, size := arenaClassOf(len(key))
	c := &a.classes[class]
	var slot uint32
	switch n := len(c.free); {
	case n > 0:
		slot = c.free[n-1]
		c.free = c.free[:n-1]
		if class == hugeClass {
			c.blocks[slot] = make([]byte, len(key))
		}
	case c.next == arenaMaxSlots:
		return 0, false
	case class == hugeClass:
		slot = c.next
		c.next++
		c.blocks = append(c.blocks, make([]byte, len(key)))
	default:
		slot = c.next
		c.next++
		if int(slot/slotsPerBlock) == len(c.blocks) {
			c.blocks = append(c.blocks, make([]byte, slotsPerBlock*size))
		}
	}
	at = uint32(class)<<slotBits | slot
	copy(a.get(at, uint32(len(key))), key)
	return at, true
}

// get returns the bytes of a key of length n.
func (a *arena) get(at, n uint32) []byte {
	class, slot := at>>slotBits, at&arenaMaxSlots
	c := &a.classes[class]
	if class == hugeClass {
		return c.blocks[slot]
	}
	b := c.blocks[slot/slotsPerBlock]
	i := slot % slotsPerBlock * uint32(len(b)/slotsPerBlock)
	return b[i : i+n]
}

func (a *arena) remove(at uint32) {
	class, slot := at>>slotBits, at&arenaMaxSlots
	c := &a.classes[class]
	if class == hugeClass {
		c.blocks[slot] = nil
	}
	c.free = append(c.free, slot)
}
