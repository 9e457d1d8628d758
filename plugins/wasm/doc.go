// Package wasm runs eviction policies that third parties ship as WebAssembly modules. It registers itself in
// eviction.Kind as type "wasm":
//
//	"eviction": {"*": {"type": "wasm", "module": "/etc/mooncake/p.wasm", "sha256": "9f86..."}}
//
// Use it for a policy that is not part of this program; a built-in one is faster. What a guest exports and how
// it is called is the ABI of plugins/abi.
//
// # Config keys
//
//	module            the .wasm file
//	sha256            pin: what the file's SHA-256 must be
//	memory_limit      of the guest's linear memory; default 64 MiB and 64 bytes for each handle
//	max_module_bytes  larger files are refused; default 8 MiB
//	fuel_per_event    instructions for each event of a call, on top of 10,000 for a call, paid for 64 events at least; default 1,000
//	params            a flat JSON object for the guest
//	reserve           victims named ahead, so that no put waits for the guest; 0 is exact order; default: the master's
//	admission         on: the guest may refuse new objects when there is no room
//	cache_dir         for machine code; default mooncake/wasm in the user's cache folder
//
// # From a file to a policy
//
// [Open] reads the file (size, digest), and unless the machine code is in the cache already, a child process
// with limits on CPU time, memory and files validates the module as it came, checks imports and exports, rewrites
// it so that it pays for each instruction (package meter) and compiles it into the cache. The cache is a folder
// of mode 0700 that must belong to this user, because what lies in it is executed. Open then links the module;
// none of its code has run. `config check` does no more. Factory.New makes an instance: start function,
// _initialize, policy_init, buffers.
//
// # At run time
//
// One instance belongs to one domain and is used from one goroutine. Events are delivered in batches of
// 256, at the latest before the next question. Compiled code cannot be interrupted, so it is left every 20,000
// instructions for the garbage collector and others to go on. Every call runs on a budget of
// fuel, and memory, tables and stack have limits, so a call always ends. A guest has no clock and no chance but what it is given: it is a
// pure function of its events, here and in the simulator. The only import is env.log; WASI functions are inert
// stand-ins for toolchains that insist on them.
//
// Beside the guest the policy keeps a tail-first LRU order of its own. It checks each victim that the guest
// names (resident, named once, not pinned, of the tenant and segment asked for), adds what the guest leaves
// out, and serves alone while the guest is down. It costs 73 bytes for each object.
//
// A guest in score mode (policy_score instead of policy_events and policy_victims) gets no events. It scores the
// 48 tail-most objects of that order and 16 by chance; the best quarter is named, the window moves on.
//
// # Faults
//
// A trap, no fuel, a bad return or buffer, or 100 victims in ten minutes that were not resident or named twice:
// the instance is discarded, and a new one starts one second of now_ms later, filled by RESTORE; after a second
// fault four seconds later. The third within ten minutes puts the guest into quarantine until the policy is set
// again. While it is filled for the first time a policy returns its faults, so that a swap to it fails. See
// eviction.Supervised, which also has the counters.
package wasm
