package structpack

import (
	"fmt"
	"math"
	"unsafe"
)

// Type describes one wire type and how a Go value of type T is written and read. The zero Type is
// not usable; make one with the constructors of this package. Reading overwrites the whole value but
// reuses the capacity of its slices.
type Type[T any] struct {
	literal string
	min     int // fewest payload bytes of a value
	write   func(*Encoder, *T)
	read    func(*Decoder, *T)
	reset   func(*T)
}

// Literal returns the type literal without its terminating NUL.
func (t Type[T]) Literal() string { return t.literal }

// Write appends a value; custom types use it to build on other types.
func (t Type[T]) Write(e *Encoder, v *T) { t.write(e, v) }

// Read reads a value, overwriting *v.
func (t Type[T]) Read(d *Decoder, v *T) { t.read(d, v) }

// Reset makes *v the zero value but keeps the capacity of its slices, for reuse.
func (t Type[T]) Reset(v *T) { t.reset(v) }

// Custom makes a type from its literal, the fewest payload bytes that a value has (lengths count
// one byte) and hand-written functions. Its tests must prove that the four agree.
func Custom[T any](literal string, min int, write func(*Encoder, *T), read func(*Decoder, *T)) Type[T] {
	return Type[T]{literal: literal, min: min, write: write, read: read, reset: zero[T]}
}

func zero[T any](v *T) {
	var z T
	*v = z
}

// Integer and other scalar types; each also carries Go types derived from the basic one.

// Int32 is i32, also of every C++ enum without an explicit underlying type.
func Int32[T ~int32]() Type[T] {
	return Custom("\x01", 4, func(e *Encoder, v *T) { e.U32(uint32(*v)) }, func(d *Decoder, v *T) { *v = T(d.U32()) })
}

// Uint32 is u32.
func Uint32[T ~uint32]() Type[T] {
	return Custom("\x02", 4, func(e *Encoder, v *T) { e.U32(uint32(*v)) }, func(d *Decoder, v *T) { *v = T(d.U32()) })
}

// Int64 is i64.
func Int64[T ~int64]() Type[T] {
	return Custom("\x03", 8, func(e *Encoder, v *T) { e.U64(uint64(*v)) }, func(d *Decoder, v *T) { *v = T(d.U64()) })
}

// Uint64 is u64.
func Uint64[T ~uint64]() Type[T] {
	return Custom("\x04", 8, func(e *Encoder, v *T) { e.U64(uint64(*v)) }, func(d *Decoder, v *T) { *v = T(d.U64()) })
}

// Int8 is i8.
func Int8[T ~int8]() Type[T] {
	return Custom("\x05", 1, func(e *Encoder, v *T) { e.U8(uint8(*v)) }, func(d *Decoder, v *T) { *v = T(d.U8()) })
}

// Uint8 is u8, also of a C++ enum with that underlying type.
func Uint8[T ~uint8]() Type[T] {
	return Custom("\x06", 1, func(e *Encoder, v *T) { e.U8(uint8(*v)) }, func(d *Decoder, v *T) { *v = T(d.U8()) })
}

// Int16 is i16.
func Int16[T ~int16]() Type[T] {
	return Custom("\x07", 2, func(e *Encoder, v *T) { e.U16(uint16(*v)) }, func(d *Decoder, v *T) { *v = T(d.U16()) })
}

// Uint16 is u16.
func Uint16[T ~uint16]() Type[T] {
	return Custom("\x08", 2, func(e *Encoder, v *T) { e.U16(uint16(*v)) }, func(d *Decoder, v *T) { *v = T(d.U16()) })
}

// Bool is bool.
func Bool[T ~bool]() Type[T] {
	return Custom("\x0b", 1, func(e *Encoder, v *T) { e.Bool(bool(*v)) }, func(d *Decoder, v *T) { *v = T(d.Bool()) })
}

// Float64 is double.
func Float64[T ~float64]() Type[T] {
	return Custom("\x12", 8, func(e *Encoder, v *T) { e.U64(math.Float64bits(float64(*v))) },
		func(d *Decoder, v *T) { *v = T(math.Float64frombits(d.U64())) })
}

// String is std::string.
func String[T ~string]() Type[T] {
	return Custom("\x80\x0c", 1, func(e *Encoder, v *T) { e.String(string(*v)) }, func(d *Decoder, v *T) { *v = T(d.String()) })
}

// Void is the value of expected<void, E> and of monostate: no bytes.
type Void struct{}

