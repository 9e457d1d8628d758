package transport

import (
	"testing"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Harness{Access: true, New: func(t testing.TB) transports.Transport {
		tr, _ := newTransport(t)
		return tr
	}})
}
