package client_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// elected is a Leader that a test changes.
type elected struct{ addr atomic.Value }

var errNobody = errors.New("nobody leads")

func (e *elected) Leader(context.Context) (string, error) {
	a, _ := e.addr.Load().(string)
	if a == "" {
		return "", errNobody
	}
	return a, nil
}

// A client and a node follow from master to master; one that is silent, as a host that is gone, does not hold them.
func TestFollowsTheLeader(t *testing.T) {
	e := &elected{}
	use := func(o *client.Options) {
		o.Master, o.Leader = nil, e
		o.Heartbeat = 50 * time.Millisecond
	}
	n := prepareNode(t, "", 8*mib, use)
	c := newClient(t, "", use)
	if _, err := c.Exists(deadline(t), "k"); !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, errNobody) {
		t.Errorf("without a leader: %v", err)
	}
	first := startMaster(t)
	e.addr.Store(first.Addr)
	n.lend(t, "")
	if err := c.Put(deadline(t), "k", value("k", mib)); err != nil {
		t.Fatal(err)
	}
	check(t, c, "k", mib)
	if c.Master() != first.Addr {
		t.Errorf("the master in use is %s", c.Master())
	}

	// The leader stands still with calls in it, another one is elected: the calls go there.
	first.Freeze()
	asked := make(chan error, 1)
	go func() { _, err := c.Exists(deadline(t), "k"); asked <- err }()
	second := startMaster(t)
	e.addr.Store(second.Addr)
	testenv.Eventually(t, soon, func() error { return c.Put(deadline(t), "k2", value("k2", mib)) })
	if err := <-asked; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	check(t, c, "k2", mib)
	if there, err := c.Exists(deadline(t), "k"); err != nil || there {
		t.Errorf("the second master knows k: %v %v", there, err)
	}
	first.Kill()
}

// The election names an address where nothing listens.
func TestLeaderRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	e := &elected{}
	e.addr.Store(l.Addr().String())
	c := newClient(t, "", func(o *client.Options) { o.Master, o.Leader = nil, e })
	if _, err := c.Exists(deadline(t), "k"); !errors.Is(err, client.ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

func TestLeaderOrMaster(t *testing.T) {
	for _, o := range []client.Options{
		{Config: client.DefaultConfig()},
		{Config: client.DefaultConfig(), Master: []string{"h:1"}, Leader: &elected{}},
	} {
		if c, err := client.New(o); err == nil {
			c.Close(t.Context())
			t.Errorf("%+v: accepted", o)
		}
	}
}
