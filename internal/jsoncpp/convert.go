package jsoncpp

import (
	"fmt"
	"math"
)

// AsString reads a scalar as jsoncpp's Value::asString does: a string is itself, null is "", numbers
// and booleans are their text. Arrays and objects are an error (C++ throws).
func (r *Reader) AsString() (string, error) {
	b, err := r.AsText()
	return string(b), err
}

// AsText is AsString without the copy: the result is valid until the Reader reads on.
func (r *Reader) AsText() ([]byte, error) {
	k, err := r.Kind()
	if err != nil {
		return nil, err
	}
	start := r.i
	switch k {
	case String:
		return r.text()
	case Number:
		return r.number()
	case Bool, Null:
		_, err := r.literal(k)
		if k == Null {
			start = r.i
		}
		return r.b[start:r.i], err
	}
	return nil, r.typeError(k, "string")
}

// AsUint reads an integer in [0, max] as jsoncpp's asUInt and asUInt64 do: null is 0, true is 1, a
// number written with a fraction or an exponent counts when its value is integral. Strings, arrays
// and objects are an error (C++ throws), as are negative and larger numbers. The value is computed
// exactly.
func (r *Reader) AsUint(max uint64) (uint64, error) {
	neg, v, err := r.integer("an unsigned integer")
	if err != nil {
		return 0, err
	}
	if neg && v != 0 || v > max {
		return 0, fmt.Errorf("%w at byte %d: number outside 0..%d", ErrType, r.i, max)
	}
	return v, nil
}

// AsInt32 reads an integer as jsoncpp's asInt does; see AsUint.
func (r *Reader) AsInt32() (int32, error) {
	neg, v, err := r.integer("Int")
	if err != nil {
		return 0, err
	}
	switch {
	case !neg && v <= math.MaxInt32:
		return int32(v), nil
	case neg && v <= -math.MinInt32:
		return int32(-int64(v)), nil
	}
	return 0, fmt.Errorf("%w at byte %d: number outside of Int", ErrType, r.i)
}

func (r *Reader) integer(want string) (neg bool, v uint64, err error) {
	k, err := r.Kind()
	if err != nil {
		return false, 0, err
	}
	switch k {
	case Number:
		t, err := r.number()
		if err != nil {
			return false, 0, err
		}
		neg, v, ok := exact(t)
		if !ok {
			return false, 0, fmt.Errorf("%w at byte %d: %.40s is not a 64-bit integer", ErrType, r.i, t)
		}
		return neg, v, nil
	case Null, Bool:
		b, err := r.literal(k)
		if b {
			v = 1
		}
		return false, v, err
	}
	return false, 0, r.typeError(k, want)
}

// number reads the text of a number.
func (r *Reader) number() ([]byte, error) {
	start := r.i
	if r.b[r.i] == '-' {
		r.i++
	}
	if r.digits() == 0 {
		return nil, r.syntax("number without digits")
	}
	if r.i < len(r.b) && r.b[r.i] == '.' {
		r.i++
		r.digits()
	}
	if r.i < len(r.b) && (r.b[r.i] == 'e' || r.b[r.i] == 'E') {
		r.i++
		if r.i < len(r.b) && (r.b[r.i] == '+' || r.b[r.i] == '-') {
			r.i++
		}
		if r.digits() == 0 {
			return nil, r.syntax("exponent without digits")
		}
	}
	return r.b[start:r.i], nil
}

func (r *Reader) digits() int {
	start := r.i
	for r.i < len(r.b) && r.b[r.i] >= '0' && r.b[r.i] <= '9' {
		r.i++
	}
	return r.i - start
}

// exact computes the integral value of a number's text; ok is false when it has a fractional part or
// its magnitude exceeds 64 bits.
func exact(t []byte) (neg bool, v uint64, ok bool) {
	if t[0] == '-' {
		neg, t = true, t[1:]
	}
	point, exp, end := -1, 0, len(t)
	for i, c := range t {
		if c == '.' {
			point = i
		} else if c == 'e' || c == 'E' {
			end = i
			sign := 1
			for _, d := range t[i+1:] {
				switch d {
				case '-':
					sign = -1
				case '+':
				default:
					exp = min(exp*10+int(d-'0'), 1<<20)
				}
			}
			exp *= sign
			break
		}
	}
	if point >= 0 {
		exp -= end - point - 1
	}
	// The value is digits × 10^exp. A negative exp takes digits off the end, which must be zeros.
	digits := 0
	for i := range end {
		if i != point {
			digits++
		}
	}
	keep := digits
	if exp < 0 {
		keep = max(digits+exp, 0)
	}
	seen := 0
	for i, c := range t[:end] {
		if i == point {
			continue
		}
		seen++
		d := uint64(c - '0')
		if seen > keep {
			if d != 0 {
				return neg, 0, false
			}
			continue
		}
		if v > (math.MaxUint64-d)/10 {
			return neg, 0, false
		}
		v = v*10 + d
	}
	for ; exp > 0 && v != 0; exp-- {
		if v > math.MaxUint64/10 {
			return neg, 0, false
		}
		v *= 10
	}
	return neg, v, true
}
