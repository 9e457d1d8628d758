package replay

import (
	"errors"
	"fmt"
	"slices"
)

// Trace is a recording in memory, block names replaced by dense ids 0..Unique-1 in order of first use.
// It is read-only once built and may be shared by any number of runs.
type Trace struct {
	Name        string
	BlockTokens uint32 // tokens in a full block, 0 unknown
	Requests    []Request
	// SHA256 of the file in hex, "" if it was not read from one.
	SHA256 string
	// Warnings is what a reader noticed and could live with.
	Warnings []string
	blocks   []uint32 // ids of all requests, one after the other
	keys     []uint64 // key hash by id
	names    []uint64 // what the file calls a block, by id
	sizes    []uint64 // bytes by id; nil = all 1
}

// Kind says what a request does with its blocks.
type Kind uint8

const (
	// Wanted looks a chain up and stores what is absent, once it was computed. Only these requests count in
	// hit ratios.
	Wanted Kind = iota
	// Stored puts blocks that no request wanted before.
	Stored
	// Removed takes blocks away, by a client's wish.
	Removed
)

// Request is one batch of the trace: a chain of blocks.
type Request struct {
	TimeMS uint64
	Tokens uint32 // input length; 0 unknown
	Output uint32 // output length
	Tenant uint32
	first  uint32 // in Trace.blocks
	n      uint32
	Kind   Kind
}

// Blocks returns the ids of request i from the first block to the deepest. It must not be changed.
func (t *Trace) Blocks(i int) []uint32 {
	r := &t.Requests[i]
	return t.blocks[r.first : r.first+r.n : r.first+r.n]
}

// Accesses is the number of block accesses.
func (t *Trace) Accesses() int { return len(t.blocks) }

// Unique is the number of different blocks.
func (t *Trace) Unique() int { return len(t.keys) }

// Sized tells whether blocks have sizes; if not, sizes and capacities count blocks.
func (t *Trace) Sized() bool { return t.sizes != nil }

// Size returns the bytes of a block; 1 in traces that have no sizes, so that bytes are blocks.
func (t *Trace) Size(id uint32) uint64 {
	if t.sizes == nil {
		return 1
	}
	return t.sizes[id]
}

// Footprint is the sum of the sizes of all different blocks.
func (t *Trace) Footprint() uint64 {
	if t.sizes == nil {
		return uint64(len(t.keys))
	}
	var n uint64
	for _, s := range t.sizes {
		n += s
	}
	return n
}

// MeanSize is the mean size of a block, at least 1.
func (t *Trace) MeanSize() uint64 {
	if len(t.keys) == 0 {
		return 1
	}
	return max(1, t.Footprint()/uint64(len(t.keys)))
}

// Partial tells whether the last block of request i is not full, as far as the trace knows.
func (t *Trace) Partial(i int) bool { return t.partial(&t.Requests[i]) }

func (t *Trace) partial(r *Request) bool {
	return t.BlockTokens > 0 && r.Tokens > 0 && uint64(r.Tokens) < uint64(r.n)*uint64(t.BlockTokens)
}

// Builder makes a Trace request by request.
type Builder struct {
	t      Trace
	ids    map[uint64]uint32
	seen   []uint32 // by id: number of the last request that had it, plus 1
	hashed bool     // names are hashes already
	sort   bool     // requests wait in later until all are there
	later  []laterRequest
}

type laterRequest struct {
	Request
	names, sizes []uint64
}

// NewBuilder starts an empty trace.
func NewBuilder(name string, blockTokens uint32) *Builder {
	return &Builder{t: Trace{Name: name, BlockTokens: blockTokens}, ids: map[uint64]uint32{}}
}

// ErrTrace is wrapped by the error for a trace that cannot be used.
var ErrTrace = errors.New("bad trace")

// Add appends a request whose chain has the given names. A name stands for a block and all before it; the
// same name twice in one chain is an error, as is a time before that of the request before.
func (b *Builder) Add(timeMS uint64, tokens, output uint32, names []uint64) error {
	return b.AddRequest(Request{TimeMS: timeMS, Tokens: tokens, Output: output}, names, nil)
}

// AddRequest is Add for requests of any kind. sizes are the bytes of the blocks, 0 if not known; nil if none is. The first
// size that is known of a block counts. Blocks without any get the mean.
func (b *Builder) AddRequest(r Request, names, sizes []uint64) error {
	if b.sort {
		b.later = append(b.later, laterRequest{r, slices.Clone(names), slices.Clone(sizes)})
		return nil
	}
	if n := len(b.t.Requests); n > 0 && r.TimeMS < b.t.Requests[n-1].TimeMS {
		return fmt.Errorf("time %d ms is before the %d ms of the request before (read it sorted by time): %w", r.TimeMS, b.t.Requests[n-1].TimeMS, ErrTrace)
	}
	first := len(b.t.blocks)
	if uint64(first)+uint64(len(names)) > 1<<32-1 {
		return fmt.Errorf("more than 2^32-1 block accesses: %w", ErrTrace)
	}
	for i, name := range names {
		id, ok := b.ids[name]
		if !ok {
			id = uint32(len(b.t.keys))
			b.ids[name] = id
			key := name
			if !b.hashed {
				key = scramble(name)
			}
			b.t.keys = append(b.t.keys, key)
			b.t.names = append(b.t.names, name)
			b.seen = append(b.seen, 0)
		} else if b.seen[id] == uint32(len(b.t.Requests)+1) {
			for _, id := range b.t.blocks[first:] {
				b.seen[id] = 0
			}
			b.t.blocks = b.t.blocks[:first]
			return fmt.Errorf("block %d appears twice in one chain (second time at position %d): %w", name, i, ErrTrace)
		}
		b.seen[id] = uint32(len(b.t.Requests) + 1)
		b.t.blocks = append(b.t.blocks, id)
		if sizes != nil {
			for len(b.t.sizes) <= int(id) {
				b.t.sizes = append(b.t.sizes, 0)
			}
			if b.t.sizes[id] == 0 {
				b.t.sizes[id] = sizes[i]
			}
		}
	}
	r.first, r.n = uint32(first), uint32(len(names))
	b.t.Requests = append(b.t.Requests, r)
	return nil
}

// Trace returns what was added. The builder must not be used afterwards.
func (b *Builder) Trace() *Trace {
	b.ids = nil
	t := &b.t
	if t.sizes == nil {
		return t
	}
	for len(t.sizes) < len(t.keys) {
		t.sizes = append(t.sizes, 0)
	}
	known, sum := uint64(0), uint64(0)
	for _, s := range t.sizes {
		if s > 0 {
			known++
			sum += min(s, 1<<40)
		}
	}
	if known == 0 {
		t.sizes = nil
		return t
	}
	for i, s := range t.sizes {
		if s == 0 {
			t.sizes[i] = max(1, sum/known)
		}
	}
	return t
}

// scramble spreads small numbers over 64 bits, one to one (the finalizer of splitmix64).
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
