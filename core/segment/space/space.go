// Package space hands out ranges of a segment's address space. It never touches the memory: the
// Store master uses it for segments that live in other processes.
//
// The method is the two-level segregated fit of Sebastian Aaltonen's OffsetAllocator, which upstream
// uses too (mooncake-store/src/offset_allocator.cpp): free ranges are kept in 256 bins whose sizes are floats with
// three mantissa bits, two bitmaps find a bin that fits in a few instructions, and a freed range merges
// with its free neighbours at once. Allocate and Free take constant time.
//
// As upstream, a request is rounded up to the next bin size (at most 12.5 % more), which is what makes
// "the first non-empty bin that is large enough" exact: a request fails only if no free range could hold it.
package space

import (
	"fmt"
	"math"
	"math/bits"
)

const (
	mantissaBits = 3
	mantissa     = 1 << mantissaBits
	binCount     = 32 * mantissa
	// maxUnits is the size of the largest bin that a range counted in 32 bits can have: 3.75 Gi units.
	maxUnits = 15 << 28
	none     = math.MaxUint32
	// blockNodes are allocated at a time: 7 KiB.
	blockNodes = 256
)

// Handle names an allocated range. The zero Handle names none.
type Handle uint32

// Allocator manages one address space of a fixed size. It is not safe for concurrent use.
type Allocator struct {
	size  uint64
	shift uint8 // sizes and offsets are counted in units of 1<<shift bytes
	used  uint64
	count int

	top   uint32              // bit e: leaf[e] is not 0
	leaf  [32]uint8           // bit m: bin e*8+m has a node
	heads [binCount]uint32    // first free node of each bin
	nodes []*[blockNodes]node // Handle h is node h-1; blocks, so that growing never copies what is there
	made  uint32              // nodes made so far
	spare uint32              // list of unused nodes, linked by next
}

// node is a range, free or taken. 28 bytes without pointers: the garbage collector never looks inside.
type node struct {
	offset, size uint32 // units
	prev, next   uint32 // in the free list of its bin, or in the list of spare nodes
	left, right  uint32 // neighbours by address
	taken        bool
}

// New returns an allocator for size bytes, all free. Spaces above 3.75 GiB are managed in units of the
// smallest power of two that makes them countable in 32 bits.
func New(size uint64) (*Allocator, error) {
	if size == 0 || size > math.MaxInt64 {
		return nil, fmt.Errorf("space: %d bytes cannot be managed; the size is between 1 and 2^63-1", size)
	}
	a := &Allocator{size: size, spare: none}
	for size>>a.shift > maxUnits {
		a.shift++
	}
	for i := range a.heads {
		a.heads[i] = none
	}
	n := a.newNode()
	*a.node(n) = node{size: uint32(size >> a.shift), left: none, right: none}
	a.insert(n)
	return a, nil
}

// Allocate takes a range that holds n bytes and returns its offset and handle. ok is false if n is 0 or
// no free range is large enough.
func (a *Allocator) Allocate(n uint64) (offset uint64, h Handle, ok bool) {
	if n == 0 || n > a.size {
		return 0, 0, false
	}
	bin := binUp(a.units(n))
	want := binSize(bin)
	bin = a.findBin(bin)
	if bin == none {
		return 0, 0, false
	}
	i := a.heads[bin]
	a.remove(i)
	if rest := a.node(i).size - want; rest > 0 {
		r := a.newNode()
		at := a.node(i)
		*a.node(r) = node{offset: at.offset + want, size: rest, left: i, right: at.right}
		if at.right != none {
			a.node(at.right).left = r
		}
		at.right, at.size = r, want
		a.insert(r)
	}
	at := a.node(i)
	at.taken = true
	a.used += uint64(at.size) << a.shift
	a.count++
	return uint64(at.offset) << a.shift, Handle(i + 1), true
}

// Free gives a range back. Freeing a handle twice, or one of another allocator, panics: going on would
// hand the same bytes to two objects.
func (a *Allocator) Free(h Handle) {
	i := uint32(h) - 1
	if h == 0 || i >= a.made || !a.node(i).taken {
		panic(fmt.Sprintf("space: free of handle %d, which is not allocated", h))
	}
	at := a.node(i)
	at.taken = false
	a.used -= uint64(at.size) << a.shift
	a.count--
	if l := at.left; l != none && !a.node(l).taken {
		a.remove(l)
		at.offset, at.size, at.left = a.node(l).offset, at.size+a.node(l).size, a.node(l).left
		if at.left != none {
			a.node(at.left).right = i
		}
		a.drop(l)
	}
	if r := at.right; r != none && !a.node(r).taken {
		a.remove(r)
		at.size, at.right = at.size+a.node(r).size, a.node(r).right
		if at.right != none {
			a.node(at.right).left = i
		}
		a.drop(r)
	}
	a.insert(i)
}

