// Package transporttest is the conformance suite of transports under go test. A transport passes it with
//
//	transporttest.Run(t, transporttest.Harness{New: func(t testing.TB) transports.Transport { ... }})
//
// The checks themselves, and what a transport's own tests need besides them, are in package conformance, which needs
// no testing package.
package transporttest

import (
	"testing"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/conformance"
)

// What tests of transports use.
type (
	// Fabric connects the hosts of one test.
	Fabric = conformance.Fabric
	// Host is an in-memory transports.Host.
	Host = conformance.Host
	// Node is a started transport with its host.
	Node = conformance.Node
	// Recorder collects completions and notices when one comes twice or was never asked for.
	Recorder = conformance.Recorder
	// Region is memory for tests.
	Region = conformance.Region
	// Result is one completion.
	Result = conformance.Result
)

// Harness describes the transport under test: conformance.Harness with a New that takes a testing.TB.
type Harness struct {
	New     func(t testing.TB) transports.Transport
	Largest int
	Access  bool
	Keyed   bool
}

// Run checks every property, each on fresh transports, and that none leaves goroutines or file
// descriptors behind.
func Run(t *testing.T, h Harness) {
	inner := conformance.Harness{
		// Every T here is the *testing.T of a check.
		New:     func(t conformance.T) transports.Transport { return h.New(t.(testing.TB)) },
		Largest: h.Largest, Access: h.Access, Keyed: h.Keyed,
	}
	for _, c := range conformance.Checks() {
		t.Run(c.Name, func(t *testing.T) { c.Run(t, inner) })
	}
}

// NewFabric returns an empty fabric.
func NewFabric() *Fabric { return conformance.NewFabric() }

// StartNode starts tr on a new host of f. It is closed when the test ends, if it was not before.
func StartNode(t testing.TB, f *Fabric, tr transports.Transport) *Node {
	t.Helper()
	return conformance.StartNode(t, f, tr)
}

// NewRegion maps n bytes (at least 1), filled with zeros, until the test ends.
func NewRegion(t testing.TB, n int, access transports.Access) *Region {
	t.Helper()
	return conformance.NewRegion(t, n, access)
}

// NewRecorder returns an empty recorder.
func NewRecorder(t testing.TB) *Recorder { return conformance.NewRecorder(t) }

// Move runs ops to their end and returns the first error: Submit's or an op's.
func Move(t testing.TB, p transports.Peer, ops ...transports.Op) error {
	t.Helper()
	return conformance.Move(t, p, ops...)
}

// Fill writes the pattern of upstream's probes.
func Fill(b []byte, seed int) { conformance.Fill(b, seed) }

// CheckFill fails the test at the first byte that differs from Fill's.
func CheckFill(t testing.TB, what string, b []byte, seed int) {
	t.Helper()
	conformance.CheckFill(t, what, b, seed)
}

// Set sets every byte to v.
func Set(b []byte, v byte) { conformance.Set(b, v) }

// CheckAll fails the test at the first byte that is not v.
func CheckAll(t testing.TB, what string, b []byte, v byte) {
	t.Helper()
	conformance.CheckAll(t, what, b, v)
}
