package wasm

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/mooncake-agent/mooncake/plugins/abi"
)

const (
	wasiModule = "wasi_snapshot_preview1"
	maxText    = 1 << 10 // bytes of one log line
	maxRandom  = 1 << 16 // bytes of one random_get
)

// Error numbers of WASI.
const (
	wasiOK     = 0
	wasiBadf   = 8
	wasiFault  = 21
	wasiInval  = 28
	wasiNosys  = 52
	wasiClocks = 4 // clock ids there are
)

// importError is the refusal of a module that wants what no policy gets.
func importError(what, module, name string) error {
	return fmt.Errorf("imports %s %s.%s, which policies do not get; there is %s.%s, and inert stand-ins for %s",
		what, clean(module, 64), clean(name, 64), abi.ImportModule, abi.ImportLog, wasiModule)
}

// hostFunc is one function that guests may import. t is the instance that calls.
type hostFunc struct {
	params, results []api.ValueType
	call            func(t *instance, stack []uint64)
}

var (
	i32 = api.ValueTypeI32
	i64 = api.ValueTypeI64
)

func types(t ...api.ValueType) []api.ValueType { return t }

var logFunc = hostFunc{types(i32, i32, i32), nil, func(t *instance, s []uint64) {
	level, ptr, n := int32(s[0]), uint32(s[1]), uint32(s[2])
	n = min(n, maxText)
	t.charge(uint64(n))
	text, ok := t.mem.Read(ptr, n)
	if !ok {
		panic(faultf(FaultBuffer, abi.ImportLog, "%d bytes at %d are outside of memory", n, ptr))
	}
	t.say(logLevel(abi.LogLevel(level)), string(text))
}}

func logLevel(l abi.LogLevel) slog.Level {
	switch l {
	case abi.LogDebug:
		return slog.LevelDebug
	case abi.LogInfo:
		return slog.LevelInfo
	case abi.LogWarn:
		return slog.LevelWarn
	}
	return slog.LevelError
}

// wasiFuncs answer what the start-up code of Go and other toolchains cannot do without. Time is that of the
// last event, chance comes from the seed, text goes to the log; there are no files.
var wasiFuncs = map[string]hostFunc{
	"args_sizes_get":    {types(i32, i32), types(i32), noStrings},
	"environ_sizes_get": {types(i32, i32), types(i32), noStrings},
	"args_get":          {types(i32, i32), types(i32), answer(wasiOK)},
	"environ_get":       {types(i32, i32), types(i32), answer(wasiOK)},
	"sched_yield":       {nil, types(i32), answer(wasiOK)},
	"clock_res_get": {types(i32, i32), types(i32), func(t *instance, s []uint64) {
		t.charge(8)
		s[0] = put64(t, uint32(s[0]) < wasiClocks, uint32(s[1]), 1_000_000)
	}},
	"clock_time_get": {types(i32, i64, i32), types(i32), func(t *instance, s []uint64) {
		t.charge(8)
		s[0] = put64(t, uint32(s[0]) < wasiClocks, uint32(s[2]), max(t.now, 1)*1_000_000) // Go dies of a clock at 0
	}},
	"random_get":     {types(i32, i32), types(i32), randomGet},
	"fd_write":       {types(i32, i32, i32, i32), types(i32), fdWrite},
	"fd_prestat_get": {types(i32, i32), types(i32), answer(wasiBadf)},
	"poll_oneoff":    {types(i32, i32, i32, i32), types(i32), pollOneoff},
	"proc_exit": {types(i32), nil, func(_ *instance, s []uint64) {
		panic(faultf(FaultExit, "proc_exit", "the guest left with code %d", uint32(s[0])))
	}},
}

// The rest of preview 1 answers ENOSYS, whatever its parameters.
var wasiAbsent = strings.Fields(`clock_time_set fd_advise fd_allocate fd_close fd_datasync fd_fdstat_get fd_fdstat_set_flags
	fd_fdstat_set_rights fd_filestat_get fd_filestat_set_size fd_filestat_set_times fd_pread fd_prestat_dir_name fd_pwrite fd_read
	fd_readdir fd_renumber fd_seek fd_sync fd_tell path_create_directory path_filestat_get path_filestat_set_times path_link path_open
	path_readlink path_remove_directory path_rename path_symlink path_unlink_file proc_raise sock_accept sock_recv sock_send sock_shutdown`)

func answer(errno uint64) func(*instance, []uint64) {
	return func(t *instance, s []uint64) {
		t.charge(0)
		s[0] = errno
	}
}

func noStrings(t *instance, s []uint64) {
	t.charge(8)
	if !t.mem.WriteUint32Le(uint32(s[0]), 0) || !t.mem.WriteUint32Le(uint32(s[1]), 0) {
		s[0] = wasiFault
		return
	}
	s[0] = wasiOK
}

func put64(t *instance, known bool, at uint32, v uint64) uint64 {
	switch {
	case !known:
		return wasiInval
	case !t.mem.WriteUint64Le(at, v):
		return wasiFault
	}
	return wasiOK
}

