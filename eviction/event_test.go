package eviction

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/cespare/xxhash/v2"
	"github.com/google/go-cmp/cmp"
)

var sample = Event{
	Kind: Moved, Flags: FlagPartial | FlagTailFirst, Code: 0x0102, Handle: 0x11121314, Parent: 0x21222324,
	Depth: 0x31323334, Req: 0x41424344, Matched: 0x51525354, Added: 0x61626364, Tenant: 0x71727374,
	Size: 0x8182838485868788, NowMS: 0x9192939495969798, KeyHash: 0xa1a2a3a4a5a6a7a8, Segment: 0xb1b2b3b4, Group: 0xc1c2c3c4,
}

const sampleHex = "0d280201" + "14131211" + "24232221" + "34333231" + "44434241" + "54535251" + "64636261" + "74737271" +
	"8887868584838281" + "9897969594939291" + "a8a7a6a5a4a3a2a1" + "b4b3b2b1" + "c4c3c2c1"

func TestEventLayout(t *testing.T) {
	if n := unsafe.Sizeof(Event{}); n != EventSize {
		t.Fatalf("Event takes %d bytes in memory, want %d", n, EventSize)
	}
	b := AppendEvent(nil, &sample)
	if got := hex.EncodeToString(b); got != sampleHex {
		t.Errorf("encoding\n got %s\nwant %s", got, sampleHex)
	}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&sample)), EventSize)
	if nativeLittle() && !bytes.Equal(raw, b) {
		t.Errorf("memory layout differs from the encoding\n got %x\nwant %x", raw, b)
	}
	back, err := DecodeEvent(b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(sample, back); d != "" {
		t.Errorf("decode(encode): %s", d)
	}
}

func nativeLittle() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}

func FuzzDecodeEvent(f *testing.F) {
	f.Add(AppendEvent(nil, &sample))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := DecodeEvent(b)
		if len(b) < EventSize {
			if !errors.Is(err, ErrBadEvent) {
				t.Fatalf("%d bytes decoded with error %v", len(b), err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := AppendEvent(nil, &e); !bytes.Equal(got, b[:EventSize]) {
			t.Fatalf("encode(decode) changed the record\n got %x\nwant %x", got, b[:EventSize])
		}
	})
}

func TestKeyHash(t *testing.T) {
	cases := []struct{ tenant, key string }{{"default", "k1"}, {"default", "k2"}, {"", ""}, {"defaul", "tk1"}}
	for n := 180; n < 200; n++ {
		cases = append(cases, struct{ tenant, key string }{"default", strings.Repeat("k", n)})
	}
	for _, c := range cases {
		if got, want := KeyHash(c.tenant, c.key), xxhash.Sum64String(c.tenant+"\x00"+c.key); got != want {
			t.Errorf("KeyHash(%q, %q) = %x, want %x", c.tenant, c.key, got, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { KeyHash("default", "some-key-of-usual-length-000000000000") }); n != 0 {
		t.Errorf("KeyHash allocates %v times", n)
	}
}

func TestSpecValidate(t *testing.T) {
	for name, c := range map[string]struct {
		s  Spec
		ok bool
	}{
		"usual":       {Spec{Capacity: 1, MaxHandles: 1}, true},
		"no handles":  {Spec{Capacity: 1}, false},
		"too many":    {Spec{Capacity: 1, MaxHandles: 1<<31 + 1}, false},
		"no capacity": {Spec{MaxHandles: 1}, false},
	} {
		if err := c.s.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: Validate() = %v", name, err)
		}
	}
}

func TestKindNames(t *testing.T) {
	for k, want := range map[EventKind]string{Insert: "INSERT", Moved: "MOVED", Reject: "REJECT", 14: "kind 14"} {
		if k.String() != want {
			t.Errorf("%d is %q, want %q", k, k.String(), want)
		}
	}
}
