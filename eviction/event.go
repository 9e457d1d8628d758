package eviction

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// EventKind says what happened.
type EventKind uint8

// The kinds of event. Numbers are part of the guest ABI and of recordings.
const (
	// Insert: a put finished and the object is resident.
	Insert EventKind = 1
	// Access: the object was read.
	Access EventKind = 2
	// Probe: somebody asked whether the object exists. Not a use: policies here ignore it.
	Probe EventKind = 3
	// Remove: the object is gone, see Code.
	Remove EventKind = 4
	// Reject: a proposed victim was not taken, see Code.
	Reject EventKind = 5
	// Pin: flags tell soft or hard; Size is the deadline in NowMS terms, 0 for none.
	Pin EventKind = 6
	// Unpin: no pin is left.
	Unpin EventKind = 7
	// Ghost: a key that is not resident was asked for or is about to be put. Handle is 0.
	Ghost EventKind = 8
	// Tick: only the time.
	Tick EventKind = 9
	// Restore: like Insert while an instance is filled with what is resident already, oldest first.
	Restore EventKind = 10
	// Resize: Size is the domain's new capacity in bytes.
	Resize EventKind = 11
	// Candidate: score mode of guests only.
	Candidate EventKind = 12
	// Moved: the replica is on another segment now.
	Moved EventKind = 13
)

var kindNames = [...]string{"0", "INSERT", "ACCESS", "PROBE", "REMOVE", "REJECT", "PIN", "UNPIN", "GHOST", "TICK", "RESTORE", "RESIZE", "CANDIDATE", "MOVED"}

func (k EventKind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Flags of an event; unknown bits are ignored.
type Flags uint8

// The flags.
const (
	FlagSoftPin Flags = 1
	FlagHardPin Flags = 2
	FlagLeased  Flags = 4
	// FlagPartial marks a block that is not full: the end of a prompt.
	FlagPartial Flags = 8
	FlagGrouped Flags = 16
	// FlagTailFirst marks events of a batch that is delivered deepest block first.
	FlagTailFirst Flags = 32
)

// Code is the reason in REMOVE and REJECT events, a client class hint in others.
type Code uint16

// Reasons of REMOVE.
const (
	CodeRemoved     Code = 1
	CodeEvicted     Code = 2
	CodeExpired     Code = 3
	CodeSegmentLost Code = 4
	CodeReplaced    Code = 5
)

// Reasons of REJECT.
const (
	CodeLeased      Code = 1
	CodePinned      Code = 2
	CodeBusy        Code = 3
	CodeUnknown     Code = 4
	CodeDuplicate   Code = 5
	CodeOtherTenant Code = 6
	CodeUsed        Code = 7 // used since it was proposed
	CodeNotThere    Code = 8 // no replica on the segment that was asked for
)

// EventSize is the size of one encoded event.
const EventSize = 64

// Event is one 64-byte record, the same natively, in guests' memory and in recordings (little-endian, no
// padding). Its layout in Go's memory on a little-endian machine is the encoding.
type Event struct {
	Kind    EventKind
	Flags   Flags
	Code    Code
	Handle  Handle
	Parent  Handle // handle of the previous block of the chain; 0 none or unknown
	Depth   uint32 // position in the chain, 0 first
	Req     uint32 // number of the batch call
	Matched uint32 // blocks of this batch's chain that were found before it
	Added   uint32 // blocks newly written by this batch; 0 in ACCESS
	Tenant  uint32
	Size    uint64 // bytes
	NowMS   uint64 // host clock
	KeyHash uint64 // xxhash64(tenant, 0, key): stable over evict and re-insert
	Segment uint32 // 0 none or several
	Group   uint32 // 0 none
}

// AppendEvent appends the encoding of e.
func AppendEvent(dst []byte, e *Event) []byte {
	le := binary.LittleEndian
	dst = append(dst, byte(e.Kind), byte(e.Flags))
	dst = le.AppendUint16(dst, uint16(e.Code))
	dst = le.AppendUint32(dst, uint32(e.Handle))
	dst = le.AppendUint32(dst, uint32(e.Parent))
	dst = le.AppendUint32(dst, e.Depth)
	dst = le.AppendUint32(dst, e.Req)
	dst = le.AppendUint32(dst, e.Matched)
	dst = le.AppendUint32(dst, e.Added)
	dst = le.AppendUint32(dst, e.Tenant)
	dst = le.AppendUint64(dst, e.Size)
	dst = le.AppendUint64(dst, e.NowMS)
	dst = le.AppendUint64(dst, e.KeyHash)
	dst = le.AppendUint32(dst, e.Segment)
	return le.AppendUint32(dst, e.Group)
}

// DecodeEvent reads one record from the first EventSize bytes of b.
func DecodeEvent(b []byte) (Event, error) {
	if len(b) < EventSize {
		return Event{}, fmt.Errorf("eviction: event record of %d bytes, want %d: %w", len(b), EventSize, ErrBadEvent)
	}
	le := binary.LittleEndian
	return Event{
		Kind: EventKind(b[0]), Flags: Flags(b[1]), Code: Code(le.Uint16(b[2:])),
		Handle: Handle(le.Uint32(b[4:])), Parent: Handle(le.Uint32(b[8:])), Depth: le.Uint32(b[12:]),
		Req: le.Uint32(b[16:]), Matched: le.Uint32(b[20:]), Added: le.Uint32(b[24:]), Tenant: le.Uint32(b[28:]),
		Size: le.Uint64(b[32:]), NowMS: le.Uint64(b[40:]), KeyHash: le.Uint64(b[48:]),
		Segment: le.Uint32(b[56:]), Group: le.Uint32(b[60:]),
	}, nil
}

// KeyHash is the stable name of a key in events and recordings: xxhash64, seed 0, over the tenant's name, a
// zero byte and the key. It does not allocate.
func KeyHash(tenant, key string) uint64 {
	// In one piece it takes a quarter less time.
	var whole [192]byte
	if n := len(tenant) + 1 + len(key); n <= len(whole) {
		copy(whole[:], tenant)
		copy(whole[len(tenant)+1:], key)
		return xxhash.Sum64(whole[:n])
	}
	var d xxhash.Digest
	d.Reset()
	d.WriteString(tenant)
	d.Write([]byte{0})
	d.WriteString(key)
	return d.Sum64()
}
