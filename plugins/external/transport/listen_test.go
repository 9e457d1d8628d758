package transport

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/plugins/examples/external-transport/mover"
	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	sdk "github.com/mooncake-agent/mooncake/plugins/sdk/external/transport"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

// listening is a mover that also takes the node's listener, and greets whoever connects.
type listening struct {
	*mover.Transport
	host string
	ln   net.Listener
	over chan struct{}
}

func (l *listening) Start(ctx context.Context, h transports.Host) (err error) {
	if l.ln, err = h.Listen(ctx, units.PortRange{}); err != nil {
		return err
	}
	l.host, l.over = h.Identity().Host, make(chan struct{})
	go func() {
		defer close(l.over)
		for {
			c, err := l.ln.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("hello"))
			c.Close()
		}
	}()
	return l.Transport.Start(ctx, h)
}

func (l *listening) Describe(d *transports.Descriptor) {
	l.Transport.Describe(d)
	d.Agent.Paths[0].Host, d.Agent.Paths[0].Port = l.host, l.ln.Addr().(*net.TCPAddr).Port
}

func (l *listening) Close() error {
	l.ln.Close()
	<-l.over
	return l.Transport.Close()
}

// The node's listener is handed to each process of the plugin, and its port stays.
func TestListener(t *testing.T) {
	n := newNear(t, func() plug {
		m, err := mover.New(mover.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		s := sdk.NewServer(sdk.Options{Listen: true})
		s.Serve(&listening{Transport: m})
		return s
	})
	node := transporttest.StartNode(t, transporttest.NewFabric(), New("external", slog.New(slog.DiscardHandler), n, 5*time.Second))
	greet := func() int {
		t.Helper()
		p := node.Descriptor().Agent.Paths[0]
		c, err := net.DialTimeout("tcp", net.JoinHostPort(p.Host, strconv.Itoa(p.Port)), 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(30 * time.Second))
		b := make([]byte, 16)
		if k, err := c.Read(b); err != nil || string(b[:k]) != "hello" {
			t.Fatalf("%q, %v", b[:k], err)
		}
		return p.Port
	}
	first := greet()
	n.process().Fault(errors.New("test"))
	n.ready(t, node.T.(*Transport), 2)
	if again := greet(); again != first {
		t.Errorf("port %d before, %d after the restart", first, again)
	}
}

// FuzzPath: whatever a plugin says of its path, what is accepted can be published and read back.
func FuzzPath(f *testing.F) {
	for _, p := range []*pluginv1.Path{{}, {Type: "mover", Host: "::1", Port: 7, Attributes: map[string]string{"socket": "@x", "": "é"}}, {Type: "\n"}} {
		b, err := proto.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var q pluginv1.Path
		if proto.Unmarshal(b, &q) != nil {
			return
		}
		p, err := parsePath(&q)
		if err != nil {
			return
		}
		d := &transports.Descriptor{Name: "n", Protocol: "tcp", TCPProtoVersion: 1, Agent: &transports.AgentExt{V: 1, Instance: "i", Paths: []transports.Path{p}}}
		back, err := transports.ParseDescriptor(d.Encode(time.Now()))
		if err != nil || back.Agent == nil || len(back.Agent.Paths) != 1 {
			t.Fatalf("%+v was published as %s: %v", p, d.Encode(time.Now()), err)
		}
		own, read := ownPath{Path: p}, ownPath{Path: back.Agent.Paths[0]}
		if !own.equal(&read) {
			t.Fatalf("published %+v, read %+v", p, back.Agent.Paths[0])
		}
	})
}
