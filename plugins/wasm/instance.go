package wasm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/plugins/abi"
	"github.com/mooncake-agent/mooncake/plugins/wasm/meter"
)

const (
	// batchMax is the most records of one call.
	batchMax = 256
	// leastPaid is how many records a call is paid for at least: entering a guest made by Go costs 15,000 units.
	leastPaid = 64
	// victimsMax is the most handles of one answer; who asks for more gets the rest from the host's order.
	victimsMax = 4096
	// statsMax is the state buffer of a guest that has policy_stats and no saved state.
	statsMax = 1 << 16
)

// Fuel, in units of one instruction.
const (
	callFuel = meter.CallBudget // for a call, before records
	initFuel = meter.InitBudget // see initBudget
	// restoreCall is what one call with RESTOREs may take of the 50 million that all of them have.
	restoreCall = 10_000_000
	statsFuel   = 5_000_000
)

// instance is one running guest. It is used from one goroutine at a time.
type instance struct {
	f     *Factory
	ctx   context.Context // carries the instance to the host functions
	mod   api.Module
	mem   api.Memory
	meter *tank // nil: not metered, in benchmarks
	arena *arena
	fn    map[string]api.Function
	hot   struct{ events, victims, score api.Function }
	size  [abi.BufferAdmit + 1]uint32
	addr  [abi.BufferAdmit + 1]uint32
	stack [8]uint64

	now    uint64 // of the last event
	chance uint64
	log    *logLimit

	spent, nanos uint64 // over all calls
	deepest      uint64 // most fuel of one call since init, for the size of the stack
}

// memoryLimit is what a guest's linear memory may grow to.
func (f *Factory) memoryLimit(handles uint32) uint64 {
	n := uint64(f.cfg.MemoryLimit)
	if n == 0 {
		n = 64<<20 + 64*uint64(handles)
	}
	return min(n&^(pageSize-1), 1<<32)
}

// start makes an instance up to the end of policy_init and asks for its buffers. Nothing is left behind when it
// fails.
func (f *Factory) start(spec eviction.Spec, now uint64, log *logLimit) (t *instance, fault *Fault) {
	a := &arena{limit: f.memoryLimit(spec.MaxHandles)}
	if need := uint64(f.info.MemoryMin) * pageSize; need > a.limit {
		return nil, faultf(FaultStart, "instantiate", "the module wants %d bytes of memory from the start, its limit is %d (memory_limit)", need, a.limit)
	}
	t = &instance{f: f, arena: a, now: now, chance: scatter(spec.Seed), log: log}
	t.ctx = context.WithValue(context.Background(), instanceKey{}, t)
	if fault := t.instantiate(); fault != nil {
		return nil, fault
	}
	if fault := t.begin(spec); fault != nil {
		t.close()
		return nil, fault
	}
	t.spent, t.nanos, t.deepest = 0, 0, 0
	return t, nil
}

func (t *instance) instantiate() (fault *Fault) {
	defer func() {
		// wazero panics when the first pages of memory cannot be had.
		if r := recover(); r != nil {
			t.arena.Free()
			fault = faultf(FaultStart, "instantiate", "%v", r)
			if t.arena.err != nil {
				fault.Why = t.arena.err.Error()
			}
		}
	}()
	ctx := withAllocator(context.Background(), t.arena)
	mod, err := t.f.rt.InstantiateModule(ctx, t.f.compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		t.arena.Free()
		return faultf(FaultStart, "instantiate", "%s", clean(firstLine(err), 200))
	}
	t.mod, t.mem = mod, mod.ExportedMemory(abi.MemoryExport)
	if t.f.metered {
		if t.meter = tankOf(mod); t.meter == nil {
			t.close()
			return faultf(FaultStart, "instantiate", "the module has no %s: it is not metered", meter.FuelExport)
		}
	}
	t.functions()
	return nil
}

// functions looks the exports up anew. A function carries a stack of its own; that of the start-up may have
// grown to megabytes.
func (t *instance) functions() {
	t.fn = map[string]api.Function{}
	for _, name := range t.f.info.Exports {
		t.fn[name] = t.mod.ExportedFunction(name)
	}
	t.hot.events, t.hot.victims, t.hot.score = t.fn[abi.FuncEvents], t.fn[abi.FuncVictims], t.fn[abi.FuncScore]
}

// begin calls the constructors and policy_init and asks for the buffers.
func (t *instance) begin(spec eviction.Spec) *Fault {
	budget := initBudget(spec.MaxHandles)
	if s := t.f.startExport; s != "" {
		if _, fault := t.call("start", t.mod.ExportedFunction(s), budget); fault != nil {
			return fault
		}
	}
	if fn := t.fn[abi.Initialize]; fn != nil {
		if _, fault := t.call(abi.Initialize, fn, budget); fault != nil {
			return fault
		}
	}
	bits, fault := t.call(abi.Marker, t.fn[abi.Marker], budget)
	if fault != nil {
		return fault
	}
	if unknown := abi.GuestFeatures(bits) &^ abi.KnownGuestFeatures; unknown != 0 {
		return faultf(FaultReturn, abi.Marker, "the guest needs features %#x that this host does not have", uint32(unknown))
	}
	config := abi.AppendConfig(nil, abi.HeaderOf(spec, batchMax), t.f.params)
	if fault := t.askBuffer(abi.BufferConfig, uint32(len(config)), budget); fault != nil {
		return fault
	}
	t.mem.Write(t.addr[abi.BufferConfig], config)
	code, fault := t.call(abi.FuncInit, t.fn[abi.FuncInit], budget)
	if fault != nil {
		return fault
	}
	if code != 0 {
		return faultf(FaultRefused, abi.FuncInit, "the guest refused to start with code %d", code)
	}
	for _, b := range t.f.buffers() {
		if fault := t.askBuffer(b.kind, uint32(b.size), budget); fault != nil {
			return fault
		}
	}
	t.functions()
	return nil
}

