// Package eviction is the contract between the store and the policies that choose what it throws away.
//
// A policy gives advice: it is told what happens as [Event] records and, when room is needed, it names
// victims. The store checks lease, pin and use under its own locks at the moment of removal, so bad advice
// costs hits, never correctness. Built-in policies, WebAssembly guests and the replay simulator all go
// through this interface and decide alike.
//
// # Domains and handles
//
// A domain is one tenant with a policy of its own, or "*" for all others. There is exactly one [Policy]
// instance per domain, whatever the number of lock shards in the store, and one goroutine calls it: no
// method is ever called concurrently. A policy never sees keys. The host gives each resident object a dense
// [Handle] in 1..Spec.MaxHandles, so that a policy keeps flat arrays instead of maps. A handle is used again
// only after the instance has applied its REMOVE.
//
// # What the host promises
//
//   - All earlier events are delivered before each question for victims.
//   - NowMS never decreases. A policy has no other clock and no other source of chance than Spec.Seed, so it
//     is a pure function of its Spec and its calls: a decision can be replayed.
//   - The events of one batch call are contiguous, deepest block first ("tail first"): a child may name a
//     parent whose INSERT comes later in the batch, or never. Applied in that order, plain LRU throws away
//     the end of a chain before its beginning. Single-key calls have Parent 0 and Depth 0.
//   - A victim that is taken comes back as REMOVE with [CodeEvicted], one that is not as REJECT.
//   - REMOVE, REJECT, MOVED, PIN and UNPIN repeat the object's KeyHash, Tenant and Segment, and all but PIN and
//     UNPIN its Size. No handle is inserted twice without a REMOVE in between.
//   - UNPIN is sent when a pin ends, by call or by deadline.
//   - GHOST is sent for a key that is not resident when it is asked for, and before the question for victims
//     which the put of such a key causes, so that a policy with a memory of evicted keys (ARC) knows what the
//     room is for.
//   - Events for one handle may be missing (ACCESS and PROBE are dropped first when the ring is full), never
//     INSERT, RESTORE, REMOVE. An ACCESS, PROBE, PIN, UNPIN, MOVED or REJECT may arrive after the REMOVE.
//
// # What a policy promises
//
//   - Victims names only handles that are resident by the events so far, each once, best victim first; none
//     with a hard pin; soft pins only with [NeedSoftPins] and after the others; with Need.Segment or Need.Tenant
//     only handles that are there. It may name fewer than asked, or none: the host then helps itself.
//   - Victims changes nothing that can be observed: asking twice gives the same answer, and asking or not
//     asking makes no difference to later answers.
//   - After REJECT a handle is named again only behind the handles that were not refused, until an event
//     names it or the policy's own order brings it round again.
//   - Memory is bounded by Spec.MaxHandles; no Go pointer per key; no allocation in Apply and Victims once
//     warm.
//   - RESTORE of all resident handles, oldest first, into a new instance is a usable start (exact for LRU).
//   - Events with a Kind or Flags bits that the policy does not know are ignored. A handle outside
//     1..MaxHandles is an error that wraps [ErrBadEvent].
//
// An error from Apply or Victims is a fault: the host discards the instance, serves from its own tail-first
// LRU and builds a new one. The checks of all this are package conformance;
// package evictiontest runs them from a Go test.
package eviction

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mooncake-agent/mooncake/core/module"
)

// Kind is the registry of policies. It holds factories because capacity, handles and seed are known only
// at run time. Building a factory checks the configuration (and compiles a guest); it makes no instance.
var Kind = module.NewKind[Factory]("eviction policy")

// ErrBadEvent is wrapped by the error for an event that the contract does not allow.
var ErrBadEvent = errors.New("bad event")

// Handle names a resident object within one domain. 0 is no object.
type Handle uint32

// Factory makes policy instances of one configuration. It may be called from any goroutine.
type Factory interface {
	New(s Spec) (Policy, error)
}

