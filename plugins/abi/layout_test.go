package abi

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
)

// field is one field of a record or of the header.
type field struct {
	c    string // name in policy.h
	typ  string // type in ABI.md
	off  int
	size int
}

var recordFields = []field{
	{"kind", "u8", OffKind, 1}, {"flags", "u8", OffFlags, 1}, {"code", "u16", OffCode, 2}, {"handle", "u32", OffHandle, 4},
	{"parent", "u32", OffParent, 4}, {"depth", "u32", OffDepth, 4}, {"req", "u32", OffReq, 4}, {"matched", "u32", OffMatched, 4},
	{"added", "u32", OffAdded, 4}, {"tenant", "u32", OffTenant, 4}, {"size", "u64", OffSize, 8}, {"now_ms", "u64", OffNowMS, 8},
	{"key_hash", "u64", OffKeyHash, 8}, {"segment", "u32", OffSegment, 4}, {"group", "u32", OffGroup, 4},
}

var headerFields = []field{
	{"header_size", "u32", OffHeaderSize, 4}, {"record_size", "u32", OffRecordSize, 4}, {"abi_minor", "u32", OffMinor, 4},
	{"host_features", "u32", OffHostFeatures, 4}, {"capacity_bytes", "u64", OffCapacity, 8}, {"max_handles", "u32", OffMaxHandles, 4},
	{"block_tokens", "u32", OffBlockTokens, 4}, {"seed", "u64", OffSeed, 8}, {"tenant", "u32", OffTenantOfInit, 4},
	{"batch_max", "u32", OffBatchMax, 4}, {"params_off", "u32", OffParams, 4}, {"params_len", "u32", OffParamsLen, 4},
	{"reserved", "u64", OffReserved, 8},
}

// sample has a value of its own in every field.
var sample = eviction.Event{
	Kind: 0x0d, Flags: 0x28, Code: 0x0102, Handle: 0x11121314, Parent: 0x21222324, Depth: 0x31323334, Req: 0x41424344,
	Matched: 0x51525354, Added: 0x61626364, Tenant: 0x71727374, Size: 0x8182838485868788, NowMS: 0x9192939495969798,
	KeyHash: 0xa1a2a3a4a5a6a7a8, Segment: 0xb1b2b3b4, Group: 0xc1c2c3c4,
}

var sampleFields = []uint64{
	uint64(sample.Kind), uint64(sample.Flags), uint64(sample.Code), uint64(sample.Handle), uint64(sample.Parent), uint64(sample.Depth),
	uint64(sample.Req), uint64(sample.Matched), uint64(sample.Added), uint64(sample.Tenant), sample.Size, sample.NowMS, sample.KeyHash,
	uint64(sample.Segment), uint64(sample.Group),
}

func get(b []byte, f field) uint64 {
	var wide [8]byte
	copy(wide[:], b[f.off:f.off+f.size])
	return binary.LittleEndian.Uint64(wide[:])
}

// The fields lie one after the other and fill the record: no padding.
func TestFieldsFillTheRecord(t *testing.T) {
	for name, s := range map[string]struct {
		size   int
		fields []field
	}{"record": {RecordSize, recordFields}, "header": {HeaderSize, headerFields}} {
		next := 0
		for _, f := range s.fields {
			if f.off != next || f.off%f.size != 0 {
				t.Errorf("%s: %s lies at %d, want %d, a multiple of %d", name, f.c, f.off, next, f.size)
			}
			next = f.off + f.size
		}
		if next != s.size {
			t.Errorf("%s: the fields end at %d, the size is %d", name, next, s.size)
		}
	}
}

func TestEncode(t *testing.T) {
	b := bytes.Repeat([]byte{0xee}, RecordSize+1)
	Encode(b, &sample)
	for i, f := range recordFields {
		if got := get(b, f); got != sampleFields[i] {
			t.Errorf("%s at %d: %#x, want %#x", f.c, f.off, got, sampleFields[i])
		}
	}
	if b[RecordSize] != 0xee {
		t.Error("Encode wrote past the record")
	}
	if want := eviction.AppendEvent(nil, &sample); !bytes.Equal(b[:RecordSize], want) {
		t.Errorf("the encoding differs from that of recordings\n got %x\nwant %x", b[:RecordSize], want)
	}
}

