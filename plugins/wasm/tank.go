package wasm

import (
	"github.com/tetratelabs/wazero/api"

	"github.com/mooncake-agent/mooncake/plugins/wasm/meter"
)

// tank is the fuel of an instance: what it counts down, and the reserve that this is filled up from, a slice at a time.
type tank struct{ fuel, reserve api.MutableGlobal }

// tankOf finds the globals of a metered module, nil if it is not one.
func tankOf(mod api.Module) *tank {
	fuel, ok1 := mod.ExportedGlobal(meter.FuelExport).(api.MutableGlobal)
	reserve, ok2 := mod.ExportedGlobal(meter.ReserveExport).(api.MutableGlobal)
	if !ok1 || !ok2 {
		return nil
	}
	return &tank{fuel, reserve}
}

func (t *tank) fill(budget uint64) {
	slice := min(budget, meter.Slice)
	t.fuel.Set(slice)
	t.reserve.Set(budget - slice)
}

// left is below zero when a call took more than there was.
func (t *tank) left() int64 { return int64(t.fuel.Get()) + int64(t.reserve.Get()) }

// pay makes a host function that touched so many bytes cost fuel; false when there is none left.
func (t *tank) pay(bytes uint32) bool {
	left := meter.Charge(int64(t.fuel.Get()), bytes)
	if reserve := int64(t.reserve.Get()); left < 0 && reserve > 0 {
		more := min(meter.Slice-left, reserve)
		left += more
		t.reserve.Set(uint64(reserve - more))
	}
	t.fuel.Set(uint64(left))
	return left >= 0
}
