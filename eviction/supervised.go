package eviction

import "time"

// Supervised is an optional ability of policies that run code from outside, such as WebAssembly guests, and
// that deal with its faults themselves: they discard the failed instance, answer from an order of their own
// and start the code again later.
//
// Such a policy returns an error from New, and from Apply and Load until the first event that is not RESTORE,
// so that a swap to code that does not work fails and the old policy stays. Afterwards Apply and Victims
// return no error but for an event that the contract does not allow: what went wrong is told here.
type Supervised interface {
	// Supervision returns a copy. Like every method it is not called concurrently.
	Supervision() Supervision
}

// GuestState is what has become of the code from outside.
type GuestState string

// The states of a guest.
const (
	// GuestRunning: it is asked.
	GuestRunning GuestState = "running"
	// GuestWaiting: it failed; the host's own order serves until it is started again.
	GuestWaiting GuestState = "waiting"
	// GuestQuarantined: it failed too often; it stays off until an operator sets the policy anew.
	GuestQuarantined GuestState = "quarantined"
)

// Supervision is the state of a supervised policy and what it has counted since it was made. The maps are the
// caller's.
type Supervision struct {
	Module      string // file name of the code
	SHA256      string // of the code, in hex
	State       GuestState
	Fault       string            // the last fault, "" if there was none
	FaultMS     uint64            // when, in NowMS terms
	RetryMS     uint64            // when it is started again while it waits
	Faults      map[string]uint64 // by kind; every kind is there, 0 if it never happened
	Instances   uint64            // instances started
	Events      uint64            // events delivered
	Batches     uint64            // calls that delivered them
	Questions   uint64            // questions for victims
	Nanos       uint64            // time in calls of the guest
	EventNanos  uint64            // the part of Nanos spent on events
	Fuel        uint64            // units of work charged
	EventFuel   uint64            // the part of Fuel spent on events
	Fallbacks   uint64            // victims that the host's own order named
	Strikes     map[string]uint64 // victims that were not resident or were named twice, by "unknown", "duplicate"
	Protected   uint64            // victims that were pinned or not of what was asked for: refused
	MemoryBytes uint64            // see MemoryUser
}

// Busy is the time spent in calls of the guest.
func (s *Supervision) Busy() time.Duration { return time.Duration(s.Nanos) }

// Grower is an optional ability: the policy makes room for larger handles itself and keeps what it knows.
// Without it the host makes a new instance and fills it with RESTORE.
type Grower interface {
	// Grow raises Spec.MaxHandles. It is called between events.
	Grow(maxHandles uint32) error
}

// Settings are what the configuration of one domain says to the host rather than to the policy.
type Settings struct {
	// Reserve is the number of victims named ahead, so that no allocation waits for the policy; 0 asks for
	// each eviction, which gives the exact order. Negative: the host's default.
	Reserve int
	// Admission lets the policy refuse new objects when there is no room, see Admitter.
	Admission bool
	// Aside is set by policies that run code from outside: with a reserve they are called from a goroutine of their own,
	// so that nobody waits for them; see package aside.
	Aside bool
}

// DomainConfig is an optional ability of a Factory.
type DomainConfig interface {
	DomainSettings() Settings
}
