package meter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A simpler scheme charged one unit for each function entry and each loop, with whatever they do. Each test
// here is a guest that got the better of it.

func uleb(v uint64) []byte { return binary.AppendUvarint(nil, v) }

// The guest adds to the fuel global, whose index it can guess.
func TestUnsoundGuestWritesTheFuelGlobal(t *testing.T) {
	one := []byte{typeI64, 1, opI64Const, 0, opEnd}
	for _, own := range []int{0, 1, 3} {
		globals := slices.Repeat([][]byte{one}, own)
		mod := func(code []byte, exports ...[]byte) []byte {
			return wasm(section(secType, noParams), section(secFunction, []byte{0}), section(secGlobal, globals...),
				section(secExport, exports...), section(secCode, sized(join(noLocals, code, []byte{opEnd})...)))
		}
		write := append([]byte{opI64Const, 0, opGlobalSet}, uleb(uint64(own))...)
		read := append(append([]byte{opGlobalGet}, uleb(uint64(own))...), 0x1a)
		export := append(str("x"), byte(Global), byte(own))
		for name, code := range map[string][]byte{
			"write": mod(write), "read": mod(read), "write in dead code": mod(join([]byte{opUnreachable}, write)), "export": mod(nil, export),
			"initial value of a global": wasm(section(secGlobal, append(slices.Clone(globals), []byte{typeI64, 0, opGlobalGet, byte(own), opEnd})...)),
			"start of a data segment":   wasm(section(secMemory, []byte{0, 1}), section(secData, []byte{0, opGlobalGet, 0, opEnd, 0})),
		} {
			// The engine's check, which would find this, is away.
			_, err := Rewrite(code, Options{Validate: func([]byte) error { return nil }})
			wantError(t, fmt.Sprintf("%s, %d globals", name, own), err, RuleGlobalIndex, ErrMalformed)
		}
		// The last of its own it may write.
		if own > 0 {
			code := mod(append([]byte{opI64Const, 0, opGlobalSet}, byte(own-1)), append(str("x"), byte(Global), byte(own-1)))
			g := newGuest(t, engines["compiler"](), mustRewrite(t, code).Code, nil)
			if got := int64(g.fuel().Get()); got != InitBudget {
				t.Errorf("%d globals: the fuel starts as %d, want %d", own, got, int64(InitBudget))
			}
		}
	}
	// Nor can the module take the name.
	for _, name := range []string{FuelExport, ReserveExport, StartExport} {
		_, err := Rewrite(wasm(section(secType, noParams), section(secFunction, []byte{0}), section(secExport, append(str(name), 0, 0)),
			section(secCode, []byte{2, 0, opEnd})), Options{Validate: validate})
		wantError(t, name, err, RuleReserved, ErrRefused)
	}
	_, err := Rewrite(mustRewrite(t, load(t, "control")).Code, Options{Validate: validate})
	wantError(t, "a module that is metered already", err, RuleReserved, ErrRefused)
}

// A loop whose body is as long as a function may be: 133 seconds on the default budget when the loop costs
// one unit.
func TestUnsoundLongLoopBody(t *testing.T) {
	const nops = 240_000
	body := join([]byte{opLoop, blockEmpty}, bytes.Repeat([]byte{0x01}, nops), []byte{opBr, 0, opEnd})
	m := mustRewrite(t, oneFunction(noParams, noLocals, body))
	g := newGuest(t, engines["compiler"](), m.Code, nil)
	const budget = 256*EventBudget + CallBudget
	seen, left, err := g.callWith(budget, "f")
	if err == nil || !strings.HasPrefix(seen, "trap wasm error: unreachable") {
		t.Fatalf("an endless loop ended: %s, left %d", seen, left)
	}
	// One iteration is paid for, the second is not.
	if want := int64(budget - 1 - 2*(nops+1)); left != want {
		t.Errorf("left %d, want %d", left, want)
	}
}

// Straight code counts as well: a chain of calls of long functions without a loop.
func TestUnsoundLongFunction(t *testing.T) {
	const nops = 200_000
	m := mustRewrite(t, oneFunction(noParams, noLocals, bytes.Repeat([]byte{0x01}, nops)))
	g := newGuest(t, engines["compiler"](), m.Code, nil)
	if _, left, err := g.callWith(nops, "f"); err != nil || left != 0 {
		t.Errorf("left %d, %v", left, err)
	}
}

// table.grow by 2^28 stopped the process for 10 seconds on one unit. It is refused, and so are tables that
// are large to begin with.
func TestUnsoundTableGrow(t *testing.T) {
	grow := []byte{opRefNull, typeFunc, opI32Const, 1, prefixMisc, miscTableGrow, 0, 0x1a}
	for name, code := range map[string][]byte{"reached": grow, "in dead code": join([]byte{opUnreachable}, grow)} {
		_, err := Rewrite(oneFunction(noParams, noLocals, code), Options{Validate: validate})
		wantError(t, name, err, RuleTableGrow, ErrRefused)
	}
	for name, table := range map[string][]byte{
		"least": join([]byte{typeFunc, 0}, uleb(65_537)), "greatest": join([]byte{typeFunc, 1, 0}, uleb(65_537)),
		"least of all": join([]byte{typeFunc, 0}, uleb(1<<28)),
	} {
		_, err := Rewrite(wasm(section(secTable, table)), Options{Validate: validate})
		wantError(t, name, err, RuleLimit, ErrLimit)
		_, err = Rewrite(wasm(section(secImport, join(str("env"), str("t"), []byte{byte(Table)}, table))), Options{Validate: validate})
		wantError(t, "imported, "+name, err, RuleLimit, ErrLimit)
	}
	mustRewrite(t, wasm(section(secTable, join([]byte{typeFunc, 1, 0}, uleb(65_536)))))
}

