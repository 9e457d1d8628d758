package tcp

import (
	"bytes"
	"encoding/hex"
	"math"
	"testing"
)

func TestHeader(t *testing.T) {
	for _, c := range []struct {
		name  string
		hex   string
		h     header
		write bool
		v2    bool
		wraps bool
	}{
		{"v2 write", "010000000000000000000000007e00008100000000000000", header{1, 0x7e0000000000, 0x81}, true, true, false},
		{"v1 write", "0000010000000000002000000000007e0100000000000000", header{65536, 0x7e00000000002000, 1}, true, false, false},
		{"v1 read", "0000000000000080000000000000007e0000000000000000", header{1 << 63, 0x7e00000000000000, 0}, false, false, false},
		{"opcode 0xff is a v2 read", "0100000000000000ffffffffffffffffff00000000000000", header{1, math.MaxUint64, 0xff}, false, true, true},
		{"opcode 2 is a v1 read", "ffffffffffffffff01000000000000000200000000000000", header{math.MaxUint64, 1, 2}, false, false, true},
		{"opcode 0x41 is a v1 read", "010000000000000001000000000000004100000000000000", header{1, 1, 0x41}, false, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := unhex(t, c.hex)
			h := parseHeader(raw)
			if h != c.h || h.write() != c.write || h.v2() != c.v2 || h.wraps() != c.wraps {
				t.Errorf("parsed %+v write=%v v2=%v wraps=%v", h, h.write(), h.v2(), h.wraps())
			}
			var out [headerLen]byte
			c.h.put(out[:])
			if hex.EncodeToString(out[:]) != c.hex {
				t.Errorf("encoded %x", out)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		hex  string
		code uint32
		ok   bool
	}{
		{"000000005654434d", statusOK, true},
		{"010000005654434d", statusRejected, true},
		{"020000005654434d", 2, true},
		{"0000000000000000", 0, false},
		{"000000005654434e", 0, false},
	} {
		code, ok := parseStatus(unhex(t, c.hex))
		if ok != c.ok || (ok && code != c.code) {
			t.Errorf("%s: %d, %v", c.hex, code, ok)
		}
		if ok {
			var out [statusLen]byte
			putStatus(out[:], code)
			if hex.EncodeToString(out[:]) != c.hex {
				t.Errorf("status %d encoded as %x", code, out)
			}
		}
	}
}

func FuzzHeader(f *testing.F) {
	f.Add(make([]byte, headerLen))
	f.Add(bytes.Repeat([]byte{0xff}, headerLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerLen {
			return
		}
		h := parseHeader(b)
		var out [headerLen]byte
		h.put(out[:])
		if !bytes.Equal(out[:17], b[:17]) || !bytes.Equal(out[17:], make([]byte, 7)) {
			t.Fatalf("%x became %x", b[:headerLen], out)
		}
		if h.write() != (b[16]&0x7f == 1) || h.v2() != (b[16] >= 0x80) {
			t.Fatalf("opcode %#x: write=%v v2=%v", b[16], h.write(), h.v2())
		}
	})
}

func FuzzStatus(f *testing.F) {
	f.Add(make([]byte, statusLen))
	f.Add([]byte("\x01\x00\x00\x00VTCM"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < statusLen {
			return
		}
		code, ok := parseStatus(b)
		if ok != bytes.Equal(b[4:8], []byte("VTCM")) {
			t.Fatalf("%x: ok=%v", b[:8], ok)
		}
		if ok {
			var out [statusLen]byte
			putStatus(out[:], code)
			if !bytes.Equal(out[:], b[:8]) {
				t.Fatalf("%x became %x", b[:8], out)
			}
		}
	})
}

func BenchmarkHeaderCodec(b *testing.B) {
	b.ReportAllocs()
	var buf [headerLen]byte
	h := header{size: 4096, addr: 0x7e0000000000, op: opWrite | flagV2}
	for b.Loop() {
		h.put(buf[:])
		h = parseHeader(buf[:])
		h.addr++
	}
}
