package meter

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// plenty is enough for every call of the script, a memory.grow by 2^32-1 pages included.
const plenty = int64(1) << 46

// bounded leaves out the functions of our own corpus that do not end by themselves.
func bounded(name string) bool { return name != "spin" && name != "recursion" }

// script calls each exported function with several arguments, the start function first. A trap does not
// end it: the plain module has to cope with that just so.
func script(facts Facts, call func(name string, args []uint64)) {
	if facts.Start {
		call(StartExport, nil)
	}
	for n := range 5 {
		for _, x := range facts.Exports {
			if x.Kind == Function && bounded(x.Name) {
				params, _ := parseType(nil, x.Type)
				call(x.Name, arguments(params, n))
			}
		}
	}
}

// A metered module does what the plain one does, on both engines, and its charge depends on nothing else.
func TestMeteredModuleComputesTheSame(t *testing.T) {
	for _, name := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code := load(t, name)
			m := mustRewrite(t, code)
			var charges [][]int64
			for engine, c := range engines {
				plain := newGuest(t, c(), code, m.Facts.Imports)
				metered := newGuest(t, c(), m.Code, m.Facts.Imports)
				again := newGuest(t, c(), m.Code, m.Facts.Imports)
				var charged []int64
				script(m.Facts, func(f string, args []uint64) {
					got, left, _ := metered.callWith(plenty, f, args...)
					charged = append(charged, plenty-left)
					if _, left2, _ := again.callWith(plenty, f, args...); left2 != left {
						t.Errorf("%s: %s%v: charged %d, then %d in another instance", engine, f, args, plenty-left, plenty-left2)
					}
					if f == StartExport {
						return // the engine ran it in the plain module
					}
					want, _ := plain.call(f, args...)
					if got != want {
						t.Errorf("%s: %s%v:\n got %s\nwant %s", engine, f, args, got, want)
					}
				})
				charges = append(charges, charged)
			}
			if d := cmp.Diff(charges[0], charges[1]); d != "" {
				t.Errorf("the engines differ in the charge: %s", d)
			}
		})
	}
}

// wabt put a call before each instruction, which counts it; see testdata/build.sh. The start function of
// the counted module runs at instantiation.
func TestChargeIsNoLessThanWhatRuns(t *testing.T) {
	for _, name := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := mustRewrite(t, load(t, name))
			metered := newGuest(t, engines["compiler"](), m.Code, m.Facts.Imports)
			counted := newGuest(t, engines["compiler"](), load(t, name+".counted"), m.Facts.Imports)
			counter := counted.mod.ExportedGlobal("counted")
			before, total := uint64(0), uint64(0)
			script(m.Facts, func(f string, args []uint64) {
				_, left, _ := metered.callWith(plenty, f, args...)
				if f != StartExport {
					counted.call(f, args...)
				}
				ran := counter.Get() - before
				before = counter.Get()
				total += ran
				if charged := uint64(plenty - left); charged < ran {
					t.Errorf("%s%v: charged %d, ran %d instructions", f, args, charged, ran)
				}
			})
			if total == 0 {
				t.Error("nothing was counted")
			}
		})
	}
}

// wabt's listing of each module has as many instructions as we found in it.
func TestEveryInstructionIsFound(t *testing.T) {
	text, err := os.ReadFile("testdata/modules/counts.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); lines++ {
		var name string
		var want int
		if _, err := fmt.Sscan(s.Text(), &name, &want); err != nil {
			t.Fatalf("%q: %v", s.Text(), err)
		}
		if got := mustRewrite(t, load(t, name)).Facts.Instructions; got != want {
			t.Errorf("%s: %d instructions, wabt lists %d", name, got, want)
		}
	}
	if want := len(corpus(t)); lines != want {
		t.Errorf("counts.txt has %d modules, want %d", lines, want)
	}
}

