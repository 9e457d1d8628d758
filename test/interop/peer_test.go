package interop

import (
	"crypto/sha256"
	"crypto/sha3"
	"encoding/hex"
	"fmt"
	"testing"
	"time"
)

// soon bounds one step of a peer on a busy two-core machine.
const soon = 60 * time.Second

// op is one range of a transfer.
type op struct {
	local  int    // offset in the initiator's memory
	remote uint64 // absolute address in the target
	n      int
}

// memory is a peer's registered memory; offsets count from base.
type memory interface {
	base() uint64
	fill(off, n int, seed string) // with pattern(seed, n)
	zero(off, n int)
	sha(off, n int) string
}

// target is an engine that others write to and read from.
type target interface {
	memory
	// name is what an initiator opens.
	name() string
}

// initiator is an engine that moves bytes to and from targets.
type initiator interface {
	memory
	// move runs the ops, several as one batch, and returns when all are done or one failed.
	move(target string, write bool, ops ...op) error
}

// pattern is the first n bytes of the SHAKE-128 stream of seed; testdata/wheel.py knows it too.
func pattern(seed string, n int) []byte {
	b := make([]byte, n)
	h := sha3.NewSHAKE128()
	h.Write([]byte(seed))
	h.Read(b)
	return b
}

// sum is the SHA-256 of the parts, in hex.
func sum(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// guard is how many bytes before and after each range are checked to be untouched.
const guard = 64

// checkSum compares a range of m, with its guards, to the pattern between zeros.
func checkSum(t *testing.T, m memory, off, n int, seed string) error {
	t.Helper()
	z := make([]byte, guard)
	if got, want := m.sha(off-guard, n+2*guard), sum(z, pattern(seed, n), z); got != want {
		return fmt.Errorf("content of %d bytes at offset %d: SHA-256 %s, want %s", n, off, got, want)
	}
	return nil
}
