package structpack

import (
	"encoding/binary"
	"errors"
	"math"
)

// ErrUnrepresentable is wrapped when a value has no form in the wire type, for instance a variant
// alternative that an older protocol version does not know.
var ErrUnrepresentable = errors.New("structpack: value has no form in this wire type")

// Encoder appends one payload to a buffer. It is used through [Message.Append]; custom types
// ([Custom]) call its methods. Not safe for concurrent use.
type Encoder struct {
	buf   []byte
	width uint8 // log2 of the size of a container length in this attempt
	need  uint8 // log2 of the size that the longest container seen so far needs
	err   error
}

// U8 appends one byte.
func (e *Encoder) U8(v uint8) { e.buf = append(e.buf, v) }

// Bool appends one byte, 0 or 1.
func (e *Encoder) Bool(v bool) {
	b := byte(0)
	if v {
		b = 1
	}
	e.buf = append(e.buf, b)
}

// U16 appends two bytes, little-endian like all integers.
func (e *Encoder) U16(v uint16) { e.buf = binary.LittleEndian.AppendUint16(e.buf, v) }

// U32 appends four bytes.
func (e *Encoder) U32(v uint32) { e.buf = binary.LittleEndian.AppendUint32(e.buf, v) }

// U64 appends eight bytes.
func (e *Encoder) U64(v uint64) { e.buf = binary.LittleEndian.AppendUint64(e.buf, v) }

// Len appends a container length. A length that does not fit the width of this attempt makes
// [Message.Append] start again with a wider one.
func (e *Encoder) Len(n int) {
	if w := widthFor(n); w > e.need {
		e.need = w
	}
	switch e.width {
	case 0:
		e.buf = append(e.buf, byte(n))
	case 1:
		e.U16(uint16(n))
	case 2:
		e.U32(uint32(n))
	default:
		e.U64(uint64(n))
	}
}

// String appends a length and the bytes.
func (e *Encoder) String(s string) {
	e.Len(len(s))
	e.buf = append(e.buf, s...)
}

// Fail records that the value cannot be written; the first error wins.
func (e *Encoder) Fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

// stop tells loops over elements that this attempt is lost.
func (e *Encoder) stop() bool { return e.need > e.width || e.err != nil }

func widthFor(n int) uint8 {
	switch {
	case n <= math.MaxUint8:
		return 0
	case n <= math.MaxUint16:
		return 1
	case n <= math.MaxUint32:
		return 2
	}
	return 3
}