// With a budget that equals the charge a call ends as it does with plenty, with one unit less it traps.
func TestTrapsExactlyAtZero(t *testing.T) {
	for _, name := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := mustRewrite(t, load(t, name))
			// Two instances that go through the same states. A call that runs out of fuel would change them, so
			// it has an instance of its own.
			first := newGuest(t, engines["interpreter"](), m.Code, m.Facts.Imports)
			exact := newGuest(t, engines["interpreter"](), m.Code, m.Facts.Imports)
			seen := map[string]bool{}
			script(m.Facts, func(f string, args []uint64) {
				want, left, _ := first.callWith(plenty, f, args...)
				charge := plenty - left
				got, left, _ := exact.callWith(charge, f, args...)
				if got != want || left != 0 {
					t.Errorf("%s%v with its charge of %d: %s, left %d\nwant %s, left 0", f, args, charge, got, left, want)
				}
				if charge == 0 || seen[f] {
					return
				}
				seen[f] = true
				fresh := newGuest(t, engines["interpreter"](), m.Code, m.Facts.Imports)
				_, left, _ = fresh.callWith(plenty, f, args...)
				charge = plenty - left
				fresh = newGuest(t, engines["interpreter"](), m.Code, m.Facts.Imports)
				if got, left, err := fresh.callWith(charge-1, f, args...); err == nil || left >= 0 || !strings.HasPrefix(got, "trap wasm error: unreachable") {
					t.Errorf("%s%v with %d, one less than its charge: %s, left %d", f, args, charge-1, got, left)
				}
			})
		})
	}
}

// What is charged where, to the unit. Each function has one declared local (1).
func TestChargeToTheUnit(t *testing.T) {
	nops := func(n int) []byte { return bytes.Repeat([]byte{0x01}, n) }
	// turns runs body n times, for 3 before and turn in each.
	turns := func(n byte, body ...byte) []byte {
		return join([]byte{opI32Const, n, 0x21, 0, opLoop, blockEmpty}, body,
			[]byte{opLocalGet, 0, opI32Const, 1, 0x6b, opLocalTee, 0, opI32Const, 0, 0x4a, 0x0d, 0, opEnd})
	}
	const turn = 7
	ifElse := func(cond byte, then, other []byte) []byte {
		return join([]byte{opI32Const, cond, opIf, blockEmpty}, then, []byte{opElse}, other, []byte{opEnd})
	}
	for _, c := range []struct {
		name string
		code []byte
		want int64
	}{
		{"nothing", nil, 0},
		{"straight", nops(9), 9},
		{"blocks", join([]byte{opBlock, blockEmpty, opBlock, blockEmpty}, nops(3), []byte{opEnd}, nops(2), []byte{opEnd}), 7},
		{"both sides of an if", ifElse(1, nops(10), nops(20)), 2 + 30},
		{"a loop", turns(5, nops(10)...), 3 + 5*(turn+10)},
		{"both sides of an if in a loop", turns(5, ifElse(1, nops(10), nops(20))...), 3 + 5*(turn+2+30)},
		{"behind an if in a loop", turns(5, join(ifElse(0, nops(1), nops(2)), nops(30))...), 3 + 5*(turn+2+3+30)},
		{"behind a loop", join(turns(5), nops(100)), 3 + 5*turn + 100},
		{"behind a loop in a loop", turns(4, join([]byte{opLoop, blockEmpty}, nops(10), []byte{opEnd}, nops(20))...), 3 + 4*(turn+1+10+20)},
		{"a loop that is not entered", join(ifElse(0, join([]byte{opLoop, blockEmpty}, nops(1000), []byte{opEnd}), nops(1)), nops(20)), 2 + 1 + 1 + 20},
		{"behind one that is not entered, in a loop", turns(3, join(ifElse(0, join([]byte{opLoop, blockEmpty}, nops(1000), []byte{opEnd}), nil), nops(20))...),
			3 + 3*(turn+2+1+20)},
		{"a block in a loop", turns(3, join([]byte{opBlock, blockEmpty, opBr, 0}, nops(10), []byte{opEnd})...), 3 + 3*(turn+2+10)},
		{"left early", join([]byte{0x0f}, nops(10)), 11},
	} {
		m := mustRewrite(t, oneFunction(noParams, []byte{1, 1, typeI32}, c.code))
		g := newGuest(t, engines["compiler"](), m.Code, nil)
		if _, left, err := g.callWith(plenty, "f"); err != nil || plenty-left != 1+c.want {
			t.Errorf("%s: charged %d, want %d (%v)", c.name, plenty-left, 1+c.want, err)
		}
	}
}
