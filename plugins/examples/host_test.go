package examples

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/plugins/abi"
)

// plainHost runs a guest without metering, limits or mercy: what a guest does here is the guest's doing alone.
type plainHost struct {
	tb   testing.TB
	rt   wazero.Runtime
	code wazero.CompiledModule
}

func newPlainHost(tb testing.TB, path string) *plainHost {
	tb.Helper()
	wasm, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	ctx := context.Background()
	rt := wazero.NewRuntime(ctx)
	tb.Cleanup(func() { rt.Close(ctx) })
	if _, err := rt.NewHostModuleBuilder(abi.ImportModule).NewFunctionBuilder().
		WithFunc(func(_ context.Context, m api.Module, level int32, ptr, n uint32) {
			text, _ := m.Memory().Read(ptr, n)
			tb.Logf("guest: %d %s", level, text)
		}).Export(abi.ImportLog).Instantiate(ctx); err != nil {
		tb.Fatal(err)
	}
	wasi_snapshot_preview1.MustInstantiate(ctx, rt)
	code, err := rt.CompileModule(ctx, wasm)
	if err != nil {
		tb.Fatalf("%s: %v", path, err)
	}
	return &plainHost{tb: tb, rt: rt, code: code}
}

// New implements eviction.Factory.
func (h *plainHost) New(s eviction.Spec) (eviction.Policy, error) { return h.start(s, "") }

func (h *plainHost) start(s eviction.Spec, params string) (*guest, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	ctx := context.Background()
	m, err := h.rt.InstantiateModule(ctx, h.code, wazero.NewModuleConfig().WithName("").WithStartFunctions(abi.Initialize))
	if err != nil {
		return nil, err
	}
	const batch, maxVictims = 256, 4096
	g := &guest{ctx: ctx, m: m, batch: batch}
	ask := func(b abi.Buffer, n int) []byte {
		size := uint32(b.Size(n))
		at := uint32(g.call(abi.FuncBuffer, uint64(b), uint64(size)))
		if e := abi.CheckBuffer(b, at, size, uint64(m.Memory().Size())); e != nil && g.err == nil {
			g.err = e
		}
		buf, _ := m.Memory().Read(at, size)
		return buf
	}
	copy(ask(abi.BufferConfig, len(params)), abi.AppendConfig(nil, abi.HeaderOf(s, batch), []byte(params)))
	if code := g.call(abi.FuncInit); code != 0 && g.err == nil {
		g.err = fmt.Errorf("policy_init refused with %d", code)
	}
	g.addr = map[abi.Buffer]uint32{}
	for b, n := range map[abi.Buffer]int{abi.BufferEvents: batch, abi.BufferVictims: maxVictims, abi.BufferScores: abi.MaxCandidates} {
		if ask(b, n); g.err == nil {
			g.addr[b] = uint32(g.call(abi.FuncBuffer, uint64(b), uint64(b.Size(n))))
		}
	}
	return g, g.err
}

// guest is one instance. Memory may move while it runs, so buffers are looked up at each call.
type guest struct {
	ctx   context.Context
	m     api.Module
	addr  map[abi.Buffer]uint32
	batch int
	err   error
}

func (g *guest) call(name string, args ...uint64) int32 {
	f := g.m.ExportedFunction(name)
	if f == nil {
		g.err = fmt.Errorf("no export %s", name)
		return 0
	}
	res, err := f.Call(g.ctx, args...)
	if err != nil {
		g.err = fmt.Errorf("%s: %w", name, err)
		return 0
	}
	return int32(res[0])
}

func (g *guest) buffer(b abi.Buffer, size int) []byte {
	buf, ok := g.m.Memory().Read(g.addr[b], uint32(size))
	if !ok {
		panic(fmt.Sprintf("%d bytes of the %s buffer are outside of memory", size, b))
	}
	return buf
}

func (g *guest) Apply(events []eviction.Event) error {
	for len(events) > 0 {
		n := min(len(events), g.batch)
		abi.EncodeAll(g.buffer(abi.BufferEvents, n*abi.RecordSize), events[:n])
		if code := g.call(abi.FuncEvents, uint64(n)); g.err != nil {
			return g.err
		} else if code < 0 {
			return fmt.Errorf("policy_events returned %d: %w", code, eviction.ErrBadEvent)
		}
		events = events[n:]
	}
	return nil
}

func (g *guest) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	n := g.call(abi.FuncVictims, need.Bytes, uint64(need.Max), uint64(need.Tenant), uint64(need.Segment), uint64(need.Flags))
	if g.err != nil || n < 0 || int(n) > need.Max {
		return dst, fmt.Errorf("policy_victims of %d: %d, %w", need.Max, n, g.err)
	}
	buf := g.buffer(abi.BufferVictims, int(n)*abi.HandleSize)
	for i := range int(n) {
		dst = append(dst, eviction.Handle(binary.LittleEndian.Uint32(buf[i*abi.HandleSize:])))
	}
	return dst, nil
}

// Score asks for the scores of candidates; the first record is the TICK.
func (g *guest) Score(records []eviction.Event) ([]float64, error) {
	abi.EncodeAll(g.buffer(abi.BufferEvents, len(records)*abi.RecordSize), records)
	n := g.call(abi.FuncScore, uint64(len(records)))
	if g.err != nil || int(n) != len(records)-1 {
		return nil, fmt.Errorf("policy_score of %d records: %d, %w", len(records), n, g.err)
	}
	buf := g.buffer(abi.BufferScores, int(n)*abi.ScoreSize)
	out := make([]float64, n)
	for i := range out {
		out[i] = math.Float64frombits(binary.LittleEndian.Uint64(buf[i*abi.ScoreSize:]))
	}
	return out, nil
}

func (g *guest) Close() error { return g.m.Close(g.ctx) }