// Size is the number of bytes managed.
func (a *Allocator) Size() uint64 { return a.size }

// Used is the number of bytes taken, after rounding: Size minus Used is what is really left.
func (a *Allocator) Used() uint64 { return a.used }

// Count is the number of ranges taken.
func (a *Allocator) Count() int { return a.count }

// Range returns what a handle stands for, with the rounded size.
func (a *Allocator) Range(h Handle) (offset, size uint64) {
	n := a.node(uint32(h) - 1)
	return uint64(n.offset) << a.shift, uint64(n.size) << a.shift
}

// Largest is the largest request that would succeed now.
func (a *Allocator) Largest() uint64 {
	if a.top == 0 {
		return 0
	}
	e := 31 - bits.LeadingZeros32(a.top)
	m := 7 - bits.LeadingZeros8(a.leaf[e])
	return min(uint64(binSize(uint32(e)<<mantissaBits|uint32(m)))<<a.shift, a.size)
}

// Rounded is the number of bytes that a request of n bytes takes.
func (a *Allocator) Rounded(n uint64) uint64 {
	if n == 0 || n > a.size {
		return n
	}
	return uint64(binSize(binUp(a.units(n)))) << a.shift
}

func (a *Allocator) units(n uint64) uint32 { return uint32((n + 1<<a.shift - 1) >> a.shift) }

// findBin returns the first non-empty bin from b on, or none.
func (a *Allocator) findBin(b uint32) uint32 {
	if b >= binCount {
		return none
	}
	e := b >> mantissaBits
	if m := a.leaf[e] & (0xff << (b & (mantissa - 1))); m != 0 {
		return e<<mantissaBits | uint32(bits.TrailingZeros8(m))
	}
	t := a.top & (math.MaxUint32 << (e + 1))
	if t == 0 {
		return none
	}
	e = uint32(bits.TrailingZeros32(t))
	return e<<mantissaBits | uint32(bits.TrailingZeros8(a.leaf[e]))
}

func (a *Allocator) insert(i uint32) {
	b := binDown(a.node(i).size)
	head := a.heads[b]
	if head == none {
		a.leaf[b>>mantissaBits] |= 1 << (b & (mantissa - 1))
		a.top |= 1 << (b >> mantissaBits)
	} else {
		a.node(head).prev = i
	}
	a.node(i).prev, a.node(i).next = none, head
	a.heads[b] = i
}

func (a *Allocator) remove(i uint32) {
	n := a.node(i)
	if n.next != none {
		a.node(n.next).prev = n.prev
	}
	if n.prev != none {
		a.node(n.prev).next = n.next
		return
	}
	b := binDown(n.size)
	a.heads[b] = n.next
	if n.next == none {
		e := b >> mantissaBits
		if a.leaf[e] &^= 1 << (b & (mantissa - 1)); a.leaf[e] == 0 {
			a.top &^= 1 << e
		}
	}
}

func (a *Allocator) node(i uint32) *node { return &a.nodes[i/blockNodes][i%blockNodes] }

func (a *Allocator) newNode() uint32 {
	if a.spare == none {
		i := a.made
		if i%blockNodes == 0 {
			a.nodes = append(a.nodes, new([blockNodes]node))
		}
		a.made++
		return i
	}
	i := a.spare
	a.spare = a.node(i).next
	return i
}

func (a *Allocator) drop(i uint32) {
	*a.node(i) = node{next: a.spare}
	a.spare = i
}

// binUp is the first bin whose size is at least n, n > 0; binDown the last whose size is at most n.
func binUp(n uint32) uint32 {
	b := binDown(n)
	if binSize(b) < n {
		b++
	}
	return b
}

func binDown(n uint32) uint32 {
	if n < mantissa {
		return n
	}
	shift := uint32(31-bits.LeadingZeros32(n)) - mantissaBits
	return (shift+1)<<mantissaBits | n>>shift&(mantissa-1)
}

func binSize(b uint32) uint32 {
	e, m := b>>mantissaBits, b&(mantissa-1)
	if e == 0 {
		return m
	}
	return (m | mantissa) << (e - 1)
}
