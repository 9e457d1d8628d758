package trace

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const blockHead = 8

// Writer writes a recording. It is for one goroutine. Append costs a copy into memory of fixed size and, once in
// BlockSize bytes, one Write; it never allocates.
type Writer struct {
	w       io.Writer
	flusher interface{ Flush() error } // a compressor, or nil
	closers []io.Closer                // the compressor, then the file
	buf     []byte                     // head and content of the open block
	c       context
	last    uint64 // largest time so far
	records uint64
	bytes   uint64 // before compression
	err     error
}

// NewWriter begins a recording on w, which must take each Write whole.
func NewWriter(w io.Writer, h Header) (*Writer, error) {
	head, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	if len(head) > maxHeader {
		return nil, fmt.Errorf("trace: header of %d bytes, at most %d: %w", len(head), maxHeader, ErrFormat)
	}
	text := append([]byte(Magic), append(head, '\n')...)
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	return &Writer{w: w, buf: make([]byte, blockHead, blockHead+BlockSize), bytes: uint64(len(text))}, nil
}

// Create begins a recording in a new file, readable by its owner only and compressed if the name ends in .gz or .zst. An existing
// file is an error: recordings are not overwritten.
func Create(path string, h Header) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	w, err := NewCompressor(path, f)
	if err == nil {
		var t *Writer
		if t, err = NewWriter(w, h); err == nil {
			t.closers = []io.Closer{f}
			if c, ok := w.(compressor); ok {
				t.flusher, t.closers = c, []io.Closer{c, f}
			}
			return t, nil
		}
	}
	_ = f.Close()
	_ = os.Remove(path)
	return nil, fmt.Errorf("%s: %w", path, err)
}

// Append adds a record. An error is final: the same is returned ever after, by Flush and Close too.
func (w *Writer) Append(r *Record) error {
	if w.err != nil {
		return w.err
	}
	if len(w.buf)+maxRecord > blockHead+BlockSize {
		if err := w.block(); err != nil {
			return err
		}
	}
	w.last = max(w.last, r.TimeMS)
	w.buf = w.c.append(w.buf, r, w.last)
	w.records++
	return nil
}

// append encodes r after what c remembers.
func (c *context) append(b []byte, r *Record, now uint64) []byte {
	at := len(b)
	tag := byte(r.Op) & tagOp
	b = append(b, 0, byte(r.Flags))
	if c.begun && c.op == r.Op && c.time == now && c.batch == r.Batch && c.tenant == r.Tenant {
		tag |= tagSame
	} else {
		b = binary.AppendUvarint(b, now-c.time)
		b = binary.AppendVarint(b, int64(r.Batch)-int64(c.batch))
		b = binary.AppendUvarint(b, uint64(r.Tenant))
	}
	if c.begun && r.Key == c.parent {
		tag |= tagKeyIsParent
	} else {
		b = binary.LittleEndian.AppendUint64(b, r.Key)
	}
	switch {
	case r.Parent == 0:
	case c.begun && r.Parent == c.key:
		tag |= tagParentLast
	default:
		tag |= tagParentGiven
		b = binary.LittleEndian.AppendUint64(b, r.Parent)
	}
	b = binary.AppendUvarint(b, r.Size)
	b[at] = tag
	// Field by field: a literal is put together elsewhere and copied, which waits for its small parts.
	c.begun, c.op, c.tenant, c.batch = true, r.Op&tagOp, r.Tenant, r.Batch
	c.time, c.key, c.parent = now, r.Key, r.Parent
	return b
}

// block writes the open block, if there is anything in it, and opens the next.
func (w *Writer) block() error {
	content := w.buf[blockHead:]
	if w.err != nil || len(content) == 0 {
		return w.err
	}
	binary.LittleEndian.PutUint32(w.buf, uint32(len(content)))
	binary.LittleEndian.PutUint32(w.buf[4:], crc32.Checksum(content, castagnoli))
	_, w.err = w.w.Write(w.buf)
	w.bytes += uint64(len(w.buf))
	w.buf, w.c = w.buf[:blockHead], context{}
	return w.err
}

// Flush writes what was appended through to the file, compressor included. Each call ends a block and costs a little
// space: once a second is plenty.
func (w *Writer) Flush() error {
	if err := w.block(); err != nil {
		return err
	}
	if w.flusher != nil {
		w.err = w.flusher.Flush()
	}
	return w.err
}

// Records is the number of records appended.
func (w *Writer) Records() uint64 { return w.records }

// Bytes is the size of the recording so far, before compression.
func (w *Writer) Bytes() uint64 { return w.bytes + uint64(len(w.buf)-blockHead) }

// Close writes what is left and closes what Create opened. The writer must not be used afterwards.
func (w *Writer) Close() error {
	err := w.block()
	for _, c := range w.closers {
		if e := c.Close(); err == nil {
			err = e
		}
	}
	return err
}

// IsRecording tells whether a file that begins like this is a recording.
func IsRecording(begin []byte) bool { return bytes.HasPrefix(begin, []byte(Magic)) }
