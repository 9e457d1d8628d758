package rpc

import "fmt"

// bodyChunk is the piece in which a large answer is read, so that its header alone claims no memory.
const bodyChunk = 1 << 20

// intake makes answers of the bytes of a connection: it says where the next ones go, and then what is complete.
type intake struct {
	buf  []byte // read ahead: [r, w)
	r, w int

	head   responseHeader // of the answer that has begun
	begun  bool
	body   []byte // its body so far
	attach int    // bytes behind it that are thrown away
}

// room is where the next bytes go: the rest of a large body straight to its place. It is never empty.
func (in *intake) room() []byte {
	if in.r < in.w { // a part of a header
		if in.w == len(in.buf) {
			in.w = copy(in.buf, in.buf[in.r:in.w])
			in.r = 0
		}
		return in.buf[in.w:]
	}
	in.r, in.w = 0, 0
	if !in.direct() {
		return in.buf
	}
	if len(in.body) == cap(in.body) {
		in.body = append(make([]byte, 0, min(2*cap(in.body), int(in.head.body))), in.body...)
	}
	return in.body[len(in.body):min(cap(in.body), int(in.head.body))]
}

// direct tells that the next bytes are of a body.
func (in *intake) direct() bool { return in.begun && len(in.body) < int(in.head.body) }

// add takes n bytes that were put to room.
func (in *intake) add(n int) {
	if in.r == in.w && in.direct() {
		in.body = in.body[:len(in.body)+n]
		return
	}
	in.w += n
}

// next returns the next answer that is complete; its body belongs to the caller. An error means that what comes is no
// answer, or one of more than limit bytes.
func (in *intake) next(limit uint64) (h responseHeader, body []byte, ok bool, err error) {
	if !in.begun {
		if in.w-in.r < ResponseHeaderSize {
			return h, nil, false, nil
		}
		head := in.buf[in.r : in.r+ResponseHeaderSize]
		if in.head, ok = parseResponse(head); !ok {
			return h, nil, false, fmt.Errorf("%w: not a coro_rpc answer: %x", ErrBadAnswer, head)
		}
		if size := uint64(in.head.body) + uint64(in.head.attach); size > limit {
			return h, nil, false, fmt.Errorf("%w: %d bytes, max_body is %d", ErrBadAnswer, size, limit)
		}
		in.r += ResponseHeaderSize
		in.begun, in.attach = true, int(in.head.attach)
		in.body = make([]byte, 0, min(int(in.head.body), bodyChunk))
	}
	for in.direct() && in.r < in.w {
		if len(in.body) == cap(in.body) {
			in.body = append(make([]byte, 0, min(2*cap(in.body), int(in.head.body))), in.body...)
		}
		n := copy(in.body[len(in.body):cap(in.body)], in.buf[in.r:in.w])
		in.body = in.body[:len(in.body)+n]
		in.r += n
	}
	n := min(in.attach, in.w-in.r)
	in.r += n
	in.attach -= n
	if in.direct() || in.attach > 0 {
		return h, nil, false, nil
	}
	h, body = in.head, in.body
	in.begun, in.body = false, nil
	return h, body, true, nil
}