// FactoryFunc lets a function be a [Factory].
type FactoryFunc func(Spec) (Policy, error)

// New calls f.
func (f FactoryFunc) New(s Spec) (Policy, error) { return f(s) }

// Spec is what an instance has to know before its first event.
type Spec struct {
	// Capacity is the room of the domain in bytes. It may change later with RESIZE.
	Capacity uint64
	// MaxHandles is the largest handle that will ever be used. When the host needs more it makes a new
	// instance and fills it with RESTORE.
	MaxHandles uint32
	// BlockTokens is the number of tokens in a full block, 0 if unknown. A hint.
	BlockTokens uint32
	// Seed is the only source of chance.
	Seed uint64
	// Tenant is the domain's tenant, or AnyTenant.
	Tenant uint32
	// BatchMax is the largest number of events in one Apply, 0 if not limited.
	BatchMax uint32
}

// AnyTenant in Spec and Need stands for all tenants of the domain.
const AnyTenant = ^uint32(0)

// Validate reports a Spec that no policy can work with.
func (s Spec) Validate() error {
	if s.MaxHandles == 0 || s.MaxHandles > 1<<31 {
		return fmt.Errorf("eviction: max_handles %d is outside 1..%d", s.MaxHandles, uint32(1)<<31)
	}
	if s.Capacity == 0 {
		return errors.New("eviction: capacity is 0 bytes")
	}
	return nil
}

// Policy ranks the objects of one domain. See the package comment for states and duties. Calls come from
// one goroutine at a time.
type Policy interface {
	// Apply tells what happened, oldest first. The slice is the caller's: it must not be kept.
	Apply(events []Event) error
	// Victims appends at most need.Max handles to dst, best victim first, and returns dst. It may stop
	// once the named objects add up to need.Bytes.
	Victims(dst []Handle, need Need) ([]Handle, error)
	// Close frees what the garbage collector does not. No call follows it.
	Close() error
}

// Need is the question for victims.
type Need struct {
	// Bytes that are missing, 0 if the number of handles is what counts.
	Bytes uint64
	// Max is the greatest number of handles to name, at least 1.
	Max int
	// Tenant limits the answer to one tenant, unless it is AnyTenant.
	Tenant uint32
	// Segment limits the answer to objects with a replica on that segment; 0 is any.
	Segment uint32
	Flags   NeedFlags
}

// NeedFlags modify a [Need].
type NeedFlags uint32

const (
	// NeedSoftPins allows soft-pinned objects, named after all others.
	NeedSoftPins NeedFlags = 1
	// NeedEmergency says that a put will fail if the answer is empty.
	NeedEmergency NeedFlags = 2
)

// Admitter is an optional ability: advice on whether a block is worth storing at all. The host asks only
// when the put would need an eviction and the domain's config has admission on; a late answer means yes.
type Admitter interface {
	// Admit sets refuse[i] for each would-be INSERT events[i] that should not be stored. Both slices have
	// the same length and refuse comes all false. Like Victims it changes nothing.
	Admit(events []Event, refuse []bool) error
}

// StateSaver is an optional ability: learned state that outlives the instance. It holds no handles.
type StateSaver interface {
	// Save appends at most MaxState bytes to dst.
	Save(dst []byte) ([]byte, error)
	// Load takes the state of an earlier instance, after RESTORE and before other events. Every state is
	// offered at a swap, those of other policies too: taken is false for what is not one's own or is
	// damaged, and then the instance is as before. An error is a fault.
	Load(state []byte) (taken bool, err error)
}

// MaxState is the largest learned state in bytes.
const MaxState = 1 << 20

// Statser is an optional ability: what the policy thinks, as one flat JSON object for `policy status`.
type Statser interface {
	Stats() (json.RawMessage, error)
}

// MemoryUser is an optional ability: the bytes that the instance holds, ghosts and tables included.
type MemoryUser interface {
	MemoryBytes() uint64
}
