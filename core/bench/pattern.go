package bench

import (
	"encoding/binary"
	"fmt"
)

// fill writes the pattern of seed into b. Every 8 bytes differ within a block and between seeds, so
// that a lost, repeated, shifted or stale block is seen.
func fill(b []byte, seed uint64) {
	x := seed
	for len(b) >= 8 {
		x += 0x9e3779b97f4a7c15
		binary.LittleEndian.PutUint64(b, x*0xbf58476d1ce4e5b9)
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], (x+0x9e3779b97f4a7c15)*0xbf58476d1ce4e5b9)
		copy(b, last[:])
	}
}

// check compares b with the pattern of seed and tells where they differ first.
func check(b []byte, seed uint64) error {
	x, whole := seed, b
	for len(b) >= 8 {
		x += 0x9e3779b97f4a7c15
		if want := x * 0xbf58476d1ce4e5b9; binary.LittleEndian.Uint64(b) != want {
			return mismatch(whole, len(whole)-len(b), want)
		}
		b = b[8:]
	}
	want := (x + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	for i, got := range b {
		if got != byte(want>>(8*i)) {
			return mismatch(whole, len(whole)-len(b), want)
		}
	}
	return nil
}

func mismatch(b []byte, at int, want uint64) error {
	var w [8]byte
	binary.LittleEndian.PutUint64(w[:], want)
	end := min(at+8, len(b))
	return fmt.Errorf("wrong content: bytes %d to %d of a block of %d are %x, want %x", at, end-1, len(b), b[at:end], w[:end-at])
}

// seedOf makes the seed of one block of one batch.
func seedOf(thread, batch, op int) uint64 {
	return uint64(thread+1)<<48 ^ uint64(batch+1)<<20 ^ uint64(op+1)
}
