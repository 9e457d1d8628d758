package meter

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// maxPages bounds the memory of modules under test: 16 MiB.
const maxPages = 256

func config(c wazero.RuntimeConfig) wazero.RuntimeConfig {
	return c.WithCoreFeatures(api.CoreFeaturesV2).WithMemoryLimitPages(maxPages).WithDebugInfoEnabled(false)
}

var validator = sync.OnceValue(func() wazero.Runtime {
	return wazero.NewRuntimeWithConfig(context.Background(), config(wazero.NewRuntimeConfigInterpreter()))
})

// validate is the engine's check of a module.
func validate(code []byte) error {
	c, err := validator().CompileModule(context.Background(), code)
	if err != nil {
		return err
	}
	return c.Close(context.Background())
}

func mustRewrite(t testing.TB, code []byte) *Module {
	t.Helper()
	m, err := Rewrite(code, Options{Validate: validate, Budget: InitBudget})
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(m.Code); err != nil {
		t.Fatalf("the metered module is not valid: %v", err)
	}
	return m
}

func load(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "modules", name+".wasm"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// corpus is the names of the modules in testdata, those with a counter left out.
func corpus(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/modules/*.wasm")
	if err != nil || len(files) < 10 {
		t.Fatalf("testdata/modules: %d files, %v", len(files), err)
	}
	var names []string
	for _, f := range files {
		if n := strings.TrimSuffix(filepath.Base(f), ".wasm"); !strings.HasSuffix(n, ".counted") {
			names = append(names, n)
		}
	}
	return names
}

// guest is an instance under test. Its imports are functions that note what they are called with.
type guest struct {
	t       testing.TB
	runtime wazero.Runtime
	mod     api.Module
	calls   []string // of the host
	charge  bool     // host functions charge
}

// engines are the engines under test; the compiler is the one that hosts use.
var engines = map[string]func() wazero.RuntimeConfig{
	"compiler": wazero.NewRuntimeConfigCompiler, "interpreter": wazero.NewRuntimeConfigInterpreter,
}

// newGuest instantiates code. imports says what it imports.
func newGuest(t testing.TB, engine wazero.RuntimeConfig, code []byte, imports []Import) *guest {
	t.Helper()
	ctx := context.Background()
	g := &guest{t: t, runtime: wazero.NewRuntimeWithConfig(ctx, config(engine))}
	t.Cleanup(func() { g.runtime.Close(ctx) })
	hosts := map[string]wazero.HostModuleBuilder{}
	for _, i := range imports {
		if i.Kind != Function {
			t.Fatalf("import of a %s", i.Kind)
		}
		if hosts[i.Module] == nil {
			hosts[i.Module] = g.runtime.NewHostModuleBuilder(i.Module)
		}
		params, results := parseType(t, i.Type)
		hosts[i.Module].NewFunctionBuilder().WithGoModuleFunction(g.note(i.Name, params, results), params, results).Export(i.Name)
	}
	for name, h := range hosts {
		if _, err := h.Instantiate(ctx); err != nil {
			t.Fatalf("host module %s: %v", name, err)
		}
	}
	mod, err := g.runtime.InstantiateWithConfig(ctx, code, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		t.Fatalf("instantiate: %v", err)
	}
	g.mod = mod
	return g
}

func parseType(t testing.TB, text string) (params, results []api.ValueType) {
	names := map[string]api.ValueType{
		"i32": api.ValueTypeI32, "i64": api.ValueTypeI64, "f32": api.ValueTypeF32, "f64": api.ValueTypeF64,
		"externref": api.ValueTypeExternref, "funcref": typeFunc, "v128": typeV128,
	}
	side := &params
	for _, w := range regexp.MustCompile(`[a-z0-9]+|->`).FindAllString(text, -1) {
		if w == "->" {
			side = &results
			continue
		}
		v, ok := names[w]
		if !ok {
			t.Fatalf("type %q in %q", w, text)
		}
		*side = append(*side, v)
	}
	return params, results
}

// note is a host function that records its arguments and returns 1s.
func (g *guest) note(name string, params, results []api.ValueType) api.GoModuleFunction {
	return api.GoModuleFunc(func(_ context.Context, mod api.Module, stack []uint64) {
		g.calls = append(g.calls, fmt.Sprint(name, values(stack, params)))
		if g.charge {
			fuel := mod.ExportedGlobal(FuelExport).(api.MutableGlobal)
			left := Charge(int64(fuel.Get()), 8)
			if fuel.Set(uint64(left)); left < 0 {
				panic("out of fuel in the host")
			}
		}
		for i := range results {
			stack[i] = 1
		}
	})
}

// values renders a stack; every not-a-number is the same one, because an engine may choose among them.
func values(stack []uint64, types []api.ValueType) string {
	var b strings.Builder
	i := 0
	for _, t := range types {
		switch {
		case t == api.ValueTypeF32 && math.IsNaN(float64(api.DecodeF32(stack[i]))), t == api.ValueTypeF64 && math.IsNaN(api.DecodeF64(stack[i])):
			b.WriteString(" nan")
		case t == api.ValueTypeI32 || t == api.ValueTypeF32:
			fmt.Fprintf(&b, " %#x", uint32(stack[i]))
		case t == typeFunc: // a pointer of the engine's
			fmt.Fprintf(&b, " null=%v", stack[i] == 0)
		case t == typeV128:
			fmt.Fprintf(&b, " %#x:%#x", stack[i], stack[i+1])
			i++
		default:
			fmt.Fprintf(&b, " %#x", stack[i])
		}
		i++
	}
	return b.String()
}

// call calls an export and describes what can be seen of it: results or trap, calls of the host, memory and
// exported globals.
func (g *guest) call(name string, args ...uint64) (seen string, err error) {
	f := g.mod.ExportedFunction(name)
	if f == nil {
		g.t.Fatalf("no function %q", name)
	}
	g.calls = nil
	res, err := f.Call(context.Background(), args...)
	var b strings.Builder
	if err != nil {
		fmt.Fprintf(&b, "trap %s", regexp.MustCompile(`wasm error: [^\n(]*|out of fuel in the host`).FindString(err.Error()))
	} else {
		fmt.Fprintf(&b, "results%s", values(res, f.Definition().ResultTypes()))
	}
	fmt.Fprintf(&b, " host %v", g.calls)
	if _, ok := g.mod.ExportedMemoryDefinitions()["memory"]; ok {
		m := g.mod.ExportedMemory("memory")
		all, _ := m.Read(0, m.Size())
		fmt.Fprintf(&b, " memory %d %#x", m.Size(), xxhash.Sum64(all))
	}
	return b.String(), err
}

func (g *guest) fuel() api.MutableGlobal {
	f, ok := g.mod.ExportedGlobal(FuelExport).(api.MutableGlobal)
	if !ok {
		g.t.Fatalf("no mutable global %s", FuelExport)
	}
	return f
}

// callWith calls with a budget and returns what is left of it.
func (g *guest) callWith(budget int64, name string, args ...uint64) (seen string, left int64, err error) {
	g.fuel().Set(uint64(budget))
	seen, err = g.call(name, args...)
	return seen, int64(g.fuel().Get()), err
}

// arguments are some for a function of that type, chosen by n.
func arguments(types []api.ValueType, n int) []uint64 {
	ints := []uint64{3, 0, 1, 0xffffffff, 77, 0x80000000, 13, 1 << 40, 0xfedcba9876543210, 2, 255}
	floats := []float64{1.5, 0, -0.25, math.Inf(1), 1e30, -1e9}
	var args []uint64
	for i, t := range types {
		v := ints[(n+3*i)%len(ints)]
		switch t {
		case api.ValueTypeI32:
			args = append(args, uint64(uint32(v)))
		case api.ValueTypeF32:
			args = append(args, api.EncodeF32(float32(floats[(n+i)%len(floats)])))
		case api.ValueTypeF64:
			args = append(args, api.EncodeF64(floats[(n+i)%len(floats)]))
		case typeV128:
			args = append(args, v, ^v)
		case typeFunc, api.ValueTypeExternref:
			args = append(args, 0)
		default:
			args = append(args, v)
		}
	}
	return args
}

// bits of a module written by hand, in the binary format.

func vec(entries ...[]byte) []byte {
	b := binary.AppendUvarint(nil, uint64(len(entries)))
	for _, e := range entries {
		b = append(b, e...)
	}
	return b
}

func sized(content ...byte) []byte {
	return append(binary.AppendUvarint(nil, uint64(len(content))), content...)
}

func section(id byte, entries ...[]byte) []byte {
	return append([]byte{id}, sized(vec(entries...)...)...)
}

func wasm(sections ...[]byte) []byte {
	b := []byte(header)
	for _, s := range sections {
		b = append(b, s...)
	}
	return b
}

func str(s string) []byte { return sized([]byte(s)...) }

func join(parts ...[]byte) []byte {
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// oneFunction is a module that exports the function "f" with this type, these locals and this code (without its end), and a
// memory of a page and a table of one element.
func oneFunction(typ, locals, code []byte) []byte {
	return wasm(
		section(secType, typ),
		section(secFunction, []byte{0}),
		section(secTable, []byte{typeFunc, 0, 1}),
		section(secMemory, []byte{0, 1}),
		section(secExport, append(str("f"), 0, 0)),
		section(secCode, sized(join(locals, code, []byte{opEnd})...)),
	)
}

var (
	noParams = []byte{0x60, 0, 0}
	noLocals = []byte{0}
)
