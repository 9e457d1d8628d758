package wasm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/plugins/abi"
)

// heavy is a policy within the meter's limits that takes a compiler seconds and hundreds of megabytes: it has many
// large functions of arithmetic on many live values.
func heavy() []byte {
	const large = 30
	i32s := func(n int) []byte { return bytes.Repeat([]byte{0x7f}, n) }
	fn := func(params, results []byte) []byte {
		return append(append(append([]byte{0x60, byte(len(params))}, params...), byte(len(results))), results...)
	}
	vec := func(items ...[]byte) []byte { return append(leb(len(items)), bytes.Join(items, nil)...) }
	name := func(s string, kind, index byte) []byte { return append(append(leb(len(s)), s...), kind, index) }
	m := []byte("\x00asm\x01\x00\x00\x00")
	m = append(m, section(1, vec(fn(nil, nil), fn(nil, i32s(1)), fn(i32s(1), i32s(1)), fn(i32s(2), i32s(1)), fn(append([]byte{0x7e}, i32s(4)...), i32s(1))))...)
	m = append(m, section(3, append(append(leb(5+large), 1, 3, 1, 2, 4), make([]byte, large)...))...)
	m = append(m, section(5, []byte{1, 0, 1})...)
	m = append(m, section(7, vec(name(abi.MemoryExport, 2, 0), name(abi.Marker, 0, 0), name(abi.FuncBuffer, 0, 1), name(abi.FuncInit, 0, 2),
		name(abi.FuncEvents, 0, 3), name(abi.FuncVictims, 0, 4)))...)
	zero := []byte{4, 0, 0x41, 0, 0x0b}
	bodies := [][]byte{zero, zero, zero, zero, zero}
	body := []byte{1, 120, 0x7e} // 120 locals i64
	local := func(i int) byte { return byte(i * 7 % 120) }
	for i := 0; len(body) < 200<<10; i++ {
		body = append(body, 0x02, 0x40, 0x20, local(i), 0x50, 0x0d, 0) // block; local.get; i64.eqz; br_if 0
		for j := range 8 {
			// local.get; local.get; i64.mul; local.set
			body = append(body, 0x20, local(i+j), 0x20, local(i+2*j+3), 0x7e, 0x21, local(i+5*j+1))
		}
		body = append(body, 0x0b)
	}
	body = append(body, 0x0b)
	for range large {
		bodies = append(bodies, append(leb(len(body)), body...))
	}
	return append(m, section(10, vec(bodies...))...)
}

// A compilation that takes too much ends with its child, and the error says what was too much.
func TestCompilationLimits(t *testing.T) {
	module := heavy()
	for name, c := range map[string]struct {
		l    limits
		want string
	}{
		"CPU time":   {limits{cpu: time.Second, memory: 1 << 30, wall: time.Minute}, "more than 1s of CPU time"},
		"memory":     {limits{cpu: time.Minute, memory: 24 << 20, wall: time.Minute}, "more than 24 MiB of memory"},
		"wall clock": {limits{cpu: time.Minute, memory: 1 << 30, wall: 50 * time.Millisecond}, "not done within 50ms"},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := compileAside(context.Background(), module, t.TempDir(), c.l)
			if !errors.Is(err, ErrCompile) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("after %s: %v, want %q", time.Since(start), err, c.want)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := compileAside(ctx, module, t.TempDir(), defaultLimits); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
	t.Run("nothing is left in the cache", func(t *testing.T) {
		c, err := openCache(t.TempDir() + "/code")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.fill(context.Background(), module, "key", limits{cpu: time.Minute, memory: 1 << 30, wall: 50 * time.Millisecond}); err == nil {
			t.Fatal("it was compiled")
		}
		if list, err := os.ReadDir(c.dir); err != nil || len(list) != 0 {
			t.Errorf("left behind: %v, %v", list, err)
		}
	})
}

// The child answers on its output, whatever it is given.
func TestChildAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		in   []byte
		want string
	}{
		"no numbers": {[]string{"dir", "x", "y"}, nil, `"error":"strconv`},
	} {
		var out bytes.Buffer
		if code := childMain(c.args, bytes.NewReader(c.in), &out); code != 0 || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: code %d, %s", name, code, &out)
		}
	}
}
