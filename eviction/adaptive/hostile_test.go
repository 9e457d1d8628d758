package adaptive_test

import (
	"fmt"
	"testing"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	_ "github.com/mooncake-agent/mooncake/eviction/adaptive"
	_ "github.com/mooncake-agent/mooncake/eviction/lru"
	"github.com/mooncake-agent/mooncake/eviction/replay"
)

// TestTrafficThatTurns replays traces on which earlier versions lost more than the 0.3 points that are promised: the
// index wins for a while, and then most of what it has given up early is asked for.
func TestTrafficThatTurns(t *testing.T) {
	for _, c := range []struct {
		family   string
		seed     uint64
		accesses int
		blocks   uint64
	}{
		{"changes", 5051, 71_526, 2962},
		{"changes", 5030, 35_505, 935},
		{"changes", 7052, 43_210, 788},
		{"alternate", 7003, 44_352, 711}, // the first block of a chain went before its last
		{"mixed", 9052, 30_431, 34},      // as lru, but for partial blocks, which went last
		{"changes", 8018, 72_817, 2317},  // what the sample had forgotten was kept
	} {
		t.Run(fmt.Sprintf("%s %d", c.family, c.seed), func(t *testing.T) {
			t.Parallel()
			tr, err := replay.Generate(c.family, c.seed, c.accesses)
			if err != nil {
				t.Fatal(err)
			}
			hit := map[string]float64{}
			for _, name := range []string{"lru", "adaptive"} {
				f, err := eviction.Kind.Build(t.Context(), name, module.Env{}, module.NoConfig{})
				if err != nil {
					t.Fatal(err)
				}
				r, err := replay.Run(tr, f, c.blocks, replay.Options{})
				if err != nil {
					t.Fatal(err)
				}
				hit[name] = r.PrefixHit()
			}
			if hit["adaptive"] < hit["lru"]-0.003 {
				t.Errorf("prefix hit %.2f %%, lru %.2f %%", 100*hit["adaptive"], 100*hit["lru"])
			}
		})
	}
}
