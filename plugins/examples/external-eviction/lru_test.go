package main

import (
	"log/slog"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/evictiontest"
)

func TestSuite(t *testing.T) {
	evictiontest.Run(t, eviction.FactoryFunc(func(s eviction.Spec) (eviction.Policy, error) {
		if err := s.Validate(); err != nil {
			return nil, err
		}
		return &lru{spec: s, log: slog.New(slog.DiscardHandler)}, nil
	}), evictiontest.Options{ExactRestore: true, Foreign: true})
}
