package replay_test

import (
	"context"
	"fmt"
	"log"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	_ "github.com/mooncake-agent/mooncake/eviction/all"
	"github.com/mooncake-agent/mooncake/eviction/replay"
)

// One policy at one size, and how far it is from the optimum.
func ExampleRun() {
	trace, err := replay.Open("testdata/synthetic.trace")
	if err != nil {
		log.Fatal(err)
	}
	lru, err := eviction.Kind.Build(context.Background(), "lru", module.Env{}, module.NoConfig{})
	if err != nil {
		log.Fatal(err)
	}
	r, err := replay.Run(trace, lru, 5000, replay.Options{})
	if err != nil {
		log.Fatal(err)
	}
	best := replay.Min(trace, 5000, replay.Options{})
	fmt.Printf("lru %.2f %%, min %.2f %%\n", 100*r.PrefixHit(), 100*best.PrefixHit())
	// Output: lru 27.93 %, min 52.62 %
}

// A grid of policies and sizes, and a claim about it.
func ExampleSweep() {
	trace, err := replay.Generate("chat", 1, 20_000)
	if err != nil {
		log.Fatal(err)
	}
	s := replay.Sweep{Trace: trace}
	for _, name := range []string{"lru", "fifo"} {
		f, err := eviction.Kind.Build(context.Background(), name, module.Env{}, module.NoConfig{})
		if err != nil {
			log.Fatal(err)
		}
		s.Policies = append(s.Policies, replay.Candidate{Name: name, Factory: f})
	}
	if s.Sizes, err = replay.ParseCapacities("2%,10%", trace, 0); err != nil {
		log.Fatal(err)
	}
	rows, err := s.Run(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	claim, err := replay.ParseAssertion("prefix(lru,2%) > prefix(fifo,2%)")
	if err != nil {
		log.Fatal(err)
	}
	ok, _, err := claim.Check(rows)
	fmt.Println(len(rows), "rows,", ok, err)
	// Output: 8 rows, true <nil>
}
