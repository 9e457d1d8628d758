// Package trace is the file format of recordings: what clients asked a store for, in order, as small as it
// can be written while the store works. `mooncake master --record` writes it, `mooncake replay` reads it.
//
// A recording holds hashes of keys, never keys or values.
//
// # Format
//
// Two lines of text, then blocks. The first line is "mooncake recording 1", the second a [Header] as JSON of
// at most 4,096 bytes. A block is its length (u32) and the CRC-32C of its content (u32), both little-endian,
// then the content: records, at most [BlockSize] bytes of them. Each block can be decoded on its own. A
// record is
//
//	tag       1 byte: bits 0-3 Op; 4 = same batch, time and tenant as the record before; 5-6 parent: 0 none,
//	          1 given, 2 the key before; 7 = the key is the parent of the record before
//	flags     1 byte
//	time      uvarint, ms since the record before, in the first record of a block since the epoch of the header's
//	          writer (the store's clock)                                             } unless bit 4
//	batch     varint, difference to the record before, in the first of a block to 0  } unless bit 4
//	tenant    uvarint                                                                } unless bit 4
//	key       8 bytes little-endian, unless bit 7
//	parent    8 bytes little-endian, only with 1 in bits 5-6
//	size      uvarint, bytes
//
// so a block of a chain takes 12 to 14 bytes. A file may be compressed as a whole with gzip or zstd: [Create] goes
// by the file name (.gz, .zst), [Open] by how the file begins.
//
// A recording that ends in the middle of a block, because the writer was killed, is read up to there; see
// [Reader.Truncated].
package trace

import "errors"

// Op is what a client did, or the store for it. Numbers are part of the format; readers pass over those that
// they do not know.
type Op uint8

// The operations.
const (
	// Get asked for an object's value.
	Get Op = 1
	// Put finished: the object became readable, Size is its length.
	Put Op = 2
	// Exist asked whether an object is there.
	Exist Op = 3
	// Remove: a client removed the object.
	Remove Op = 4
	// Evict: the store removed the object to make room.
	Evict Op = 5
	// Lose: the object went with its memory, or expired.
	Lose Op = 6
	// Resize: Size is the room of the tenant's eviction domain in bytes from now on; Key is 0.
	Resize Op = 7
)

var opNames = [...]string{"0", "get", "put", "exist", "remove", "evict", "lose", "resize"}

func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return "unknown"
}

// Flags of a record; unknown bits are ignored.
type Flags uint8

// The flags.
const (
	// Found: the object of a Get or Exist was there.
	Found Flags = 1
	// SoftPin and HardPin: the object of a Put is pinned.
	SoftPin Flags = 2
	HardPin Flags = 4
)

// Record is one operation on one key.
type Record struct {
	Op    Op
	Flags Flags
	// Tenant is a small number for the tenant, 0 for the default one.
	Tenant uint32
	// Batch numbers the call. The records of one call follow each other, in the order of the call's keys (the
	// first block of a chain first), and have the same Op, TimeMS and Tenant. A call may be cut in pieces by
	// others in between; a reader joins what has the same number and follows directly.
	Batch uint32
	// TimeMS is the store's clock in milliseconds and never goes back: a Writer lifts an earlier time to that
	// of the record before.
	TimeMS uint64
	// Key is eviction.KeyHash of tenant and key.
	Key uint64
	// Parent is the hash of the key before this one in the same call, 0 for the first one and for calls of one key.
	Parent uint64
	// Size in bytes, 0 if not known (a Get that found nothing).
	Size uint64
}

// Header describes a recording.
type Header struct {
	// Source is the program and version that wrote it.
	Source string `json:"source,omitempty"`
	// Start is the wall clock at the beginning in Unix milliseconds.
	Start int64 `json:"start_ms,omitempty"`
	// Capacity is the room of the store in bytes at the beginning, 0 if not known.
	Capacity uint64 `json:"capacity_bytes,omitempty"`
	// BlockTokens is the number of tokens in a full block, 0 if not known.
	BlockTokens uint32 `json:"block_tokens,omitempty"`
	// Part numbers the files of a recording that was rotated, from 0.
	Part uint32 `json:"part,omitempty"`
}

// BlockSize is the most content of one block in bytes.
const BlockSize = 64 << 10

// Magic is the first line of a recording, newline included.
const Magic = "mooncake recording 1\n"

const maxHeader = 4096

// maxRecord bounds the encoding of one record.
const maxRecord = 2 + 10 + 5 + 5 + 8 + 8 + 10

// ErrFormat is wrapped by the error for a file that is not a recording or is damaged.
var ErrFormat = errors.New("not a valid recording")

const (
	tagOp          = 0x0f
	tagSame        = 0x10
	tagParent      = 0x60
	tagParentGiven = 0x20
	tagParentLast  = 0x40
	tagKeyIsParent = 0x80
)

// context is what one record leaves for the next one of its block.
type context struct {
	begun       bool
	op          Op
	tenant      uint32
	batch       uint32
	time        uint64
	key, parent uint64
}
