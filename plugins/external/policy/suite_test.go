package policy

import (
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/evictiontest"
)

func TestSuite(t *testing.T) {
	evictiontest.Run(t, factory(t, configOf(t, example)), evictiontest.Options{Foreign: true, ExactRestore: true})
}

// What the plugin announces is what the policy can do, and no more.
func TestAbilitiesAreThoseAnnounced(t *testing.T) {
	for pkg, stats := range map[string]bool{example: true, faulty: false} {
		p, err := factory(t, configOf(t, pkg)).New(eviction.Spec{Capacity: 1, MaxHandles: 1, Tenant: eviction.AnyTenant})
		if err != nil {
			t.Fatal(err)
		}
		defer closed(t, p)
		if _, ok := p.(eviction.Statser); ok != stats {
			t.Errorf("%s: statistics %v, want %v", pkg, ok, stats)
		}
		if _, ok := p.(eviction.Admitter); ok {
			t.Errorf("%s: can refuse admission", pkg)
		}
		if _, ok := p.(eviction.StateSaver); ok {
			t.Errorf("%s: can save state", pkg)
		}
	}
}
