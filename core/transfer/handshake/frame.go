package handshake

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/mooncake-agent/mooncake/core/units"
)

// Message types.
const (
	TypeConnection byte = 0 // RDMA connection setup
	TypeMetadata   byte = 1 // exchange of segment descriptors
	TypeNotify     byte = 2 // a message for the application
	TypeProbe      byte = 3 // is the daemon alive
)

// Limits of the length field of a received frame; upstream's MC_HANDSHAKE_MAX_LENGTH.
const (
	DefaultMaxLength = units.MiB
	MinMaxLength     = units.MiB
	MaxMaxLength     = 128 * units.MiB
)

var (
	// ErrLength is wrapped by the error for a frame whose length is 0 or above the limit.
	ErrLength = errors.New("handshake frame length out of bounds")
	// ErrType is wrapped by the error for a frame of unknown or unexpected type.
	ErrType = errors.New("unexpected handshake message type")
)

// Frame is one message. Body is the JSON text as received, its trailing newline included.
type Frame struct {
	Type byte
	// Old marks a message of the oldest protocol, which has no type byte. Its Type is TypeConnection.
	Old  bool
	Body []byte
}

// typeName names a type in logs and metric labels.
func typeName(t byte) string {
	return [...]string{"connection", "metadata", "notify", "probe", "unknown"}[min(t, 4)]
}

// AppendFrame appends f as it travels. A newline is added to Body if it has none, as upstream's writer does.
func AppendFrame(dst []byte, f Frame) []byte {
	n := len(f.Body)
	newline := n == 0 || f.Body[n-1] != '\n'
	if newline {
		n++
	}
	if !f.Old {
		n++
	}
	dst = binary.LittleEndian.AppendUint64(dst, uint64(n))
	if !f.Old {
		dst = append(dst, f.Type)
	}
	dst = append(dst, f.Body...)
	if newline {
		dst = append(dst, '\n')
	}
	return dst
}

// readChunk is how much memory a length field alone can make the reader take.
const readChunk = 64 << 10

// ReadFrame reads one frame. max bounds the length field (0 = DefaultMaxLength). Memory grows with what
// was received, not with what was announced. The body is not checked to be JSON.
func ReadFrame(r io.Reader, max units.Size) (Frame, error) {
	if max == 0 {
		max = DefaultMaxLength
	}
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	n := binary.LittleEndian.Uint64(head[:])
	if n == 0 || n > uint64(max) {
		return Frame{}, fmt.Errorf("%w: %d bytes, the limit is %d (handshake_max_length, MC_HANDSHAKE_MAX_LENGTH)", ErrLength, n, uint64(max))
	}
	b := make([]byte, 0, min(n, readChunk))
	for uint64(len(b)) < n {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		chunk := b[len(b):min(uint64(cap(b)), n)]
		got, err := io.ReadFull(r, chunk)
		b = b[:len(b)+got]
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return Frame{}, err
		}
	}
	switch t := b[0]; {
	case t <= TypeProbe:
		return Frame{Type: t, Body: b[1:]}, nil
	case t < 0x80: // upstream compares a signed byte
		return Frame{Type: TypeConnection, Old: true, Body: b}, nil
	default:
		return Frame{}, fmt.Errorf("%w: %#x", ErrType, t)
	}
}