func TestEncodeAll(t *testing.T) {
	EncodeAll(nil, nil)
	events := []eviction.Event{sample, {Kind: eviction.Tick, NowMS: 7}, sample}
	var want []byte
	for i := range events {
		want = eviction.AppendEvent(want, &events[i])
	}
	defer func(was bool) { littleEndian = was }(littleEndian)
	for _, fast := range []bool{littleEndian, false} {
		littleEndian = fast
		got := bytes.Repeat([]byte{0xee}, len(want)+8)
		EncodeAll(got, events)
		if !bytes.Equal(got[:len(want)], want) {
			t.Errorf("memory order %v:\n got %x\nwant %x", fast, got[:len(want)], want)
		}
		if !bytes.Equal(got[len(want):], bytes.Repeat([]byte{0xee}, 8)) {
			t.Error("EncodeAll wrote past the records")
		}
	}
	if n := testing.AllocsPerRun(10, func() { EncodeAll(want, events) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Records written in place are what EncodeAll writes, and EncodeAll leaves them.
func TestRecords(t *testing.T) {
	want, buf := make([]byte, 2*RecordSize), make([]byte, 2*RecordSize+8)
	EncodeAll(want, []eviction.Event{sample, {Kind: eviction.Tick, NowMS: 7}})
	if littleEndian {
		in := Records(buf)
		if len(in) != 2 {
			t.Fatalf("%d records in %d bytes", len(in), len(buf))
		}
		in = append(in[:0], sample, eviction.Event{Kind: eviction.Tick, NowMS: 7})
		EncodeAll(buf, in)
		if !bytes.Equal(buf[:len(want)], want) {
			t.Errorf("\n got %x\nwant %x", buf[:len(want)], want)
		}
	}
	defer func(was bool) { littleEndian = was }(littleEndian)
	littleEndian = false
	if Records(buf) != nil || Records(nil) != nil {
		t.Error("records of another byte order were given away")
	}
}

func TestAppendConfig(t *testing.T) {
	h := HeaderOf(eviction.Spec{Capacity: 1 << 40, MaxHandles: 1000, BlockTokens: 16, Seed: 0x0102030405060708, Tenant: eviction.AnyTenant}, 256)
	params := []byte(`{"small": 0.1}`)
	b := AppendConfig([]byte("before"), h, params)[len("before"):]
	for i, want := range []uint64{64, 64, 0, 0, 1 << 40, 1000, 16, 0x0102030405060708, 0xffffffff, 256, 64, uint64(len(params)), 0} {
		if got := get(b, headerFields[i]); got != want {
			t.Errorf("%s: %#x, want %#x", headerFields[i].c, got, want)
		}
	}
	if got := b[HeaderSize:]; !bytes.Equal(got, params) {
		t.Errorf("params: %q", got)
	}
	if BufferConfig.Size(len(params)) != len(b) {
		t.Errorf("BufferConfig.Size = %d, the content has %d bytes", BufferConfig.Size(len(params)), len(b))
	}
}

func TestCheckBuffer(t *testing.T) {
	const memory = 65536
	for _, c := range []struct {
		name       string
		buffer     Buffer
		addr, size uint32
		ok         bool
	}{
		{"at the end", BufferEvents, memory - 64, 64, true},
		{"null", BufferEvents, 0, 64, false},
		{"one past the end", BufferState, memory - 63, 64, false},
		{"far outside", BufferState, 0xffffffff, 0xffffffff, false},
		{"records misaligned", BufferEvents, 1028, 64, false},
		{"scores misaligned", BufferScores, 1028, 64, false},
		{"config misaligned", BufferConfig, 1028, 64, false},
		{"handles aligned to 4", BufferVictims, 1028, 64, true},
		{"handles misaligned", BufferVictims, 1026, 64, false},
		{"bits anywhere", BufferAdmit, 1027, 64, true},
		{"empty", BufferState, memory, 0, true},
	} {
		if err := CheckBuffer(c.buffer, c.addr, c.size, memory); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for b, want := range map[Buffer]int{BufferConfig: 73, BufferEvents: 576, BufferVictims: 36, BufferState: 9, BufferScores: 72, BufferAdmit: 2} {
		if got := b.Size(9); got != want {
			t.Errorf("%s: Size(9) = %d, want %d", b, got, want)
		}
	}
}

func BenchmarkEncodeAll(b *testing.B) {
	events := make([]eviction.Event, 256)
	dst := make([]byte, 256*RecordSize)
	for b.Loop() {
		EncodeAll(dst, events)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/256, "ns/event")
}
