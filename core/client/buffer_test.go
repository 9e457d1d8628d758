package client

import "testing"

func TestBufferSizes(t *testing.T) {
	for _, n := range []uint64{0, 1, 4096, 4097, 1 << 20, 1<<20 + 1, 1 << 22} {
		b := newBuffer(n)
		if uint64(len(b.Bytes())) != n || len(b.mem) < 4096 || n > 4096 && uint64(len(b.mem)) >= 2*n {
			t.Errorf("%d bytes: %d, of %d", n, len(b.Bytes()), len(b.mem))
		}
		b.Release()
		if again := newBuffer(n); uint64(len(again.Bytes())) != n {
			t.Errorf("%d bytes from the pool: %d", n, len(again.Bytes()))
		}
	}
}
