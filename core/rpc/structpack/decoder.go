package structpack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// ErrMalformed is wrapped by every error of a reader: wrong type code or literal, missing bytes, a
// length beyond the message, an unknown variant index, a claim for too much memory.
var ErrMalformed = errors.New("structpack: malformed message")

// ErrType is wrapped, together with [ErrMalformed], when the message is of another type.
var ErrType = errors.New("message is of another type")

// A reader may claim memoryFloor bytes plus memoryFactor bytes for each byte of the message. The
// factor covers Go's representation of honest messages (a string header for each short string, a
// struct for each optional); it stops a message of empty strings from taking 16 times its size and
// nested ones from taking more.
const (
	memoryFloor  = 1 << 20
	memoryFactor = 16
)

// Decoder reads one payload. The first failure sticks: later reads return zero values, and the
// error is reported once by [Message.Decode]. Not safe for concurrent use.
type Decoder struct {
	buf    []byte
	off    int
	budget int
	width  uint8
	alias  bool
	err    error
}

// Fail records why the payload is malformed; the first reason wins.
func (d *Decoder) Fail(why string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w at byte %d of the payload: %s", ErrMalformed, d.off, why)
	}
}

// Failed reports whether a read has failed; loops over elements stop then.
func (d *Decoder) Failed() bool { return d.err != nil }

func (d *Decoder) remaining() int { return len(d.buf) - d.off }

// take returns the next n bytes, or nil after a failure.
func (d *Decoder) take(n int) []byte {
	if d.err != nil || n > len(d.buf)-d.off {
		d.Fail("truncated")
		return nil
	}
	b := d.buf[d.off : d.off+n : d.off+n]
	d.off += n
	return b
}

// U8 reads one byte.
func (d *Decoder) U8() uint8 {
	if d.off >= len(d.buf) || d.err != nil {
		d.Fail("truncated")
		return 0
	}
	v := d.buf[d.off]
	d.off++
	return v
}

// Bool reads one byte; any value but 0 is true, as for the C++ reader.
func (d *Decoder) Bool() bool { return d.U8() != 0 }

// U16 reads two bytes.
func (d *Decoder) U16() uint16 {
	if b := d.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

// U32 reads four bytes.
func (d *Decoder) U32() uint32 {
	if b := d.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// U64 reads eight bytes.
func (d *Decoder) U64() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// Len reads a container length and fails unless that many elements of at least min bytes each can
// still follow. It returns 0 after a failure.
func (d *Decoder) Len(min int) int {
	var n uint64
	switch d.width {
	case 0:
		n = uint64(d.U8())
	case 1:
		n = uint64(d.U16())
	case 2:
		n = uint64(d.U32())
	default:
		n = d.U64()
	}
	if d.err != nil {
		return 0
	}
	if left := uint64(d.remaining()); n > math.MaxInt32 || n*uint64(max(min, 1)) > left {
		d.Fail("length beyond the end of the message")
		return 0
	}
	return int(n)
}

// Claim accounts n bytes of memory that the reader is about to allocate; false means that the
// message asks for too much and has failed.
func (d *Decoder) Claim(n int) bool {
	if d.err != nil {
		return false
	}
	if n > d.budget {
		d.Fail("asks for too much memory")
		return false
	}
	d.budget -= n
	return true
}

// String reads a length and bytes. If the message is decoded with alias, the string shares the
// message's memory and lives as long as that stays unchanged.
func (d *Decoder) String() string {
	n := d.Len(1)
	if n == 0 {
		return ""
	}
	b := d.take(n)
	if d.alias {
		return unsafe.String(unsafe.SliceData(b), len(b))
	}
	return string(b)
}
