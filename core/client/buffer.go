package client

import (
	"context"
	"math/bits"
	"sync"
)

// Buffer is memory with an object's value, for callers that read many objects: it is used again after Release, so that
// neither the allocator nor the garbage collector sees each object.
type Buffer struct {
	mem   []byte
	n     int
	class int // of the pool; -1: none
}

// Bytes is the value. It must not be used after Release.
func (b *Buffer) Bytes() []byte { return b.mem[:b.n] }

// Release gives the memory back. It must be called at most once; a buffer that is not released is garbage like any
// other.
func (b *Buffer) Release() {
	if b.class >= 0 {
		buffers[b.class].Put(b)
	}
}

// The pools hold memory of 4 KiB times powers of two, up to 1 GiB; what is larger is allocated each time.
const (
	smallestBuffer = 12
	bufferClasses  = 19
)

var buffers [bufferClasses]sync.Pool

// newBuffer returns memory for n bytes, whose content is anything.
func newBuffer(n uint64) *Buffer {
	class := max(bits.Len64(n-1), smallestBuffer) - smallestBuffer
	if n == 0 {
		class = 0
	}
	if class >= bufferClasses {
		return &Buffer{mem: make([]byte, n), n: int(n), class: -1}
	}
	if b, ok := buffers[class].Get().(*Buffer); ok {
		b.n = int(n)
		return b
	}
	return &Buffer{mem: make([]byte, 1<<(class+smallestBuffer)), n: int(n), class: class}
}

// GetBuffer is Get into memory that is used again: the caller releases the buffer when it is done with the value.
func (c *Client) GetBuffer(ctx context.Context, key string) (*Buffer, error) {
	r := reading{key: key}
	var b *Buffer
	err := c.getOne(ctx, &r, func(size uint64) ([]byte, error) {
		b = newBuffer(size)
		return b.Bytes(), nil
	})
	if err != nil {
		return nil, err // its memory is left to the garbage collector: a transport may still use it
	}
	return b, nil
}
