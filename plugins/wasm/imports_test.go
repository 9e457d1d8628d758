package wasm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
)

// What toolchains find behind WASI: time that events bring, chance from the seed, no files, words in the log.
func TestWASI(t *testing.T) {
	var log bytes.Buffer
	f := open(t, config(t, "wasi"), slog.New(slog.NewTextHandler(&log, nil)))
	ask := func(seed uint64) (errno, clock, chance string) {
		t.Helper()
		s := spec(10)
		s.Seed = seed
		p := instanceOf(t, f, s)
		tell(t, p, tick(12345))
		raw, err := p.(eviction.Statser).Stats()
		var got struct{ Errno, Clock, Chance string }
		if err != nil || json.Unmarshal(raw, &got) != nil {
			t.Fatalf("stats %q, %v; %s", raw, err, status(p).Fault)
		}
		return got.Errno, got.Clock, got.Chance
	}
	// The guest adds '0' to each errno: path_open is 52 (ENOSYS), fd_prestat_get 8 (EBADF), the rest 0.
	errno, clock, chance := ask(42)
	if want := "00" + string(rune('0'+wasiNosys)) + "0" + string(rune('0'+wasiBadf)) + "000"; errno != want {
		t.Errorf("errnos %q, want %q", errno, want)
	}
	want := ""
	for _, d := range fmt.Sprintf("%016x", 12345*1_000_000) {
		n := strings.IndexRune("0123456789abcdef", d)
		want += string(rune('@' + n))
	}
	if clock != want {
		t.Errorf("clock %q, want %q", clock, want)
	}
	if _, _, again := ask(42); again != chance {
		t.Errorf("the same seed gives %q, then %q", chance, again)
	}
	if _, _, other := ask(43); other == chance {
		t.Errorf("another seed gives the same: %q", other)
	}
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "text=words") {
		t.Errorf("log:\n%s", log.String())
	}
	if got := f.Info().Imports; len(got) != 8 {
		t.Errorf("imports %v", got)
	}
}

// Whatever numbers a guest passes, host functions answer or trap; they never touch what is not the guest's.
func FuzzHostFunctions(f *testing.F) {
	fac := guest(f, "wasi")
	names := []string{}
	for name := range wasiFuncs {
		if name != "proc_exit" {
			names = append(names, name)
		}
	}
	f.Add(uint8(0), uint64(0), uint64(0), uint64(0), uint64(0))
	f.Add(uint8(3), uint64(0xffffffff), uint64(0xffffffff), uint64(0xffffffff), uint64(0xffffffff))
	f.Add(uint8(7), uint64(1), uint64(0x3fff8), uint64(2), uint64(8))
	f.Fuzz(func(t *testing.T, which uint8, a, b, c, d uint64) {
		s := spec(10)
		inst, fault := fac.start(s, 1, &logLimit{log: slog.New(slog.DiscardHandler)})
		if fault != nil {
			t.Fatal(fault)
		}
		defer inst.close()
		inst.meter.fill(1_000_000)
		funcs := []hostFunc{logFunc}
		for _, n := range names {
			funcs = append(funcs, wasiFuncs[n])
		}
		fn := funcs[int(which)%len(funcs)]
		size := inst.mem.Size()
		func() {
			defer func() {
				if r := recover(); r != nil {
					if _, ok := r.(*Fault); !ok {
						t.Fatalf("a panic that is no fault: %v", r)
					}
				}
			}()
			fn.call(inst, []uint64{uint64(uint32(a)), b, c, d})
		}()
		if inst.mem.Size() != size {
			t.Error("memory changed its size")
		}
	})
}