// One instruction that works on any number of bytes.
func TestUnsoundLengths(t *testing.T) {
	m := mustRewrite(t, load(t, "memory"))
	g := newGuest(t, engines["compiler"](), m.Code, m.Facts.Imports)
	for _, c := range []struct {
		name string
		args []uint64
		n    int64 // instructions besides the length
	}{
		{"fill", []uint64{0, 7, 0}, 4}, {"copy", []uint64{0, 1, 0}, 4}, {"init", []uint64{0, 0, 0}, 4},
		{"tfill", []uint64{0, 0}, 4}, {"tcopy", []uint64{0, 0, 0}, 4}, {"tinit", []uint64{0, 0, 0}, 4}, {"tinit2", []uint64{0, 0, 0}, 4},
	} {
		// The greatest length is one that would be negative with the sign: it must not be a gift.
		for _, length := range []int64{0, 1, 3, 60_000, 0x7fffffff, 0x80000000, 0xffffffff} {
			args := slices.Clone(c.args)
			args[len(args)-1] = uint64(length)
			_, left, _ := g.callWith(plenty, c.name, args...)
			if got := plenty - left; got != c.n+length {
				t.Errorf("%s%v: charged %d, want %d", c.name, args, got, c.n+length)
			}
			// It is charged before anything is written.
			if length == 60_000 && c.name == "fill" {
				g.mod.Memory().WriteByte(0, 99)
				if _, left, err := g.callWith(c.n+length-1, c.name, args...); err == nil || left >= 0 {
					t.Errorf("%s%v: one unit short, left %d, %v", c.name, args, left, err)
				}
				if b, _ := g.mod.Memory().ReadByte(0); b != 99 {
					t.Error("memory.fill wrote before it was paid for")
				}
			}
		}
	}
}

// memory.grow in a loop slipped the host's ticker by 247 ms. Pages cost, also those that are not to be had.
func TestUnsoundMemoryGrow(t *testing.T) {
	m := mustRewrite(t, load(t, "memory"))
	for _, pages := range []int64{0, 1, 3, 4, 65_536, 0x7fffffff, 0x80000000, 0xffffffff} {
		g := newGuest(t, engines["compiler"](), m.Code, m.Facts.Imports)
		_, left, err := g.callWith(plenty, "grow", uint64(pages))
		if got := plenty - left; err != nil || got != 2+pages*PageCost {
			t.Errorf("grow(%d): charged %d, want %d (%v)", pages, got, 2+pages*PageCost, err)
		}
		size := g.mod.Memory().Size()
		if _, left, err := g.callWith(2+pages*PageCost-1, "grow", uint64(pages)); err == nil || left >= 0 {
			t.Errorf("grow(%d) one unit short: left %d, %v", pages, left, err)
		}
		if g.mod.Memory().Size() != size {
			t.Errorf("grow(%d) grew before it was paid for", pages)
		}
	}
}

// Locals are set to zero at each entry, however many there are.
func TestUnsoundLocals(t *testing.T) {
	locals := join([]byte{2}, uleb(3000), []byte{typeV128}, uleb(2000), []byte{typeI64})
	m := mustRewrite(t, oneFunction(noParams, locals, nil))
	g := newGuest(t, engines["compiler"](), m.Code, nil)
	if _, left, err := g.callWith(plenty, "f"); err != nil || plenty-left != 5000 {
		t.Errorf("charged %d, want 5000 (%v)", plenty-left, err)
	}
	_, err := Rewrite(oneFunction([]byte{0x60, 1, typeI32, 0}, locals, nil), Options{Validate: validate})
	wantError(t, "5001 locals", err, RuleLimit, ErrLimit)
	_, err = Rewrite(oneFunction(noParams, join([]byte{2}, uleb(0xffffffff), []byte{typeI32}, uleb(0xffffffff), []byte{typeI32}), nil),
		Options{Validate: func([]byte) error { t.Error("the engine saw 8 G locals"); return nil }})
	wantError(t, "8 G locals", err, RuleLimit, ErrLimit)
}

// A call or branch that moves many values for one unit: arity is bounded.
func TestUnsoundArity(t *testing.T) {
	wide := bytes.Repeat([]byte{typeI64}, 65)
	for name, typ := range map[string][]byte{"parameters": join([]byte{0x60}, sized(wide...), []byte{0}), "results": join([]byte{0x60, 0}, sized(wide[:17]...))} {
		_, err := Rewrite(wasm(section(secType, typ)), Options{Validate: validate})
		wantError(t, name, err, RuleLimit, ErrLimit)
	}
}

