// Command external-eviction is an eviction policy in a process of its own: least recently used. Copy it to begin with a
// policy of your own; docs/external-plugins.md tells how to build, check and load it.
//
// Configuration: {"log_every": N} writes a line for every N questions; 0, the default, writes none.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/plugins/sdk/external"
)

type config struct {
	LogEvery int `json:"log_every"`
}

func main() {
	about := external.About{Name: "external-lru", Version: "1.0.0"}
	err := external.ServePolicy(about, func(c external.Config) (func(eviction.Spec) (*lru, error), error) {
		var conf config
		if err := c.Decode(&conf); err != nil {
			return nil, err
		}
		if conf.LogEvery < 0 {
			return nil, errors.New("log_every: must not be negative")
		}
		return func(s eviction.Spec) (*lru, error) {
			if err := s.Validate(); err != nil {
				return nil, err
			}
			return &lru{spec: s, log: c.Log, logEvery: conf.LogEvery}, nil
		}, nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
