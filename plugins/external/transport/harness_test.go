package transport

import (
	"context"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/mooncake-agent/mooncake/plugins/examples/external-transport/mover"
	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	sdk "github.com/mooncake-agent/mooncake/plugins/sdk/external/transport"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

// near is a supervisor whose plugin runs in this process, so that the race detector sees both sides. The boundary
// is real but for the address space.
type near struct {
	t     testing.TB
	build func() plug

	wg     sync.WaitGroup
	mu     sync.Mutex
	cur    *nearProcess
	count  int
	stop   bool
	faults []error
	join   func(context.Context, Process) error
}

// plug is what a plugin serves: the SDK's server, or one with manners of its own.
type plug interface {
	pluginv1.TransportServiceServer
	Features() []string
	Side(*pluginv1.SideRequest, int) error
	Close() error
}

// nearProcess is one run of the plugin.
type nearProcess struct {
	of   *near
	srv  plug
	grpc *grpc.Server
	conn *grpc.ClientConn
	dead chan struct{}
	die  sync.Once

	mu      sync.Mutex
	channel int // a duplicate of the plugin's end
}

func newNear(t testing.TB, build func() plug) *near { return &near{t: t, build: build} }

func (n *near) Run(ctx context.Context, join func(context.Context, Process) error) error {
	n.join = join
	return n.spawn(ctx)
}

func (n *near) spawn(ctx context.Context) error {
	p := &nearProcess{of: n, srv: n.build(), grpc: grpc.NewServer(), dead: make(chan struct{})}
	pluginv1.RegisterTransportServiceServer(p.grpc, p.srv)
	l := bufconn.Listen(1 << 20)
	n.wg.Go(func() { p.grpc.Serve(l) })
	var err error
	p.conn, err = grpc.NewClient("passthrough:near", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.cur = p
	n.count++
	n.mu.Unlock()
	if err := n.join(ctx, p); err != nil {
		p.kill()
		return err
	}
	return nil
}

// kill ends the process as SIGKILL does: what is in flight is not reported.
func (p *nearProcess) kill() {
	p.die.Do(func() {
		p.mu.Lock()
		if p.channel > 0 {
			unix.Shutdown(p.channel, unix.SHUT_RDWR)
			unix.Close(p.channel)
			p.channel = 0
		}
		p.mu.Unlock()
		p.srv.Close()
		p.grpc.Stop()
		p.conn.Close()
		close(p.dead)
	})
}

func (n *near) process() *nearProcess {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cur
}

func (n *near) Stop() error {
	n.mu.Lock()
	n.stop = true
	p := n.cur
	n.mu.Unlock()
	if p != nil {
		p.srv.Close()
		p.kill()
	}
	n.wg.Wait()
	return nil
}

func (p *nearProcess) Conn() grpc.ClientConnInterface { return p.conn }
func (p *nearProcess) Has(f string) bool              { return slices.Contains(p.srv.Features(), f) }
func (p *nearProcess) Dead() <-chan struct{}          { return p.dead }

func (p *nearProcess) Give(_ context.Context, req *pluginv1.SideRequest, fd int) error {
	if fd >= 0 {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return err
		}
		fd = own
	}
	if _, ok := req.What.(*pluginv1.SideRequest_Channel); ok {
		p.mu.Lock()
		p.channel, _ = unix.Dup(fd)
		p.mu.Unlock()
	}
	return p.srv.Side(req, fd)
}

func (p *nearProcess) Fault(err error) {
	n := p.of
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stop || p != n.cur {
		return
	}
	n.cur = nil
	n.faults = append(n.faults, err)
	n.wg.Go(func() {
		p.kill()
		n.mu.Lock()
		stop := n.stop
		n.mu.Unlock()
		if stop {
			return
		}
		err := n.spawn(context.Background())
		n.mu.Lock()
		defer n.mu.Unlock()
		if err != nil && !n.stop {
			n.t.Errorf("start again: %v", err)
		}
	})
}

func newMover(t testing.TB) *sdk.Server {
	tr, err := mover.New(mover.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	s := sdk.NewServer(sdk.Options{MustMatch: []string{"host"}})
	s.Serve(tr)
	return s
}

// newTransport returns a transport whose plugin is the mover in this process.
func newTransport(t testing.TB) (*Transport, *near) {
	n := newNear(t, func() plug { return newMover(t) })
	return New("external", slog.New(slog.DiscardHandler), n, 5*time.Second), n
}

// ready waits until the plugin's process number n is in use.
func (n *near) ready(t testing.TB, tr *Transport, count int) *nearProcess {
	t.Helper()
	var p *nearProcess
	waitFor(t, func() string {
		n.mu.Lock()
		p = n.cur
		have := n.count
		n.mu.Unlock()
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if have < count || tr.cur == nil || tr.cur.p != Process(p) {
			return "the plugin was not started again"
		}
		return ""
	})
	return p
}

func (n *near) faultList() []error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.faults)
}