// Every way back to a loop's head pays again, from inside an inner loop, too.
func TestUnsoundBranches(t *testing.T) {
	again := map[string][]byte{
		"br": {opBr, 0}, "br_if": {opI32Const, 1, 0x0d, 0}, "br_table": {opI32Const, 0, 0x0e, 0, 0},
		"br_table's list":      {opI32Const, 0, 0x0e, 2, 0, 1, 1},
		"out of an if":         {opI32Const, 1, opIf, blockEmpty, opBr, 1, opEnd},
		"out of an inner loop": {opLoop, blockEmpty, opBr, 1, opEnd},
		"out of blocks":        {opBlock, blockEmpty, opBlock, blockEmpty, opBr, 2, opEnd, opEnd},
		"an inner loop alone":  {opLoop, blockEmpty, opBr, 0, opEnd},
		"with values":          {opI32Const, 1, opI64Const, 2, opLoop, 1, opBr, 0, opEnd, 0x1a, 0x1a},
	}
	for name, code := range again {
		body := join([]byte{opLoop, blockEmpty}, code, []byte{opEnd})
		mod := wasm(section(secType, noParams, []byte{0x60, 2, typeI32, typeI64, 2, typeI32, typeI64}), section(secFunction, []byte{0}),
			section(secExport, append(str("f"), 0, 0)), section(secCode, sized(join(noLocals, body, []byte{opEnd})...)))
		g := newGuest(t, engines["compiler"](), mustRewrite(t, mod).Code, nil)
		if seen, left, err := g.callWith(100_000, "f"); err == nil || left >= 0 || left < -20 {
			t.Errorf("%s: %s, left %d", name, seen, left)
		}
	}
}

// Recursion without end pays at each entry; what ends first, fuel or the engine's stack, depends on the budget.
func TestUnsoundRecursion(t *testing.T) {
	m := mustRewrite(t, load(t, "calls"))
	g := newGuest(t, engines["compiler"](), m.Code, m.Facts.Imports)
	if seen, left, err := g.callWith(1000, "recursion"); err == nil || left != -1 {
		t.Errorf("%s, left %d", seen, left)
	}
	// A function with nothing in it costs its caller one unit.
	if _, left, err := newGuest(t, engines["compiler"](), mustRewrite(t, load(t, "control")).Code, nil).callWith(0, "empty"); err != nil || left != 0 {
		t.Errorf("left %d, %v", left, err)
	}
}

// What a host function charges is seen by the guest that called it: engines keep globals in registers.
func TestUnsoundHostCalls(t *testing.T) {
	m := mustRewrite(t, load(t, "calls"))
	for engine, c := range engines {
		free := newGuest(t, c(), m.Code, m.Facts.Imports)
		_, left, _ := free.callWith(plenty, "host", 5)
		own := plenty - left
		calls := int64(len(free.calls))
		if calls < 2 {
			t.Fatalf("%d calls of the host", calls)
		}
		paying := newGuest(t, c(), m.Code, m.Facts.Imports)
		paying.charge = true
		want := own + calls*(HostCallCost+8)
		if _, left, err := paying.callWith(plenty, "host", 5); err != nil || plenty-left != want {
			t.Errorf("%s: charged %d, want %d (%v)", engine, plenty-left, want, err)
		}
		if seen, left, err := paying.callWith(want, "host", 5); err != nil || left != 0 {
			t.Errorf("%s: with its charge: %s, left %d", engine, seen, left)
		}
		if seen, left, err := paying.callWith(1500, "host", 5); err == nil || left >= 0 || !strings.HasPrefix(seen, "trap") {
			t.Errorf("%s: with 1500: %s, left %d", engine, seen, left)
		}
	}
}

// A few bytes that claim to be large, in a section that is no code: the engine would set memory aside for it.
func TestUnsoundCounts(t *testing.T) {
	huge := uleb(0xffffffff)
	for name, code := range map[string][]byte{
		"function names": wasm(append([]byte{secCustom}, sized(join(str("name"), []byte{1}, sized(huge...))...)...)),
		"local names":    wasm(append([]byte{secCustom}, sized(join(str("name"), []byte{2}, sized(join([]byte{1, 0}, huge)...))...)...)),
		"types":          wasm(append([]byte{secType}, sized(huge...)...)),
		"exports":        wasm(append([]byte{secExport}, sized(huge...)...)),
		"elements":       wasm(append([]byte{secElement}, sized(join([]byte{1, 1, 0}, huge)...)...)),
		"data":           wasm(append([]byte{secData}, sized(join([]byte{1, 1}, huge)...)...)),
	} {
		_, err := Rewrite(code, Options{Validate: func([]byte) error { t.Errorf("%s: the engine saw it", name); return nil }})
		if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func wantError(t *testing.T, name string, err error, rule Rule, class error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Rule != rule || !errors.Is(err, class) {
		t.Errorf("%s: error %v, want one of rule %s that wraps %q", name, err, rule, class)
	}
}