// Monostate is std::monostate.
func Monostate() Type[Void] {
	return Custom("\xfa", 0, func(*Encoder, *Void) {}, func(*Decoder, *Void) {})
}

// Field is one member of a struct or tuple, in wire order.
type Field[T any] struct {
	literal string
	min     int
	write   func(*Encoder, *T)
	read    func(*Decoder, *T)
	reset   func(*T)
}

// OnWire reports whether the field has a wire form ([Fill] has none).
func (f Field[T]) OnWire() bool { return f.literal != "" }

// F makes a field of type t that lives at get(value).
func F[T, V any](t Type[V], get func(*T) *V) Field[T] {
	write, read, reset := t.write, t.read, t.reset
	return Field[T]{literal: t.literal, min: t.min,
		write: func(e *Encoder, v *T) { write(e, get(v)) },
		read:  func(d *Decoder, v *T) { read(d, get(v)) },
		reset: func(v *T) { reset(get(v)) }}
}

// Struct is a struct, a tuple or the pair of a map entry: the fields back to back.
func Struct[T any](fields ...Field[T]) Type[T] {
	t := sequence(fields)
	t.literal = "\xfd" + t.literal + "\xff"
	return t
}

// Inline is the one field that has a wire form, without a struct around it: how coro_rpc sends a
// single argument, and how an older version spells a struct that had one member then.
func Inline[T any](fields ...Field[T]) Type[T] { return sequence(fields) }

func sequence[T any](fields []Field[T]) Type[T] {
	var t Type[T]
	for _, f := range fields {
		t.literal += f.literal
		t.min += f.min
	}
	t.write = func(e *Encoder, v *T) {
		for i := range fields {
			fields[i].write(e, v)
		}
	}
	t.read = func(d *Decoder, v *T) {
		for i := range fields {
			fields[i].read(d, v)
		}
	}
	t.reset = func(v *T) {
		for i := range fields {
			fields[i].reset(v)
		}
	}
	if len(fields) == 1 { // one call less for the many single-argument functions
		t.write, t.read = fields[0].write, fields[0].read
	}
	return t
}

// Trivial marks a struct that the C++ side copies as a block; pack and align (its alignments in
// bytes) are part of the literal.
func Trivial[T any](pack, align int, fields ...Field[T]) Type[T] {
	t := sequence(fields)
	t.literal = "\xfd" + t.literal + string([]byte{byte(pack + 129), byte(align + 129), 0xff})
	return t
}

// Fill is a field without wire form: f runs at its place when a value is read, to reset what the
// following fields leave alone or to compute what this version does not carry.
func Fill[T any](f func(*Decoder, *T)) Field[T] {
	return Field[T]{write: func(*Encoder, *T) {}, read: f, reset: func(*T) {}}
}

// Vector is std::vector. It panics for an element type that can be empty, which would let a length
// claim elements without bytes.
func Vector[T any](elem Type[T]) Type[[]T] { return FilteredVector(elem, nil) }

// FilteredVector is a vector whose writer leaves out the elements that keep refuses (nil keeps all).
func FilteredVector[T any](elem Type[T], keep func(*T) bool) Type[[]T] {
	if elem.min == 0 {
		panic(fmt.Sprintf("structpack: vector of empty elements, literal %x", elem.literal))
	}
	write, read, min := elem.write, elem.read, elem.min
	t := Custom("\x84"+elem.literal, 1,
		func(e *Encoder, v *[]T) {
			s := *v
			n := len(s)
			if keep != nil {
				n = 0
				for i := range s {
					if keep(&s[i]) {
						n++
					}
				}
			}
			e.Len(n)
			for i := range s {
				if e.stop() {
					return
				}
				if keep == nil || n == len(s) || keep(&s[i]) {
					write(e, &s[i])
				}
			}
		},
		func(d *Decoder, v *[]T) {
			n := d.Len(min)
			*v = resize(d, *v, n)
			s := *v
			for i := range s {
				if read(d, &s[i]); d.err != nil {
					return
				}
			}
		})
	t.reset = func(v *[]T) { *v = (*v)[:0] }
	return t
}

// resize returns s with length n, reusing its capacity, or empty if the message may not claim so much.
func resize[T any](d *Decoder, s []T, n int) []T {
	var zero T
	if !d.Claim(n * int(unsafe.Sizeof(zero))) {
		return s[:0]
	}
	if cap(s) >= n {
		return s[:n]
	}
	return make([]T, n)
}