func waitFor(t testing.TB, cond func() string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		why := cond()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(why)
		}
	}
}

// rude is a plugin that keeps the transfer socket to itself and answers as the test says.
type rude struct {
	*sdk.Server
	mu         sync.Mutex
	c          *net.UnixConn
	path       *pluginv1.Path
	must       []string
	register   func(*pluginv1.RegisterRequest) *pluginv1.RegisterResponse
	unregister func(context.Context) (*pluginv1.UnregisterResponse, error)
	regions    []*pluginv1.Region
}

func newRude(t testing.TB) *rude {
	return &rude{Server: newMover(t), path: &pluginv1.Path{Type: "rude", Attributes: map[string]string{"a": "1"}}}
}

func (r *rude) Side(req *pluginv1.SideRequest, fd int) error {
	if _, ok := req.What.(*pluginv1.SideRequest_Channel); !ok {
		return r.Server.Side(req, fd)
	}
	f := os.NewFile(uintptr(fd), "channel")
	defer f.Close()
	c, err := net.FileConn(f)
	if err == nil {
		r.mu.Lock()
		r.c = c.(*net.UnixConn)
		r.mu.Unlock()
	}
	return err
}

func (r *rude) Start(context.Context, *pluginv1.StartTransportRequest) (*pluginv1.StartTransportResponse, error) {
	return &pluginv1.StartTransportResponse{Path: r.path, MustMatch: r.must}, nil
}

func (r *rude) Register(_ context.Context, req *pluginv1.RegisterRequest) (*pluginv1.RegisterResponse, error) {
	r.mu.Lock()
	r.regions = append(r.regions, req.Regions...)
	r.mu.Unlock()
	if r.register != nil {
		return r.register(req), nil
	}
	return &pluginv1.RegisterResponse{}, nil
}

func (r *rude) Unregister(ctx context.Context, _ *pluginv1.UnregisterRequest) (*pluginv1.UnregisterResponse, error) {
	if r.unregister != nil {
		return r.unregister(ctx)
	}
	return &pluginv1.UnregisterResponse{}, nil
}

func (r *rude) Dial(context.Context, *pluginv1.DialRequest) (*pluginv1.DialResponse, error) {
	return &pluginv1.DialResponse{PeerId: 1}, nil
}

func (r *rude) Hangup(context.Context, *pluginv1.HangupRequest) (*pluginv1.HangupResponse, error) {
	return &pluginv1.HangupResponse{}, nil
}

func (r *rude) Close() error {
	r.mu.Lock()
	if r.c != nil {
		r.c.Close()
	}
	r.mu.Unlock()
	return r.Server.Close()
}

// next reads one packet of the host's.
func (r *rude) next(t testing.TB) *pluginv1.TransferRequest {
	t.Helper()
	buf := make([]byte, maxPacket)
	n, err := r.c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	var req pluginv1.TransferRequest
	if err := proto.Unmarshal(buf[:n], &req); err != nil {
		t.Fatal(err)
	}
	return &req
}

func (r *rude) say(t testing.TB, ends ...*pluginv1.Completion) {
	t.Helper()
	b, err := proto.Marshal(&pluginv1.TransferResponse{Completions: ends})
	if err == nil {
		_, err = r.c.Write(b)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// startRude starts a node whose plugin is rude, with a peer that leads to itself and a region.
func startRude(t *testing.T, change func(*rude)) (*rude, *near, *transporttest.Node, *transporttest.Region, transports.Peer) {
	t.Helper()
	var mu sync.Mutex
	var first *rude
	n := newNear(t, func() plug {
		r := newRude(t)
		if change != nil {
			change(r)
		}
		mu.Lock()
		defer mu.Unlock()
		if first == nil {
			first = r
		}
		return r
	})
	node := transporttest.StartNode(t, transporttest.NewFabric(), New("external", slog.New(slog.DiscardHandler), n, 5*time.Second))
	region := node.Register(t, 1<<20, transports.ReadWrite)
	return first, n, node, region, node.Dial(t, node)
}
