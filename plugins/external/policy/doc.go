// Package policy runs eviction policies that are programs of their own, in any language with gRPC. It registers itself in
// eviction.Kind as type "external":
//
//	"eviction": {"*": {"type": "external", "command": ["/opt/p/lru"], "sha256": {"/opt/p/lru": "9f86..."}}}
//
// Use it for a policy that a WebAssembly module cannot be: one with a runtime, a model or a service behind it. A call costs
// about 100 µs, so events go in batches of up to 4,096 and victims are named ahead of need (key reserve).
//
// # Config keys
//
// Those of package external, and
//
//	reserve    victims named ahead; 0 is exact order; default: the master's
//	admission  on: the policy may refuse new objects when there is no room
//
// # At run time
//
// Each instance has a process of its own. Events are delivered in batches, at the latest before the next question. Beside
// the process the policy keeps a tail-first LRU order (package hostorder) as policies in WebAssembly do: it
// checks each victim that the process names, adds what it leaves out, and serves alone while the process is down.
//
// # Faults
//
// A process that ends, does not answer within call_timeout, answers what the protocol does not allow, or names 100
// victims in ten minutes that were not resident or named twice, is replaced by the supervisor, with its pauses and its
// breaker (package external). The next process is filled by RESTORE when the first call after its start comes. While a
// policy is filled for the first time it returns its faults, so that a swap to it fails. See eviction.Supervised, which
// also has the counters.
package policy
