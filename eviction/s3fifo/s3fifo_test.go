package s3fifo

import (
	"testing"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/evictiontest"
)

func TestSuite(t *testing.T) {
	f, err := eviction.Kind.Build(t.Context(), "s3fifo", module.Env{}, module.NoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	evictiontest.Run(t, f, evictiontest.Options{BytesPerKey: 24})
}