// Pair is one entry of a map.
type Pair[K, V any] struct {
	Key   K
	Value V
}

// Map is std::map and std::unordered_map, as a list in wire order; readers keep duplicate keys.
func Map[K, V any](key Type[K], value Type[V]) Type[[]Pair[K, V]] {
	entry := sequence([]Field[Pair[K, V]]{
		F(key, func(p *Pair[K, V]) *K { return &p.Key }),
		F(value, func(p *Pair[K, V]) *V { return &p.Value }),
	})
	t := Vector(entry)
	t.literal = "\x82" + entry.literal
	return t
}

// Set is std::set, as a list in wire order.
func Set[K any](key Type[K]) Type[[]K] {
	t := Vector(key)
	t.literal = "\x83" + key.literal
	return t
}

// MapOf is a map on the wire whose entries are elements of a Go slice: older versions carry as
// map<key, value> what is a list of structs today. Two of the fields have a wire form, the key first.
func MapOf[T any](fields ...Field[T]) Type[[]T] {
	entry := sequence(fields)
	t := Vector(entry)
	t.literal = "\x82" + entry.literal
	return t
}

// Opt is an optional value; the zero Opt is none.
type Opt[T any] struct {
	Value T
	OK    bool
}

// Some returns an Opt that holds v.
func Some[T any](v T) Opt[T] { return Opt[T]{Value: v, OK: true} }

// Optional is std::optional. Reading none leaves Value at its zero value.
func Optional[T any](t Type[T]) Type[Opt[T]] {
	write, read := t.write, t.read
	return Custom("\x85"+t.literal, 1,
		func(e *Encoder, v *Opt[T]) {
			if e.Bool(v.OK); v.OK {
				write(e, &v.Value)
			}
		},
		func(d *Decoder, v *Opt[T]) {
			if v.OK = d.Bool(); v.OK {
				read(d, &v.Value)
			} else {
				var zero T
				v.Value = zero
			}
		})
}

// Expected is expected<T, E> with an integer error. Code 0 means success and Value holds the result;
// otherwise Value is the zero value.
type Expected[T any, E ~int32] struct {
	Value T
	Code  E
}

// Expect is tl::expected with an int32 error code.
func Expect[E ~int32, T any](t Type[T]) Type[Expected[T, E]] {
	write, read, reset := t.write, t.read, t.reset
	x := Custom("\x87"+t.literal+"\x01", 1+min(t.min, 4),
		func(e *Encoder, v *Expected[T, E]) {
			if v.Code == 0 {
				e.U8(1)
				write(e, &v.Value)
				return
			}
			e.U8(0)
			e.U32(uint32(v.Code))
		},
		func(d *Decoder, v *Expected[T, E]) {
			if d.Bool() {
				v.Code = 0
				read(d, &v.Value)
				return
			}
			var zero T
			v.Value = zero
			if v.Code = E(d.U32()); v.Code == 0 {
				d.Fail("an error with code 0")
			}
		})
	x.reset = func(v *Expected[T, E]) {
		v.Code = 0
		reset(&v.Value)
	}
	return x
}

// Alternative is one member of a variant: the kind that selects it in the Go value, and its type.
type Alternative[T, K any] struct {
	Kind K
	Type Type[T]
}

// Variant is std::variant, for a Go value T that has room for every alternative and a kind that
// selects one; the index on the wire is the position in alternatives. Reading sets the kind and the
// fields of the alternative found, and no others ([Fill] can reset them before).
func Variant[T any, K comparable](kind func(*T) *K, alternatives ...Alternative[T, K]) Type[T] {
	literal, least := "\x86", math.MaxInt
	for _, a := range alternatives {
		literal += a.Type.literal
		least = min(least, a.Type.min)
	}
	return Custom(literal+"\xff", 1+least,
		func(e *Encoder, v *T) {
			for i := range alternatives {
				if a := &alternatives[i]; a.Kind == *kind(v) {
					e.U8(uint8(i))
					a.Type.write(e, v)
					return
				}
			}
			e.Fail(fmt.Errorf("%w: alternative %v", ErrUnrepresentable, *kind(v)))
		},
		func(d *Decoder, v *T) {
			i := int(d.U8())
			if d.err == nil && i >= len(alternatives) {
				d.Fail("unknown variant index")
			}
			if d.err != nil {
				return
			}
			alternatives[i].Type.read(d, v)
			*kind(v) = alternatives[i].Kind
		})
}
