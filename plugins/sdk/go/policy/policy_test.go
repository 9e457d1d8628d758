package policy

import (
	"slices"
	"testing"
	"unsafe"
)

func TestParam(t *testing.T) {
	for _, c := range []struct {
		params string
		want   float64
	}{
		{"", 7}, {"{}", 7}, {`{"a": 1.5}`, 1.5}, {`{"b":"a", "a" : -2 }`, -2}, {`{"a":true}`, 7}, {`{"aa":3}`, 7}, {`{"a":1e3,"b":2}`, 1000}, {`{"a":`, 7}, {`"a"`, 7},
	} {
		buf := make([]uint64, HeaderSize/8+len(c.params)/8+1)
		text := unsafe.Slice((*byte)(unsafe.Pointer(&buf[HeaderSize/8])), len(c.params))
		copy(text, c.params)
		cfg := (*Config)(unsafe.Pointer(&buf[0]))
		cfg.ParamsOff, cfg.ParamsLen = HeaderSize, uint32(len(c.params))
		if got := cfg.Param("a", 7); got != c.want {
			t.Errorf("%q has a = %v, want %v", c.params, got, c.want)
		}
	}
}

func TestLists(t *testing.T) {
	l := NewLists(5, 2)
	all := func(list int) (out []uint32) {
		for h := l.Back(list); h != 0; h = l.Newer(h) {
			out = append(out, h)
		}
		return out
	}
	for h := uint32(1); h <= 5; h++ {
		l.PushFront(0, h)
	}
	l.MoveFront(0, 1)
	l.MoveFront(0, 1)
	l.MoveFront(1, 3)
	l.Remove(5)
	if got := [][]uint32{all(0), all(1)}; !slices.Equal(got[0], []uint32{2, 4, 1}) || !slices.Equal(got[1], []uint32{3}) {
		t.Errorf("lists %v", got)
	}
}

func TestNeed(t *testing.T) {
	n := Need{Tenant: AnyTenant}
	if !n.Wants(3, 4) {
		t.Error("a question for anything does not want something")
	}
	n = Need{Tenant: 3, Segment: 4}
	if !n.Wants(3, 4) || !n.Wants(3, 0) || n.Wants(3, 5) || n.Wants(2, 4) {
		t.Error("tenant or segment is not looked at")
	}
}

func TestRegister(t *testing.T) {
	Register(func(*Config) (Policy, error) { return nil, ErrEvent })
	defer Register(nil)
	if _, err := makes(nil); err != ErrEvent {
		t.Errorf("error %v", err)
	}
}

func TestSizes(t *testing.T) {
	if unsafe.Sizeof(Event{}) != RecordSize || unsafe.Sizeof(Config{}) != HeaderSize {
		t.Errorf("records have %d and %d bytes", unsafe.Sizeof(Event{}), unsafe.Sizeof(Config{}))
	}
}
