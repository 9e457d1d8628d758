package shm

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/transports"
)

var goodMessages = []message{
	{typ: msgHello, version: 1, text: "8a1c0e2e-0000-4000-8000-000000000001"},
	{typ: msgOffer, version: 7},
	{typ: msgProof, token: [tokenLen]byte{1, 2, 31: 9}},
	{typ: msgWelcome, token: [tokenLen]byte{3}},
	{typ: msgRefuse, text: "no"},
	{typ: msgLookup, seq: 1, addr: 0x7e0000000000, len: 1},
	{typ: msgRegion, seq: math.MaxUint64, id: 3, addr: 4096, len: 5, off: 6, flags: 3},
	{typ: msgNone, seq: 2, addr: 8, len: 9, flags: whyNotShareable},
	{typ: msgDrop, id: 10},
	{typ: msgAck, id: 11},
}

func TestMessages(t *testing.T) {
	for _, m := range goodMessages {
		b := m.append(nil)
		got, err := parseMessage(b)
		if err != nil {
			t.Errorf("type %d: %v", m.typ, err)
		}
		if d := cmp.Diff(m, got, cmp.AllowUnexported(message{})); d != "" {
			t.Errorf("type %d (-sent +parsed):\n%s", m.typ, d)
		}
		if m.typ == msgRefuse || m.typ == msgHello { // text may have any length
			continue
		}
		for _, bad := range [][]byte{b[:len(b)-1], append(bytes.Clone(b), 0)} {
			if _, err := parseMessage(bad); !errors.Is(err, transports.ErrProtocol) {
				t.Errorf("type %d with %d instead of %d bytes: %v", m.typ, len(bad), len(b), err)
			}
		}
	}
	long := message{typ: msgRefuse, text: strings.Repeat("x", 1000)}
	if b := long.append(nil); len(b) != maxMessage {
		t.Errorf("a long reason makes a message of %d bytes", len(b))
	}
}

// TestGolden fixes the bytes: nodes of different versions share a host.
func TestGolden(t *testing.T) {
	m := message{typ: msgRegion, seq: 1, id: 2, addr: 0x7f0102030405, len: 0x1000, off: 3, flags: 3}
	want := "\x07" + "\x01\x00\x00\x00\x00\x00\x00\x00" + "\x02\x00\x00\x00\x00\x00\x00\x00" +
		"\x05\x04\x03\x02\x01\x7f\x00\x00" + "\x00\x10\x00\x00\x00\x00\x00\x00" + "\x03\x00\x00\x00\x00\x00\x00\x00" + "\x03"
	if got := string(m.append(nil)); got != want {
		t.Errorf("region: %q, want %q", got, want)
	}
	h := message{typ: msgHello, version: 1, text: "i"}
	if got := string(h.append(nil)); got != "\x01MCAshm\x01\x00i" {
		t.Errorf("hello: %q", got)
	}
}

func TestBadMessages(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty":           {},
		"too long":        append([]byte{msgRefuse}, make([]byte, maxMessage)...),
		"unknown type":    {99},
		"type 0":          {0},
		"foreign hello":   []byte("\x01GET / HTTP"),
		"lookup of 0":     (&message{typ: msgLookup, addr: 5}).append(nil),
		"lookup wraps":    (&message{typ: msgLookup, addr: math.MaxUint64, len: 2}).append(nil),
		"region's offset": (&message{typ: msgRegion, addr: 5, len: 10, off: math.MaxUint64 - 5}).append(nil),
	} {
		if m, err := parseMessage(b); !errors.Is(err, transports.ErrProtocol) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

func FuzzMessage(f *testing.F) {
	for _, m := range goodMessages {
		f.Add(m.append(nil))
	}
	f.Add([]byte{})
	f.Add([]byte{msgRegion, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMessage(b)
		if err != nil {
			if !errors.Is(err, transports.ErrProtocol) {
				t.Fatalf("error without its sentinel: %v", err)
			}
			return
		}
		if again := m.append(nil); !bytes.Equal(again, b) {
			t.Fatalf("parsed %x, written %x", b, again)
		}
	})
}
