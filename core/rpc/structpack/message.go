package structpack

import (
	"bytes"
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"sync"
)

// Metainfo bits.
const (
	metaCompatible   = 0b00011
	metaLiteral      = 0b00100
	metaWidthShift   = 3
	metaWidth        = 0b11000
	hashHasMeta      = 1
	maxLiteralLength = 4096
)

// Code returns the type code of a literal: the first four bytes of its MD5, big-endian, bit 0 cleared.
func Code(literal string) uint32 {
	sum := md5.Sum([]byte(literal))
	return binary.BigEndian.Uint32(sum[:4]) &^ hashHasMeta
}

// Message writes and reads whole messages of one type, header included. Immutable; safe for
// concurrent use.
type Message[T any] struct {
	typ   Type[T]
	code  uint32
	tuple uint32 // code of the same type wrapped in a one-element tuple
}

// NewMessage makes the message of type t.
func NewMessage[T any](t Type[T]) *Message[T] {
	return &Message[T]{typ: t, code: Code(t.literal), tuple: Code("\xfd" + t.literal + "\xff")}
}

// Code returns the type code.
func (m *Message[T]) Code() uint32 { return m.code }

// Literal returns the type literal without its NUL.
func (m *Message[T]) Literal() string { return m.typ.literal }

// Reset makes *v the zero value but keeps the capacity of its slices, for reuse.
func (m *Message[T]) Reset(v *T) { m.typ.reset(v) }

// Append appends the message for *v to dst and returns the extended slice. literal says whether the
// type literal is written; the length width is the smallest that fits, as the C++ writer chooses it.
// On error dst is returned as it was.
func (m *Message[T]) Append(dst []byte, v *T, literal bool) ([]byte, error) {
	e := encoders.Get().(*Encoder)
	defer e.release()
	e.buf, e.width = dst, 0
	for {
		hash, meta := m.code, e.width<<metaWidthShift
		if literal {
			meta |= metaLiteral
		}
		if meta != 0 {
			hash |= hashHasMeta
		}
		e.buf = binary.LittleEndian.AppendUint32(e.buf[:len(dst)], hash)
		if meta != 0 {
			e.buf = append(e.buf, meta)
		}
		if literal {
			e.buf = append(append(e.buf, m.typ.literal...), 0)
		}
		e.need = 0
		m.typ.write(e, v)
		if e.err != nil {
			return dst, e.err
		}
		if e.need <= e.width {
			return e.buf, nil
		}
		e.width = e.need
	}
}

// Decode reads a message into *v. With alias, strings share the memory of body. Bytes after the
// payload are ignored, as the C++ reader does. After an error *v holds nothing of use.
func (m *Message[T]) Decode(body []byte, v *T, alias bool) error {
	h, err := ParseHeader(body)
	if err != nil {
		return err
	}
	return m.DecodeHeader(h, v, alias)
}

// DecodeHeader is Decode for a header that was parsed before.
func (m *Message[T]) DecodeHeader(h Header, v *T, alias bool) error {
	if h.Code != m.code {
		return fmt.Errorf("%w: %w: code %08x, want %08x", ErrMalformed, ErrType, h.Code, m.code)
	}
	if h.HasLiteral && string(h.Literal) != m.typ.literal {
		return fmt.Errorf("%w: %w: literal %x, want %x", ErrMalformed, ErrType, h.Literal, m.typ.literal)
	}
	return m.payload(h, v, alias)
}

// DecodeTuple reads the message from a one-element tuple around it, the form in which old clients
// send a single argument.
func (m *Message[T]) DecodeTuple(h Header, v *T, alias bool) error {
	if h.Code != m.tuple {
		return fmt.Errorf("%w: %w: code %08x, want tuple %08x", ErrMalformed, ErrType, h.Code, m.tuple)
	}
	if l := h.Literal; h.HasLiteral && (len(l) != len(m.typ.literal)+2 || string(l[1:len(l)-1]) != m.typ.literal) {
		return fmt.Errorf("%w: %w: literal %x, want tuple of %x", ErrMalformed, ErrType, l, m.typ.literal)
	}
	return m.payload(h, v, alias)
}

// TupleCode returns the code of the one-element tuple form.
func (m *Message[T]) TupleCode() uint32 { return m.tuple }

func (m *Message[T]) payload(h Header, v *T, alias bool) error {
	d := decoders.Get().(*Decoder)
	*d = Decoder{buf: h.Payload, width: h.Width, alias: alias, budget: memoryFloor + memoryFactor*len(h.Payload)}
	m.typ.read(d, v)
	err := d.err
	*d = Decoder{} // keep no reference to the message
	decoders.Put(d)
	return err
}

// Encoders and decoders are passed to functions that the compiler cannot see through, so they would
// be allocated for each message.
var (
	encoders = sync.Pool{New: func() any { return new(Encoder) }}
	decoders = sync.Pool{New: func() any { return new(Decoder) }}
)

func (e *Encoder) release() {
	*e = Encoder{}
	encoders.Put(e)
}

// Header is the parsed head of a message. Literal and Payload share the message's memory.
type Header struct {
	Code       uint32
	Width      uint8 // log2 of the size of a container length
	HasLiteral bool
	Literal    []byte
	Payload    []byte
}

// ParseHeader splits a message into its header and payload.
func ParseHeader(body []byte) (Header, error) {
	if len(body) < 4 {
		return Header{}, fmt.Errorf("%w: %d bytes are too short for a header", ErrMalformed, len(body))
	}
	hash := binary.LittleEndian.Uint32(body)
	h := Header{Code: hash &^ hashHasMeta, Payload: body[4:]}
	if hash&hashHasMeta == 0 {
		return h, nil
	}
	if len(h.Payload) == 0 {
		return Header{}, fmt.Errorf("%w: no metainfo byte", ErrMalformed)
	}
	meta := h.Payload[0]
	h.Payload = h.Payload[1:]
	h.Width = meta & metaWidth >> metaWidthShift
	if n := meta & metaCompatible; n != 0 { // u16, u32 or u64 total length; not needed to find the payload
		size := 1 << n
		if len(h.Payload) < size {
			return Header{}, fmt.Errorf("%w: truncated compatible length", ErrMalformed)
		}
		h.Payload = h.Payload[size:]
	}
	if meta&metaLiteral != 0 {
		end := bytes.IndexByte(h.Payload[:min(len(h.Payload), maxLiteralLength)], 0)
		if end < 0 {
			return Header{}, fmt.Errorf("%w: type literal without end", ErrMalformed)
		}
		h.HasLiteral, h.Literal, h.Payload = true, h.Payload[:end], h.Payload[end+1:]
	}
	return h, nil
}

// HasLiteral reports whether a message announces a type literal, without parsing it. An answer that
// mirrors the request's form is understood by every build of the peer.
func HasLiteral(body []byte) bool {
	return len(body) > 4 && body[0]&hashHasMeta != 0 && body[4]&metaLiteral != 0
}
