package all

import (
	"slices"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
)

// Each policy runs the suite in its own folder; here it only has to be linked.
func TestPoliciesAreRegistered(t *testing.T) {
	var got []string
	for _, info := range eviction.Kind.List() {
		got = append(got, info.Name)
	}
	want := []string{"adaptive", "arc", "clock", "fifo", "gdsf", "lfu", "lru", "lru-k", "random", "s3fifo", "sieve"}
	if !slices.Equal(got, want) {
		t.Errorf("registered: %v, want %v", got, want)
	}
}
