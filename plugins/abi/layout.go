package abi

import (
	"encoding/binary"
	"unsafe"

	"github.com/mooncake-agent/mooncake/eviction"
)

// Offsets of an event record's fields in bytes.
const (
	OffKind    = 0  // u8
	OffFlags   = 1  // u8
	OffCode    = 2  // u16
	OffHandle  = 4  // u32
	OffParent  = 8  // u32
	OffDepth   = 12 // u32
	OffReq     = 16 // u32
	OffMatched = 20 // u32
	OffAdded   = 24 // u32
	OffTenant  = 28 // u32
	OffSize    = 32 // u64
	OffNowMS   = 40 // u64
	OffKeyHash = 48 // u64
	OffSegment = 56 // u32
	OffGroup   = 60 // u32
)

// Offsets of the init header's fields in bytes.
const (
	OffHeaderSize   = 0  // u32
	OffRecordSize   = 4  // u32
	OffMinor        = 8  // u32
	OffHostFeatures = 12 // u32
	OffCapacity     = 16 // u64
	OffMaxHandles   = 24 // u32
	OffBlockTokens  = 28 // u32
	OffSeed         = 32 // u64
	OffTenantOfInit = 40 // u32
	OffBatchMax     = 44 // u32
	OffParams       = 48 // u32
	OffParamsLen    = 52 // u32
	OffReserved     = 56 // u64, 0
)

// Encode writes e to the first RecordSize bytes of dst.
func Encode(dst []byte, e *eviction.Event) {
	_ = dst[RecordSize-1]
	le := binary.LittleEndian
	dst[OffKind], dst[OffFlags] = byte(e.Kind), byte(e.Flags)
	le.PutUint16(dst[OffCode:], uint16(e.Code))
	le.PutUint32(dst[OffHandle:], uint32(e.Handle))
	le.PutUint32(dst[OffParent:], uint32(e.Parent))
	le.PutUint32(dst[OffDepth:], e.Depth)
	le.PutUint32(dst[OffReq:], e.Req)
	le.PutUint32(dst[OffMatched:], e.Matched)
	le.PutUint32(dst[OffAdded:], e.Added)
	le.PutUint32(dst[OffTenant:], e.Tenant)
	le.PutUint64(dst[OffSize:], e.Size)
	le.PutUint64(dst[OffNowMS:], e.NowMS)
	le.PutUint64(dst[OffKeyHash:], e.KeyHash)
	le.PutUint32(dst[OffSegment:], e.Segment)
	le.PutUint32(dst[OffGroup:], e.Group)
}

// littleEndian tells that a record has the same bytes in this machine's memory as in a guest's.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// EncodeAll writes the records to dst, one after the other. dst must have room for len(events)*RecordSize
// bytes.
func EncodeAll(dst []byte, events []eviction.Event) {
	if len(events) == 0 {
		return
	}
	dst = dst[:len(events)*RecordSize]
	if littleEndian {
		if &dst[0] == (*byte)(unsafe.Pointer(&events[0])) {
			return // they are there
		}
		copy(dst, unsafe.Slice((*byte)(unsafe.Pointer(&events[0])), len(events)*RecordSize))
		return
	}
	for i := range events {
		Encode(dst[i*RecordSize:], &events[i])
	}
}

// Records is an events buffer as records, to write them where the guest reads them; nil on a machine that has to encode
// them. dst is aligned as [BufferEvents] must be.
func Records(dst []byte) []eviction.Event {
	if !littleEndian || len(dst) < RecordSize {
		return nil
	}
	return unsafe.Slice((*eviction.Event)(unsafe.Pointer(&dst[0])), len(dst)/RecordSize)
}

// Header is what an instance has to know before its first event: the head of the config buffer.
type Header struct {
	Capacity    uint64 // bytes
	MaxHandles  uint32 // the greatest handle
	BlockTokens uint32 // tokens of a full block, 0 unknown
	Seed        uint64 // the only source of chance
	Tenant      uint32 // eviction.AnyTenant for all
	BatchMax    uint32 // the greatest number of records in one call
}

// HeaderOf is the header for a native policy's Spec, with the batch size that the host will keep to.
func HeaderOf(s eviction.Spec, batchMax uint32) Header {
	return Header{
		Capacity: s.Capacity, MaxHandles: s.MaxHandles, BlockTokens: s.BlockTokens, Seed: s.Seed, Tenant: s.Tenant, BatchMax: batchMax,
	}
}

// AppendConfig appends the content of the config buffer: the header, then the params.
func AppendConfig(dst []byte, h Header, params []byte) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, HeaderSize)
	dst = le.AppendUint32(dst, RecordSize)
	dst = le.AppendUint32(dst, Minor)
	dst = le.AppendUint32(dst, uint32(OfferedHostFeatures))
	dst = le.AppendUint64(dst, h.Capacity)
	dst = le.AppendUint32(dst, h.MaxHandles)
	dst = le.AppendUint32(dst, h.BlockTokens)
	dst = le.AppendUint64(dst, h.Seed)
	dst = le.AppendUint32(dst, h.Tenant)
	dst = le.AppendUint32(dst, h.BatchMax)
	dst = le.AppendUint32(dst, HeaderSize) // params_off, from the buffer's start
	dst = le.AppendUint32(dst, uint32(len(params)))
	dst = le.AppendUint64(dst, 0)
	return append(dst, params...)
}
