package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// Reader reads an object piece by piece. Each piece is read under a lease; between the pieces time may pass: the
// object is looked up again then, and if it has been removed or replaced meanwhile, reading ends with ErrNotFound
// or ErrChanged. Not safe for concurrent use.
type Reader struct {
	c   *Client
	ctx context.Context
	cur reading // the lookup in force
	off uint64
	sum uint64 // of [0, off), valid if inOrder
	// inOrder: everything up to off was read, so that the checksum can be checked at the end.
	inOrder bool
}

var (
	_ io.ReadSeeker = (*Reader)(nil)
	_ io.ReaderAt   = (*Reader)(nil)
	_ io.WriterTo   = (*Reader)(nil)
)

// Open looks an object up for reading in pieces. ctx is that of all reads. There is nothing to close.
func (c *Client) Open(ctx context.Context, key string) (*Reader, error) {
	r := &Reader{c: c, ctx: ctx, cur: reading{key: key}, inOrder: true}
	c.lookupOne(ctx, &r.cur)
	if r.cur.err != nil {
		err := fail("get", key, r.cur.err)
		c.m.done("open", err)
		return nil, err
	}
	c.m.done("open", nil)
	return r, nil
}

// Size of the object in bytes.
func (r *Reader) Size() int64 { return int64(r.cur.size) }

// Checksum is the CRC-64 that the object was put with, if it was put with one.
func (r *Reader) Checksum() (sum uint64, ok bool) {
	return r.cur.list.Checksum.Value, r.cur.list.Checksum.OK
}

// ReadAt reads at an offset. It does not move the position of Read.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, failf("get", r.cur.key, ErrInvalid, "offset %d", off)
	}
	if uint64(off) >= r.cur.size {
		return 0, io.EOF
	}
	n := min(uint64(len(p)), r.cur.size-uint64(off))
	if err := r.piece(p[:n], uint64(off)); err != nil {
		return 0, err
	}
	if n < uint64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// Read reads on. After the last byte it is io.EOF, or ErrChecksum if checksums are on and the object, read in
// order, is not what was put.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := r.ReadAt(p, int64(r.off))
	if n > 0 {
		r.took(p[:n])
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		return 0, r.end()
	}
	return 0, err
}

func (r *Reader) took(p []byte) {
	if r.inOrder && r.c.opt.Checksum {
		r.sum = Checksum(r.sum, p)
	}
	r.off += uint64(len(p))
}

// end is the error at the end of the object.
func (r *Reader) end() error {
	if want := r.cur.list.Checksum; r.inOrder && r.off == r.cur.size && r.c.opt.Checksum && want.OK && want.Value != r.sum {
		return failf("get", r.cur.key, ErrChecksum, "%016x, put with %016x", r.sum, want.Value)
	}
	return io.EOF
}

// Seek moves the position of Read.
func (r *Reader) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		off += int64(r.off)
	case io.SeekEnd:
		off += int64(r.cur.size)
	default:
		off = -1
	}
	if off < 0 {
		return 0, failf("get", r.cur.key, ErrInvalid, "seek to a negative offset")
	}
	if uint64(off) != r.off {
		r.inOrder = off == 0
		r.sum = 0
	}
	r.off = uint64(off)
	return off, nil
}

// ReadBuffer is the memory that WriteTo takes for large objects.
const ReadBuffer = 2 * pieceSize

const pieceSize = 4 << 20

// WriteTo writes the rest of the object to w. The next piece is read while one is written, so a slow w costs
// no more than its own time.
func (r *Reader) WriteTo(w io.Writer) (int64, error) {
	type part struct {
		b   []byte
		err error
	}
	rest := r.cur.size - min(r.off, r.cur.size)
	free := make(chan []byte, 2)
	for range 2 {
		free <- make([]byte, min(rest, pieceSize))
		if rest <= pieceSize {
			break
		}
	}
	parts, stop := make(chan part), make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(parts)
		for off := r.off; off < r.cur.size; {
			var b []byte
			select {
			case b = <-free:
			case <-stop:
				return
			}
			b = b[:min(uint64(cap(b)), r.cur.size-off)]
			p := part{b, r.piece(b, off)}
			off += uint64(len(b))
			select {
			case parts <- p:
			case <-stop:
				return
			}
			if p.err != nil {
				return
			}
		}
	}()
	written, err := int64(0), error(nil)
	for p := range parts {
		if err = p.err; err != nil {
			break
		}
		var n int
		n, err = w.Write(p.b)
		written += int64(n)
		if err != nil {
			break
		}
		r.took(p.b)
		free <- p.b
	}
	close(stop)
	<-done
	if err == nil {
		if err = r.end(); errors.Is(err, io.EOF) {
			err = nil
		}
	}
	return written, err
}

// piece reads a part of the object.
func (r *Reader) piece(dst []byte, off uint64) error {
	begin := time.Now()
	if err := r.refresh(begin); err != nil {
		r.c.m.done("get", err)
		return err
	}
	x := reading{key: r.cur.key, off: off, size: r.cur.size, dst: dst, list: r.cur.list, until: r.cur.until}
	x.left = append(x.left, r.cur.left...)
	r.c.read(r.ctx, []*reading{&x}, false)
	if x.until.After(r.cur.until) {
		r.cur.until = x.until // it was renewed
	}
	err := r.c.finishRead(&x)
	r.c.m.call("get", uint64(len(dst)), begin, err)
	return err
}

// refresh looks the object up again when less than half of its lease is left.
func (r *Reader) refresh(now time.Time) error {
	ttl := time.Duration(min(r.cur.list.LeaseTTLMS, uint64(maxLease/time.Millisecond))) * time.Millisecond
	if now.Before(r.cur.until.Add(-ttl / 2)) {
		return nil
	}
	fresh := reading{key: r.cur.key}
	r.c.lookupOne(r.ctx, &fresh)
	if fresh.err != nil {
		if now.Before(r.cur.until) && errors.Is(fail("", "", fresh.err), ErrUnavailable) {
			return nil // the old lease still holds
		}
		return fail("get", r.cur.key, fmt.Errorf("in the middle of the object: %w", fresh.err))
	}
	if !sameObject(&r.cur, &fresh) {
		return fail("get", r.cur.key, ErrChanged)
	}
	r.cur = fresh
	return nil
}

// sameObject tells whether two lookups of a key found the same object: it has the same checksum, or, if it has none, a
// replica of the first is still there. The ids of replicas are given once in the life of a master.
func sameObject(a, b *reading) bool {
	if a.size != b.size || a.list.Checksum != b.list.Checksum {
		return false
	}
	if a.list.Checksum.OK {
		return true
	}
	for _, x := range a.list.Replicas {
		for _, y := range b.list.Replicas {
			if sameReplica(&x, &y) {
				return true
			}
		}
	}
	return false
}

func sameReplica(x, y *wire.Replica) bool {
	return x.ID == y.ID && x.Kind == y.Kind && x.Address == y.Address && x.Size == y.Size && x.Endpoint == y.Endpoint
}
