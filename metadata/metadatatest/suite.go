// Package metadatatest is the conformance suite of metadata backends under go test. An implementation's test calls
// [Run]. The checks themselves are in package conformance, which needs no testing package.
package metadatatest

import (
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/conformance"
)

// Declared says which abilities a backend claims besides the four basic calls.
type Declared = conformance.Declared

// Service is a running metadata service as the suite sees it: conformance.Service with hooks that take a testing.TB.
type Service struct {
	Open          func(t testing.TB) metadata.Backend
	Timeout       time.Duration
	MaxValue      int
	TrimsKeys     bool
	Stop, Start   func(t testing.TB)
	Keeps         bool
	Pause, Resume func(t testing.TB)
	Wipe          func(t testing.TB)
}

// Run checks every property of the contract. start is called once; what it starts belongs to t.
// The leak check at the end expects that the caller's test does not run in parallel with others.
func Run(t *testing.T, start func(t testing.TB) Service, want Declared) {
	s := start(t)
	svc := conformance.Service{
		Open:    func(t conformance.T) metadata.Backend { return s.Open(t.(testing.TB)) },
		Timeout: s.Timeout, MaxValue: s.MaxValue, TrimsKeys: s.TrimsKeys, Keeps: s.Keeps,
		Stop: hook(s.Stop), Start: hook(s.Start), Pause: hook(s.Pause), Resume: hook(s.Resume), Wipe: hook(s.Wipe),
	}
	for _, c := range conformance.Checks(svc, want) {
		t.Run(c.Name, func(t *testing.T) { c.Run(t) })
	}
}

// hook gives f the T of the check, which is a testing.TB since [Run] hands in nothing else.
func hook(f func(testing.TB)) func(conformance.T) {
	if f == nil {
		return nil
	}
	return func(t conformance.T) { f(t.(testing.TB)) }
}