// budgetOf says what the budget of a call comes from, if that is a setting.
func (f *Factory) budgetOf(call string) string {
	switch call {
	case abi.FuncEvents, abi.FuncVictims, abi.FuncScore, abi.FuncAdmit:
		return fmt.Sprintf(" (fuel_per_event is %d; mooncake policy check says what it needs)", f.cfg.FuelPerEvent)
	}
	return ""
}

// budget is the fuel for a call about n records or handles.
func (f *Factory) budget(n int) uint64 {
	return callFuel + uint64(max(n, leastPaid))*f.cfg.FuelPerEvent
}

// initBudget is the fuel of each call of start-up, save and load, and of all RESTORE batches of an instance together:
// more for one that may have very many objects, which has arrays to fill.
func initBudget(handles uint32) uint64 {
	return max(initFuel, meter.HandleBudget*uint64(handles))
}

type bufferSize struct {
	kind abi.Buffer
	size int
}

// buffers are those that a guest with these exports is asked for after init.
func (f *Factory) buffers() []bufferSize {
	var out []bufferSize
	if f.info.Score {
		out = append(out, bufferSize{abi.BufferScores, abi.BufferScores.Size(abi.MaxCandidates)})
	} else {
		out = append(out, bufferSize{abi.BufferVictims, abi.BufferVictims.Size(victimsMax)})
	}
	out = append(out, bufferSize{abi.BufferEvents, abi.BufferEvents.Size(batchMax)})
	switch {
	case f.info.State:
		out = append(out, bufferSize{abi.BufferState, abi.MaxState})
	case f.info.Stats:
		out = append(out, bufferSize{abi.BufferState, statsMax})
	}
	if f.info.Admit {
		out = append(out, bufferSize{abi.BufferAdmit, abi.BufferAdmit.Size(batchMax)})
	}
	return out
}

// In Go a buffer may cost a garbage collection.
func (t *instance) askBuffer(kind abi.Buffer, size uint32, budget uint64) *Fault {
	got, fault := t.call(abi.FuncBuffer, t.fn[abi.FuncBuffer], budget, uint64(kind), uint64(size))
	if fault != nil {
		return fault
	}
	if err := abi.CheckBuffer(kind, uint32(got), size, uint64(t.mem.Size())); err != nil {
		return faultf(FaultBuffer, abi.FuncBuffer, "%s", strings.TrimPrefix(err.Error(), "abi: "))
	}
	t.addr[kind], t.size[kind] = uint32(got), size
	return nil
}

// buffer is the guest's memory of a buffer, valid until the next call: memory never shrinks and never moves.
func (t *instance) buffer(kind abi.Buffer) []byte {
	b, _ := t.mem.Read(t.addr[kind], t.size[kind]) // checked when it was asked for
	return b
}

// call runs an export on a budget. What it returns is the i32 result, 0 if it has none.
func (t *instance) call(name string, fn api.Function, budget uint64, args ...uint64) (int32, *Fault) {
	t.stack[0] = 0
	copy(t.stack[:], args)
	if t.meter != nil {
		t.meter.fill(budget)
	}
	start := time.Now()
	err := fn.CallWithStack(t.ctx, t.stack[:])
	t.nanos += uint64(time.Since(start))
	if t.meter != nil {
		left := t.meter.left()
		used := min(uint64(int64(budget)-left), math.MaxInt64)
		t.spent += used
		t.deepest = max(t.deepest, used)
		if left < 0 {
			return 0, faultf(FaultFuel, name, "used up its budget of %d units%s", budget, t.f.budgetOf(name))
		}
	}
	if err != nil {
		return 0, classify(name, err)
	}
	return int32(uint32(t.stack[0])), nil
}

func classify(name string, err error) *Fault {
	var f *Fault
	if errors.As(err, &f) {
		if f.Call != name {
			return faultf(f.Kind, name, "%s: %s", f.Call, f.Why)
		}
		return f
	}
	why := clean(firstLine(err), 200)
	if strings.Contains(why, "stack overflow") {
		return faultf(FaultStack, name, "%s", why)
	}
	return faultf(FaultTrap, name, "%s", why)
}

// firstLine is an error without the stack trace that wazero adds.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimPrefix(line, "wasm error: ")
}

// charge makes a host function cost fuel.
func (t *instance) charge(bytes uint64) {
	if t.meter == nil {
		return
	}
	if !t.meter.pay(uint32(bytes)) {
		panic(faultf(FaultFuel, "host function", "no fuel left"))
	}
}

func (t *instance) say(level slog.Level, text string) { t.log.say(t.now, level, text) }

// memoryBytes is what the instance holds: linear memory and the stacks of its functions. The depth of a stack is
// not to be seen, but no frame is larger than 16 bytes for each unit that it was charged.
func (t *instance) memoryBytes() uint64 {
	const ownStack, ceiling = 10 << 10, 50_000_000
	return uint64(t.mem.Size()) + uint64(len(t.fn))*ownStack + min(16*t.deepest, ceiling)
}

func (t *instance) close() {
	_ = t.mod.Close(context.Background()) // frees memory; there is nothing that can fail
	t.mod, t.mem, t.meter = nil, nil, nil
}
