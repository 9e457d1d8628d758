// Package conformance holds what every implementation of transports.Transport must do, checked through the interface
// only, and what a transport's own tests need: a Host in memory, regions of real mapped memory, a recorder of
// completions. It needs nothing of package testing: `go test` runs the checks through package transporttest,
// `mooncake plugin check` through [conform.Run].
package conformance

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/internal/conform"
	"github.com/mooncake-agent/mooncake/transports"
)

// T is told what is wrong.
type T = conform.T

// Harness describes the transport under test.
type Harness struct {
	// New returns a transport that is not started. The suite starts and closes it.
	New func(t T) transports.Transport
	// Largest is the size of the largest op; 0 = 64 MiB + 3.
	Largest int
	// Access tells that the transport enforces a region's Access.
	Access bool
	// Keyed tells that memory is reached with keys from the descriptor and checked by hardware: a region registered
	// again is reached after a new Dial only, and adjacent regions are one range, since each piece has its own key.
	Keyed bool
}

// Check is one thing that every transport must do.
type Check struct {
	Name string
	Run  func(t T, h Harness)
}

// Checks are the properties of the contract. Each takes fresh transports, and sees that they leave no goroutine and no
// file descriptor behind; so nothing else in the process may start any meanwhile.
func Checks() []Check {
	checks := []Check{
		{"sizes", testSizes},
		{"zero length", testZeroLength},
		{"unaligned", testUnaligned},
		{"scatter", testScatter},
		{"many outstanding", testManyOutstanding},
		{"concurrent submitters and peers", testConcurrent},
		{"both directions at once", testBothWays},
		{"own segment", testOwnSegment},
		{"bad remote address", testBadRemote},
		{"adjacent regions are not merged", testAdjacent},
		{"bad local range", testBadLocal},
		{"access", testAccess},
		{"reach", testReach},
		{"describe", testDescribe},
		{"registered before start", testRegisterBeforeStart},
		{"registered again", testRegisterAgain},
		{"remote region unregistered in flight", testUnregisterRemote},
		{"local region unregistered in flight", testUnregisterLocal},
		{"context ended before", testCancelBefore},
		{"context ends in flight", testCancelInFlight},
		{"cancel leaves others alone", testCancelOthers},
		{"peer closed in flight", testClosePeer},
		{"transport closed in flight", testCloseTransport},
		{"remote dies in flight", testRemoteDies},
		{"remote is gone", testRemoteGone},
		{"dead peer does not slow others", testDeadAmongHealthy},
		{"after close", testAfterClose},
	}
	for i, c := range checks {
		checks[i].Run = func(t T, h Harness) {
			if h.Largest == 0 {
				h.Largest = 64<<20 + 3
			}
			leavesNothing(t)
			c.Run(t, h)
		}
	}
	return checks
}

// leavesNothing compares what is open now with what is open after all other cleanups of t.
func leavesNothing(t T) {
	ignore := goleak.IgnoreCurrent()
	before := openFiles(t)
	t.Cleanup(func() {
		if err := goleak.Find(ignore); err != nil {
			t.Errorf("goroutines left: %v", err)
		}
		waitFor(t, 5*time.Second, func() string {
			if now := openFiles(t); now > before {
				return fmt.Sprintf("%d file descriptors before, %d after", before, now)
			}
			return ""
		})
	})
}

func openFiles(t T) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(l)
}

// pair is an initiator and a target.
type pair struct {
	a, b *Node
	peer transports.Peer
}

func newPair(t T, h Harness) pair {
	t.Helper()
	f := NewFabric()
	b := StartNode(t, f, h.New(t))
	a := StartNode(t, f, h.New(t))
	return pair{a: a, b: b}
}

// dial is to be called after the regions of the target were registered.
func (p *pair) dial(t T) transports.Peer {
	t.Helper()
	p.peer = p.a.Dial(t, p.b)
	return p.peer
}

func op(write bool, local transports.Region, off, remote uint64, n int, cookie int) transports.Op {
	return transports.Op{Write: write, Local: local, Offset: off, Remote: remote, Len: uint64(n), Cookie: uint64(cookie)}
}