func randomGet(t *instance, s []uint64) {
	at, n := uint32(s[0]), uint32(s[1])
	if n > maxRandom {
		s[0] = wasiInval
		t.charge(0)
		return
	}
	t.charge(uint64(n))
	b, ok := t.mem.Read(at, n)
	if !ok {
		s[0] = wasiFault
		return
	}
	for len(b) > 0 {
		t.chance++
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], scatter(t.chance))
		b = b[copy(b, word[:]):]
	}
	s[0] = wasiOK
}

// scatter turns a counter into chance (splitmix64).
func scatter(x uint64) uint64 {
	x *= 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fdWrite logs what is written to standard output and error.
func fdWrite(t *instance, s []uint64) {
	fd, vecs, n, written := uint32(s[0]), uint32(s[1]), uint32(s[2]), uint32(s[3])
	if fd != 1 && fd != 2 {
		t.charge(0)
		s[0] = wasiBadf
		return
	}
	n = min(n, 64)
	var text []byte
	total := uint32(0)
	for i := range n {
		ptr, ok1 := t.mem.ReadUint32Le(vecs + 8*i)
		size, ok2 := t.mem.ReadUint32Le(vecs + 8*i + 4)
		b, ok3 := t.mem.Read(ptr, size)
		if !ok1 || !ok2 || !ok3 || size > math.MaxInt32-total {
			t.charge(uint64(len(text)))
			s[0] = wasiFault
			return
		}
		total += size
		text = append(text, b[:min(len(b), maxText-len(text))]...)
	}
	t.charge(uint64(len(text)))
	if !t.mem.WriteUint32Le(written, total) {
		s[0] = wasiFault
		return
	}
	level := slog.LevelInfo
	if fd == 2 {
		level = slog.LevelWarn
	}
	t.say(level, string(text))
	s[0] = wasiOK
}

// pollOneoff says that the first subscription is due: who sleeps here wakes at once.
func pollOneoff(t *instance, s []uint64) {
	in, out, n, done := uint32(s[0]), uint32(s[1]), uint32(s[2]), uint32(s[3])
	t.charge(32)
	if n == 0 {
		s[0] = wasiInval
		return
	}
	user, ok1 := t.mem.ReadUint64Le(in)
	kind, ok2 := t.mem.ReadByte(in + 8)
	event, ok3 := t.mem.Read(out, 32)
	if !ok1 || !ok2 || !ok3 || !t.mem.WriteUint32Le(done, 1) {
		s[0] = wasiFault
		return
	}
	clear(event)
	binary.LittleEndian.PutUint64(event, user)
	event[10] = kind
	s[0] = wasiOK
}

// hostFuncFor finds what a guest's import is served with.
func hostFuncFor(def api.FunctionDefinition) (hostFunc, error) {
	module, name, _ := def.Import()
	var f hostFunc
	switch {
	case module == abi.ImportModule && name == abi.ImportLog:
		f = logFunc
	case module == wasiModule && slices.Contains(wasiAbsent, name):
		if r := def.ResultTypes(); len(r) != 1 || r[0] != i32 {
			return f, fmt.Errorf("imports %s.%s with another signature than WASI's", module, name)
		}
		return hostFunc{def.ParamTypes(), def.ResultTypes(), answer(wasiNosys)}, nil
	case module == wasiModule && wasiFuncs[name].call != nil:
		f = wasiFuncs[name]
	default:
		return f, importError("the function", module, name)
	}
	if !slices.Equal(def.ParamTypes(), f.params) || !slices.Equal(def.ResultTypes(), f.results) {
		return f, fmt.Errorf("imports %s.%s with another signature than (%s) -> (%s)", module, name, typeNames(f.params), typeNames(f.results))
	}
	return f, nil
}

func typeNames(ts []api.ValueType) string {
	var names []string
	for _, t := range ts {
		names = append(names, api.ValueTypeName(t))
	}
	return strings.Join(names, " ")
}

// checkImports refuses a module that imports anything but the functions above.
func checkImports(c wazero.CompiledModule) error {
	for _, m := range c.ImportedMemories() {
		module, name, _ := m.Import()
		return importError("the memory", module, name)
	}
	for _, f := range c.ImportedFunctions() {
		if _, err := hostFuncFor(f); err != nil {
			return err
		}
	}
	return nil
}

type instanceKey struct{}

// offer defines the host functions that a compiled module imports.
func offer(ctx context.Context, rt wazero.Runtime, c wazero.CompiledModule) error {
	builders := map[string]wazero.HostModuleBuilder{}
	seen := map[string]bool{}
	for _, def := range c.ImportedFunctions() {
		module, name, _ := def.Import()
		if seen[module+"."+name] {
			continue
		}
		seen[module+"."+name] = true
		f, err := hostFuncFor(def)
		if err != nil {
			return err
		}
		b := builders[module]
		if b == nil {
			b = rt.NewHostModuleBuilder(module)
			builders[module] = b
		}
		call := f.call
		b.NewFunctionBuilder().WithGoFunction(api.GoFunc(func(ctx context.Context, stack []uint64) {
			call(ctx.Value(instanceKey{}).(*instance), stack)
		}), f.params, f.results).WithName(name).Export(name)
	}
	for module, b := range builders {
		if _, err := b.Instantiate(ctx); err != nil {
			return fmt.Errorf("host functions of %s: %w", module, err)
		}
	}
	return nil
}
