package trace

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// Reader reads a recording. It is for one goroutine and holds one block in memory.
type Reader struct {
	r       *bufio.Reader
	closers []io.Closer
	name    string
	header  Header
	rest    []byte // of the open block
	buf     []byte
	c       context
	last    uint64
	records uint64
	blocks  uint64
	cut     bool
	err     error
}

// NewReader reads the beginning of a recording that is not compressed (see [Decompress]). name is used in errors.
func NewReader(name string, r io.Reader) (*Reader, error) {
	t := &Reader{r: bufio.NewReaderSize(r, 1<<16), name: name}
	magic := make([]byte, len(Magic))
	if _, err := io.ReadFull(t.r, magic); err != nil || string(magic) != Magic {
		return nil, fmt.Errorf("%s: does not begin with the line %q: %w", name, Magic[:len(Magic)-1], ErrFormat)
	}
	line, err := t.headerLine()
	if err == nil {
		err = json.Unmarshal(line, &t.header)
	}
	if err != nil {
		return nil, fmt.Errorf("%s:2: want a header as one line of JSON: %w: %w", name, err, ErrFormat)
	}
	return t, nil
}

func (t *Reader) headerLine() ([]byte, error) {
	var line []byte
	for len(line) <= maxHeader {
		b, err := t.r.ReadByte()
		if err != nil {
			return nil, err
		}
		if b == '\n' {
			return line, nil
		}
		line = append(line, b)
	}
	return nil, fmt.Errorf("more than %d bytes", maxHeader)
}

// Open opens a recording, compressed or not. The caller closes it.
func Open(path string) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	d, err := Decompress(f)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t, err := NewReader(path, d)
	if err != nil {
		_ = d.Close()
		_ = f.Close()
		return nil, err
	}
	t.closers = []io.Closer{d, f}
	return t, nil
}

// Header is what the recording says about itself.
func (t *Reader) Header() Header { return t.header }

// Records is the number of records read.
func (t *Reader) Records() uint64 { return t.records }

// Truncated tells, after io.EOF, whether the recording ended in the middle of a block, whose records are lost.
func (t *Reader) Truncated() bool { return t.cut }

// Next reads the next record into r; io.EOF is the end. Other errors wrap ErrFormat, or are those of reading,
// and name the recording, the record and what was expected.
func (t *Reader) Next(r *Record) error {
	if t.err != nil {
		return t.err
	}
	for len(t.rest) == 0 {
		if t.err = t.block(); t.err != nil {
			return t.err
		}
	}
	n, err := t.c.decode(t.rest, r)
	if err == nil && (t.c.time < t.last) {
		err = fmt.Errorf("time %d ms is before the %d ms of the record before", t.c.time, t.last)
	}
	if err != nil {
		t.err = fmt.Errorf("%s: record %d (block %d): %w: %w", t.name, t.records+1, t.blocks, err, ErrFormat)
		return t.err
	}
	t.last = t.c.time
	t.rest = t.rest[n:]
	t.records++
	return nil
}

func (t *Reader) block() error {
	var head [blockHead]byte
	if n, err := io.ReadFull(t.r, head[:]); err != nil {
		t.cut = n > 0 || errors.Is(err, io.ErrUnexpectedEOF) // the second from a compressor
		return t.ended(err)
	}
	length := binary.LittleEndian.Uint32(head[:])
	if length == 0 || length > BlockSize {
		return fmt.Errorf("%s: block %d (after record %d): length %d, want 1..%d: %w", t.name, t.blocks+1, t.records, length, BlockSize, ErrFormat)
	}
	if t.buf == nil {
		t.buf = make([]byte, BlockSize)
	}
	if _, err := io.ReadFull(t.r, t.buf[:length]); err != nil {
		t.cut = true
		return t.ended(err)
	}
	t.blocks++
	t.rest, t.c = t.buf[:length], context{}
	if sum := crc32.Checksum(t.rest, castagnoli); sum != binary.LittleEndian.Uint32(head[4:]) {
		return fmt.Errorf("%s: block %d (after record %d): checksum does not match, the file is damaged: %w", t.name, t.blocks, t.records, ErrFormat)
	}
	return nil
}

// ended makes io.EOF of an end in the middle; other errors of reading stay.
func (t *Reader) ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return io.EOF
	}
	return fmt.Errorf("%s: after record %d: %w", t.name, t.records, err)
}

var errShort = errors.New("the block ends in the middle of it")

// decode reads one record from the beginning of b and returns its length.
func (c *context) decode(b []byte, r *Record) (int, error) {
	if len(b) < 2 {
		return 0, errShort
	}
	tag, all := b[0], len(b)
	*r = Record{Op: Op(tag & tagOp), Flags: Flags(b[1])}
	b = b[2:]
	if tag&tagSame != 0 {
		if !c.begun || c.op != r.Op {
			return 0, errors.New("it continues a call that it is not part of")
		}
		r.TimeMS, r.Batch, r.Tenant = c.time, c.batch, c.tenant
	} else {
		delta, n := binary.Uvarint(b)
		if n <= 0 || c.time+delta < c.time {
			return 0, errors.New("want a time")
		}
		batch, m := binary.Varint(b[n:])
		if batch += int64(c.batch); m <= 0 || batch < 0 || batch > 1<<32-1 {
			return 0, errors.New("want a batch number of 32 bits")
		}
		tenant, k := binary.Uvarint(b[n+m:])
		if k <= 0 || tenant > 1<<32-1 {
			return 0, errors.New("want a tenant of 32 bits")
		}
		r.TimeMS, r.Batch, r.Tenant = c.time+delta, uint32(batch), uint32(tenant)
		b = b[n+m+k:]
	}
	if tag&tagKeyIsParent != 0 {
		if !c.begun {
			return 0, errors.New("its key is the parent of no record")
		}
		r.Key = c.parent
	} else {
		if len(b) < 8 {
			return 0, errShort
		}
		r.Key, b = binary.LittleEndian.Uint64(b), b[8:]
	}
	switch tag & tagParent {
	case tagParentGiven:
		if len(b) < 8 {
			return 0, errShort
		}
		r.Parent, b = binary.LittleEndian.Uint64(b), b[8:]
	case tagParentLast:
		if !c.begun {
			return 0, errors.New("its parent is the key of no record")
		}
		r.Parent = c.key
	case tagParent:
		return 0, errors.New("unknown form of parent")
	}
	size, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, errShort
	}
	r.Size = size
	*c = context{true, r.Op, r.Tenant, r.Batch, r.TimeMS, r.Key, r.Parent}
	return all - len(b) + n, nil
}

// Close closes what Open opened.
func (t *Reader) Close() error {
	var err error
	for _, c := range t.closers {
		if e := c.Close(); err == nil {
			err = e
		}
	}
	t.closers = nil
	return err
}
