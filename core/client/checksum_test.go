package client

import (
	"testing"

	"pgregory.net/rapid"
)

// The values were recorded from a wheel with MOONCAKE_STORE_CHECKSUM=1.
func TestChecksumOfTheWheel(t *testing.T) {
	for in, want := range map[string]uint64{
		"":            0,
		"a":           6093108618008534114,
		"b":           10636992411005044695,
		"checksum me": 12329868470657483267,
		"123456789":   0x6C40DF5F0B497347, // the check value of CRC-64/ECMA-182
	} {
		if got := Checksum(0, []byte(in)); got != want {
			t.Errorf("%q: %d, want %d", in, got, want)
		}
	}
}

// bitwise is the definition.
func bitwise(b []byte) (crc uint64) {
	for _, v := range b {
		crc ^= uint64(v) << 56
		for range 8 {
			if crc>>63 == 1 {
				crc = crc<<1 ^ crcPoly
			} else {
				crc <<= 1
			}
		}
	}
	return crc
}

func TestChecksumInParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		cut := rapid.IntRange(0, len(b)).Draw(t, "cut")
		want := bitwise(b)
		if got := Checksum(0, b); got != want {
			t.Fatalf("%x, want %x", got, want)
		}
		if got := checksumOf([][]byte{b[:cut], nil, b[cut:]}); got != want {
			t.Fatalf("in parts %x, want %x", got, want)
		}
	})
}

func BenchmarkChecksum(b *testing.B) {
	buf := make([]byte, 1<<20)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		Checksum(0, buf)
	}
}
