// Package evictiontest is the conformance suite of eviction policies under go test. Every policy runs it,
// built-in, guest or external alike:
//
//	func TestSuite(t *testing.T) { evictiontest.Run(t, factory, evictiontest.Options{}) }
//
// The checks themselves are in package conformance, which needs no testing package.
package evictiontest

import (
	"runtime"
	"runtime/metrics"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/conformance"
	"pgregory.net/rapid"
)

// Options adapt the suite to what a policy promises beyond the contract.
type Options = conformance.Options

// Host is a small store that checks every answer.
type Host = conformance.Host

// NewHost makes a policy of f and an empty store around it.
func NewHost(t conformance.T, f eviction.Factory, spec eviction.Spec) *Host {
	t.Helper()
	return conformance.NewHost(t, f, spec)
}

// Any is the question for max handles without further conditions.
func Any(max int) eviction.Need { return conformance.Any(max) }

// Run checks the policies that f makes against the contract of package eviction.
func Run(t *testing.T, f eviction.Factory, o Options) {
	t.Run("model", func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { model(t, f) }) })
	for _, c := range conformance.Checks() {
		t.Run(c.Name, func(t *testing.T) { c.Run(t, f, o) })
	}
	if !o.Foreign {
		t.Run("no pointers per key", func(t *testing.T) { pointers(t, f) })
		t.Run("no allocations", func(t *testing.T) { allocations(t, f) })
	}
}

func model(t *rapid.T, f eviction.Factory) {
	m := conformance.NewModel(t, f)
	defer m.Close(t)
	actions := map[string]func(*rapid.T){}
	for name, act := range m.Actions() {
		actions[name] = func(t *rapid.T) {
			if !act(func(lo, hi uint64, label string) uint64 { return rapid.Uint64Range(lo, hi).Draw(t, label) }) {
				t.Skip("not now")
			}
		}
	}
	t.Repeat(actions)
}

func scannable() uint64 {
	runtime.GC()
	s := []metrics.Sample{{Name: "/gc/scan/heap:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

func pointers(t *testing.T, f eviction.Factory) {
	const n = 100_000
	before := scannable()
	p := conformance.Filled(t, f, n)
	after := scannable()
	runtime.KeepAlive(p)
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if after > before+n {
		t.Errorf("%d handles add %d bytes that the garbage collector scans", n, after-before)
	}
}

func allocations(t *testing.T, f eviction.Factory) {
	p := conformance.Filled(t, f, 1000)
	defer p.Close()
	c := conformance.Churn{T: t, P: p, N: 1000, Next: 3000}
	for range 5000 { // grow whatever grows to its final size
		c.Step()
	}
	if got := testing.AllocsPerRun(2000, c.Step); got != 0 {
		t.Errorf("%v allocations per insert, touch and evict", got)
	}
}
