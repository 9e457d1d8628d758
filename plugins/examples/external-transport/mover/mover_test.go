package mover

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTransport(t testing.TB) transports.Transport {
	tr, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Harness{New: newTransport, Access: true})
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{}, {Connections: 1}, {Stall: time.Second}} {
		if tr, err := New(c); err == nil {
			t.Errorf("%+v: accepted: %v", c, tr)
		}
	}
}

// A peer that takes requests and never answers costs the stall time, and nothing hangs.
func TestSilentPeer(t *testing.T) {
	tr, err := New(Config{Connections: 1, Stall: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	f := transporttest.NewFabric()
	a, b := transporttest.StartNode(t, f, tr), transporttest.StartNode(t, f, newTransport(t))
	local, remote := a.Register(t, 4096, transports.ReadWrite), b.Register(t, 4096, transports.ReadWrite)
	far := b.T.(*Transport)
	far.regions.mu.Lock() // its connections wait for this before they answer
	defer far.regions.mu.Unlock()
	err = transporttest.Move(t, a.Dial(t, b), transports.Op{Local: local, Remote: remote.Addr(), Len: 4096})
	if !errors.Is(err, transports.ErrTimeout) {
		t.Errorf("got %v, want ErrTimeout", err)
	}
}

// Local memory that was not registered takes another path.
func TestUnregisteredLocal(t *testing.T) {
	f := transporttest.NewFabric()
	a, b := transporttest.StartNode(t, f, newTransport(t)), transporttest.StartNode(t, f, newTransport(t))
	remote := b.Register(t, 4096, transports.ReadWrite)
	local := transporttest.NewRegion(t, 4096, transports.ReadWrite)
	err := a.Dial(t, b).Submit(context.Background(), []transports.Op{{Local: local, Remote: remote.Addr(), Len: 4096}}, nil)
	if !errors.Is(err, transports.ErrNotShareable) {
		t.Errorf("got %v, want ErrNotShareable", err)
	}
}
