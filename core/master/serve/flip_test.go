package serve

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// read asks for an object as version v does and reports whether the answer has that version's form.
func read(t testing.TB, p *peer, v wire.Version) bool {
	t.Helper()
	l, _ := wire.GetReplicaList.Layout(v)
	got := form(p.call(frame(wire.GetReplicaList.ID(), zeroRequest(t, wire.GetReplicaList.ID(), v, true))))
	return strings.Contains(got, "type "+hexCode(l.ResponseCode)+" ")
}

func hexCode(c uint32) string {
	const digits = "0123456789abcdef"
	b := make([]byte, 8)
	for i := range b {
		b[7-i] = digits[c>>(4*i)&15]
	}
	return string(b)
}

// A reader of 0.3.12 that hangs up on the answer for 0.3.13 is answered right on its next connection, and only its
// address is.
func TestFlipOverSockets(t *testing.T) {
	s := start(t, nil)
	old := dialFrom(t, "127.0.0.9", s.Addr())
	if read(t, old, wire.V0_3_12) {
		t.Fatal("an unknown reader was taken for 0.3.12")
	}
	old.Close()
	deadline := time.Now().Add(patience)
	for {
		p := dialFrom(t, "127.0.0.9", s.Addr())
		if read(t, p, wire.V0_3_12) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("never flipped")
		}
		// The server had not seen the end of the old connection yet, or was too slow to count it: once more.
		p.Close()
	}
	if !read(t, dialFrom(t, "127.0.0.10", s.Addr()), wire.V0_3_13) {
		t.Error("another address was flipped, too")
	}
}

func TestServiceReadyNeverFlips(t *testing.T) {
	s := start(t, nil, wire.V0_3_7)
	for range 3 {
		p := dialFrom(t, "127.0.0.11", s.Addr())
		if got := form(p.call(frame(wire.ServiceReady.ID(), nil))); !strings.Contains(got, "type 1cb3cc34") {
			t.Error(got)
		}
		p.Close()
	}
	p := dial(t, s.CompatAddrs()[0])
	if got := form(p.call(frame(wire.ServiceReady.ID(), nil))); !strings.Contains(got, "type af2868cc") {
		t.Errorf("on the listener for 0.3.7: %s", got)
	}
}

// stuck is a master whose RemoveAll takes until it is let go.
type stuck struct {
	*master.Service
	began, let chan struct{}
}

func (s *stuck) RemoveAll(ctx context.Context, _ *wire.RemoveAllRequest, resp *int64) {
	s.began <- struct{}{}
	select {
	case <-s.let:
	case <-ctx.Done():
	}
	*resp = 1
}

// While a call that looks at every object runs, pings are answered, also on its own connection.
func TestPingsPassSlowCalls(t *testing.T) {
	svc, err := master.New(master.Options{Config: master.DefaultConfig()})
	if err != nil {
		t.Fatal(err)
	}
	m := &stuck{svc, make(chan struct{}), make(chan struct{})}
	cfg := rpc.DefaultServerConfig()
	cfg.Loops = 1
	s, err := rpc.NewServer(cfg, rpc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	Bind(s, wire.NewestResolver{}, m)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(ln, nil); err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	p := dial(t, ln.Addr().String())
	p.SetDeadline(time.Now().Add(patience))
	if _, err := p.Write(frame(wire.RemoveAll.ID(), zeroRequest(t, wire.RemoveAll.ID(), wire.Newest, true))); err != nil {
		t.Fatal(err)
	}
	<-m.began
	ping := frame(wire.Ping.ID(), zeroRequest(t, wire.Ping.ID(), wire.Newest, true))
	for _, c := range []*peer{p, dial(t, ln.Addr().String())} {
		if got := form(c.call(ping)); !strings.Contains(got, "type 742a8f52") {
			t.Errorf("ping: %s", got)
		}
	}
	close(m.let)
	head := make([]byte, responseHeader)
	if _, err := io.ReadFull(p, head); err != nil || head[2] != 0 {
		t.Errorf("the slow call: %x, %v", head, err)
	}
}

// A reader of an old version never gets an empty list for an object whose replicas it does not know.
func TestUnknownKindsOfReplicas(t *testing.T) {
	for _, c := range []struct {
		v    wire.Version
		kind wire.ReplicaKind
		want wire.ErrorCode
	}{
		{wire.V0_3_7, wire.KindLocalDisk, wire.ErrReplicaIsNotReady}, {wire.V0_3_8, wire.KindLocalDisk, wire.OK},
		{wire.V0_3_10, wire.KindNoF, wire.ErrReplicaIsNotReady}, {wire.V0_3_7, wire.KindMemory, wire.OK},
	} {
		r := wire.Result[wire.ReplicaList]{Value: wire.ReplicaList{Replicas: []wire.Replica{{Kind: c.kind}}}}
		if readable(c.v, &r); r.Code != c.want {
			t.Errorf("%s, kind %d: %s", c.v, c.kind, r.Code)
		}
	}
}

func TestAddressesToTell(t *testing.T) {
	for in, want := range map[string]string{"0.0.0.0": "127.0.0.1:5", "::": "127.0.0.1:5", "127.0.0.2": "127.0.0.2:5", "::1": "[::1]:5"} {
		if got := reachable(&net.TCPAddr{IP: net.ParseIP(in), Port: 5}); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestLifeOfAServer(t *testing.T) {
	s := start(t, nil)
	if s.Ready() != nil || s.Addr() == "" || s.AdminURL() == "" {
		t.Error(s.Ready(), s.Addr(), s.AdminURL())
	}
	// A port that is taken is named, and nothing is left listening.
	o := Options{Config: DefaultConfig(), Master: master.DefaultConfig(), Log: slog.New(slog.DiscardHandler)}
	o.Config.Listen.Addr, o.Config.Admin.Addr = s.Addr(), "127.0.0.1:0"
	for range 2 {
		second, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := second.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "rpc_port: "+s.Addr()+" is in use by another process") {
			t.Error(err)
		}
		if second.Ready() == nil {
			t.Error("ready without listening")
		}
		if err := second.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	// Close before Start, twice, and Start after Close.
	idle, err := New(Options{Config: DefaultConfig(), Master: master.DefaultConfig()})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := idle.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if idle.Start(t.Context()) == nil {
		t.Error("started after close")
	}
	// While it stops, data paths answer 503.
	s.setState("stopping")
	if status, _, body := request(t, "GET", s.AdminURL()+"/get_all_keys", ""); status != 503 || !strings.Contains(body, "the master is stopping") {
		t.Error(status, body)
	}
	if status, _, body := request(t, "GET", s.AdminURL()+"/readyz", ""); status != 503 || !strings.Contains(body, `"reason":"the master is stopping"`) {
		t.Error(status, body)
	}
	if status, _, body := request(t, "GET", s.AdminURL()+"/health", ""); status != 200 || !strings.Contains(body, `"service_ready":false`) {
		t.Error(status, body)
	}
}
