// Package meter rewrites a WebAssembly module so that it pays for what it does: code is added that counts
// down a global and traps when it falls below zero. The host's engine cannot interrupt compiled guest code,
// so a module must never be run without this.
//
// # Use
//
//	m, err := meter.Rewrite(module, meter.Options{
//		Validate: func(b []byte) error { ... },   // the engine's own check, core features V2 only
//		Budget:   meter.InitBudget,                // the global's initial value
//	})
//	// compile m.Code, never module
//	// instantiate without start functions, then:
//	fuel := instance.ExportedGlobal(meter.FuelExport).(api.MutableGlobal)   // an i64
//	reserve := instance.ExportedGlobal(meter.ReserveExport).(api.MutableGlobal)
//	fuel.Set(uint64(min(budget, meter.Slice)))                              // before each call
//	reserve.Set(uint64(budget - min(budget, meter.Slice)))
//	_, err = fn.Call(ctx, ...)
//	left := int64(fuel.Get()) + int64(reserve.Get())                        // used = budget - left
//	if err != nil && left < 0 { ... }                                       // out of fuel; discard the instance
//
// When the fuel falls below zero an added function fills it up from the reserve and grows memory by no page, which takes
// the engine out of compiled code: Go's scheduler and garbage collector, which cannot interrupt that, wait for
// [Slice] units and not for a whole call. Without a reserve, or if what is left in it is too little, the function traps. A single
// memory.fill, memory.copy or memory.init is not cut up: it takes as long as its budget has bytes.
//
// If m.Facts.Start is true the module had a start function: it is exported as [StartExport] instead and the
// host calls it, metered, before _initialize. Host functions charge in the host: read the fuel, subtract
// [HostCallCost] plus the bytes touched (see [Charge]), fill it up from the reserve when it is below zero, write it
// back, and panic (a trap for the guest) when it is still below zero.
//
// Rewrite is a pure function: the same bytes and options give the same result, on any machine. It may be
// called from many goroutines. It reads hostile bytes: time and memory are proportional to the module's
// length (Options.Limits.Module bounds that), and it does not panic.
//
// # Errors
//
// Every error is an [*Error], which names section, function, offset in the module and [Rule], or is wrapped
// in one (Validate's). errors.Is tells [ErrMalformed] (not a valid module), [ErrRefused] (valid WebAssembly,
// but a feature or name that is not allowed) and [ErrLimit] (larger than Options.Limits) apart.
//
// # What is charged
//
// A unit is one instruction; else and end are none.
//
//   - The entry of a function charges its instructions outside of loops and its declared locals (not its
//     parameters), once.
//   - Each loop header charges the instructions of the loop's body outside of inner loops; every branch to
//     the loop charges again. The loop instruction itself counts where it stands.
//   - memory.fill, memory.copy, memory.init, table.fill, table.copy and table.init charge their length, in
//     bytes or elements, before they run; memory.grow charges [PageCost] for each page asked for, even
//     when it fails.
//
// So a call is charged at least one unit for each instruction that runs, and both sides of an if. With a
// budget that equals the charge it ends with the global at 0; with one unit less it traps.
package meter
