package wasm

import (
	"fmt"
	"slices"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/mooncake-agent/mooncake/plugins/abi"
)

type signature struct{ params, results []api.ValueType }

// abiFuncs are the exports that the host calls.
var abiFuncs = map[string]signature{
	abi.Marker:      {nil, types(i32)},
	abi.Initialize:  {nil, nil},
	abi.FuncBuffer:  {types(i32, i32), types(i32)},
	abi.FuncInit:    {nil, types(i32)},
	abi.FuncEvents:  {types(i32), types(i32)},
	abi.FuncVictims: {types(i64, i32, i32, i32, i32), types(i32)},
	abi.FuncScore:   {types(i32), types(i32)},
	abi.FuncAdmit:   {types(i32), types(i32)},
	abi.FuncSave:    {nil, types(i32)},
	abi.FuncLoad:    {types(i32), types(i32)},
	abi.FuncStats:   {nil, types(i32)},
}

// inspect checks imports and exports of a compiled module and notes what it can do.
func (f *Factory) inspect(c wazero.CompiledModule) error {
	i := &f.info
	if err := checkImports(c); err != nil {
		return &refusedError{err.Error()}
	}
	i.Imports = nil
	for _, d := range c.ImportedFunctions() {
		module, name, _ := d.Import()
		i.Imports = append(i.Imports, module+"."+name)
	}
	mem, ok := c.ExportedMemories()[abi.MemoryExport]
	if !ok {
		return &refusedError{fmt.Sprintf("does not export its memory as %q", abi.MemoryExport)}
	}
	i.MemoryMin, i.MemoryMax = mem.Min(), 1<<16
	if most, ok := mem.Max(); ok {
		i.MemoryMax = most
	}
	exports := c.ExportedFunctions()
	i.Exports = nil
	for name, want := range abiFuncs {
		d, ok := exports[name]
		if !ok {
			continue
		}
		if !slices.Equal(d.ParamTypes(), want.params) || !slices.Equal(d.ResultTypes(), want.results) {
			return &refusedError{fmt.Sprintf("exports %s as (%s) -> (%s), the ABI says (%s) -> (%s)", name,
				typeNames(d.ParamTypes()), typeNames(d.ResultTypes()), typeNames(want.params), typeNames(want.results))}
		}
		i.Exports = append(i.Exports, name)
	}
	slices.Sort(i.Exports)
	has := func(name string) bool { return slices.Contains(i.Exports, name) }
	for _, name := range []string{abi.Marker, abi.FuncBuffer, abi.FuncInit} {
		if !has(name) {
			return &refusedError{"does not export " + name + ": it is no eviction policy"}
		}
	}
	events, victims, score := has(abi.FuncEvents), has(abi.FuncVictims), has(abi.FuncScore)
	switch {
	case events && victims: // event mode, even if it has scores too
	case events != victims:
		return &refusedError{fmt.Sprintf("exports only one of %s and %s", abi.FuncEvents, abi.FuncVictims)}
	case !score:
		return &refusedError{fmt.Sprintf("exports neither %s and %s nor %s", abi.FuncEvents, abi.FuncVictims, abi.FuncScore)}
	}
	if has(abi.FuncSave) != has(abi.FuncLoad) {
		return &refusedError{fmt.Sprintf("exports only one of %s and %s", abi.FuncSave, abi.FuncLoad)}
	}
	i.Score = !events
	i.Admit, i.State, i.Stats = has(abi.FuncAdmit), has(abi.FuncSave), has(abi.FuncStats)
	return nil
}
