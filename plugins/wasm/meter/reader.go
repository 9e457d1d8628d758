package meter

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"
)

// reader walks over a module's bytes. The first error sticks: every later read gives zero values and reads
// nothing, so loops over a count test err.
type reader struct {
	b        []byte // the whole module
	pos, end int    // end of what may be read: a section or a function
	section  string
	function int // or -1
	err      *Error
}

func (r *reader) fail(rule Rule, class error, format string, args ...any) {
	r.failAt(r.pos, rule, class, format, args...)
}

func (r *reader) failAt(pos int, rule Rule, class error, format string, args ...any) {
	if r.err == nil {
		r.err = &Error{Rule: rule, Section: r.section, Function: r.function, Offset: pos, Err: fmt.Errorf(format+": %w", append(args, class)...)}
	}
	r.pos = r.end
}

func (r *reader) malformed(pos int, format string, args ...any) {
	r.failAt(pos, RuleFormat, ErrMalformed, format, args...)
}

func (r *reader) left() int { return r.end - r.pos }

func (r *reader) byte() byte {
	if r.pos >= r.end {
		r.malformed(r.pos, "unexpected end")
		return 0
	}
	b := r.b[r.pos]
	r.pos++
	return b
}

// bytes returns the next n bytes, which alias the module.
func (r *reader) bytes(n int) []byte {
	if n < 0 || n > r.left() {
		r.malformed(r.pos, "%d bytes wanted, %d left", n, r.left())
		return nil
	}
	b := r.b[r.pos : r.pos+n]
	r.pos += n
	return b
}

// u32 reads an unsigned LEB128 of at most 5 bytes.
func (r *reader) u32() uint32 {
	at := r.pos
	var v uint32
	for shift := 0; ; shift += 7 {
		b := r.byte()
		if shift == 28 && b > 0x0f {
			r.malformed(at, "integer does not fit into 32 bits")
			return 0
		}
		v |= uint32(b&0x7f) << shift
		if b < 0x80 {
			return v
		}
	}
}

// signed reads a signed LEB128 of that many bits.
func (r *reader) signed(bits int) int64 {
	at := r.pos
	var v int64
	for shift := 0; ; shift += 7 {
		b := r.byte()
		if shift+7 >= bits { // the last byte: no continuation, and the bits past the integer repeat its sign
			high := int8(b<<1) >> (bits - shift) // bits of b from the sign on, b's own bit 7 shifted out
			if b >= 0x80 || (high != 0 && high != -1) {
				r.malformed(at, "integer does not fit into %d bits", bits)
				return 0
			}
		}
		v |= int64(b&0x7f) << shift
		if b < 0x80 {
			if free := 64 - shift - 7; free > 0 {
				v = v << free >> free
			}
			return v
		}
	}
}

// noLimit is for counts that only the bytes limit.
const noLimit = math.MaxInt

// count reads the length of a vector. Each entry takes at least least bytes, so that a length that the
// bytes cannot hold is found before anything is set aside for it.
func (r *reader) count(what string, limit, least int) int {
	at := r.pos
	n := r.u32()
	if int64(n) > int64(limit) {
		r.failAt(at, RuleLimit, ErrLimit, "%d %s, at most %d are allowed", n, what, limit)
		return 0
	}
	if int64(n)*int64(least) > int64(r.left()) {
		r.malformed(at, "%d %s do not fit into %d bytes", n, what, r.left())
		return 0
	}
	return int(n)
}

// name reads a string of UTF-8.
func (r *reader) name(limit int) string {
	at := r.pos
	b := r.bytes(r.count("bytes of a name", limit, 1))
	if !utf8.Valid(b) {
		r.malformed(at, "a name is not UTF-8")
		return ""
	}
	return string(b)
}

func appendU32(b []byte, v uint32) []byte { return binary.AppendUvarint(b, uint64(v)) }

// appendSigned appends the shortest signed LEB128.
func appendSigned(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if (v == 0 && c&0x40 == 0) || (v == -1 && c&0x40 != 0) {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}
