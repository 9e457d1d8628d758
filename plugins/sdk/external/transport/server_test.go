package transport

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorded is a transport that does nothing but remember.
type recorded struct {
	mu      sync.Mutex
	host    transports.Host
	start   func(transports.Host) error
	regions []transports.Region
	paths   []transports.Path
	submit  func(ctx context.Context, ops []transports.Op, done transports.Completion) error
	closing func(context.Context) error // of registrations
}

func (r *recorded) Start(_ context.Context, h transports.Host) error {
	r.host = h
	if r.start != nil {
		return r.start(h)
	}
	return nil
}

func (r *recorded) Register(_ context.Context, g transports.Region) (transports.Registration, error) {
	if g.Len() == 3 {
		return nil, transports.ErrNotShareable
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.regions = append(r.regions, g)
	return registration{r}, nil
}

type registration struct{ r *recorded }

func (g registration) Close(ctx context.Context) error {
	if g.r.closing != nil {
		return g.r.closing(ctx)
	}
	return nil
}

func (r *recorded) Describe(d *transports.Descriptor) {
	d.Agent = &transports.AgentExt{V: 1, Paths: r.paths}
}
func (r *recorded) Reach(*transports.Descriptor) error { return nil }
func (r *recorded) Dial(_ context.Context, d *transports.Descriptor) (transports.Peer, error) {
	if d.Name == "" {
		return nil, transports.ErrUnreachable
	}
	return recordedPeer{r}, nil
}
func (r *recorded) Close() error { return nil }

type recordedPeer struct{ r *recorded }

func (p recordedPeer) Submit(ctx context.Context, ops []transports.Op, done transports.Completion) error {
	if p.r.submit != nil {
		return p.r.submit(ctx, ops, done)
	}
	for i := range ops {
		done(ops[i].Cookie, ops[i].Len, nil)
	}
	return nil
}
func (p recordedPeer) Close() error { return nil }

// serve returns a server with one segment of 64 KiB, number 1, and the node's end of the transfer socket.
func serve(t testing.TB, r *recorded, o Options) (*Server, *net.UnixConn, []byte) {
	t.Helper()
	s := NewServer(o)
	s.Serve(r)
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, 64<<10); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	give := &pluginv1.SideRequest{What: &pluginv1.SideRequest_Give{Give: &pluginv1.Segment{SegmentId: 1, Length: 64 << 10, Writable: true}}}
	if err := s.Side(give, fd); err != nil {
		t.Fatal(err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "near")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Side(&pluginv1.SideRequest{What: &pluginv1.SideRequest_Channel{Channel: &pluginv1.Channel{Name: "transfer"}}}, fds[1]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		c.Close()
		unix.Munmap(mem)
	})
	return s, c.(*net.UnixConn), mem
}

func area(id, off, n, addr uint64) *pluginv1.Region {
	return &pluginv1.Region{RegionId: id, SegmentId: 1, Offset: off, Length: n, Address: addr, Location: "cpu:0", RemoteRead: true}
}

func register(t testing.TB, s *Server, rs ...*pluginv1.Region) *pluginv1.RegisterResponse {
	t.Helper()
	resp, err := s.Register(context.Background(), &pluginv1.RegisterRequest{Regions: rs})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestMemory(t *testing.T) {
	r := &recorded{}
	s, _, mem := serve(t, r, Options{})
	copy(mem[4096:], "hello")
	if resp := register(t, s, area(10, 4096, 5, 1000), area(11, 8192, 3, 2000)); resp.Error != nil || len(resp.Refused) != 1 || resp.Refused[0].RegionId != 11 {
		t.Fatal(resp)
	}
	g := r.regions[0]
	fd, off, ok := g.FD()
	if !bytes.Equal(g.Bytes(), []byte("hello")) || g.Addr() != 1000 || g.Access() != transports.RemoteRead || g.Location() != "cpu:0" || !ok || off != 4096 || fd < 3 {
		t.Errorf("region %+v", g)
	}
	for name, q := range map[string]*pluginv1.Region{
		"known":          area(10, 0, 1, 5000),
		"no segment":     {RegionId: 12, SegmentId: 2, Length: 1, Address: 1},
		"outside":        area(12, 65536, 1, 5000),
		"beyond the end": area(12, 1, 65536, 5000),
		"empty":          area(12, 0, 0, 5000),
		"no address":     area(12, 0, 1, 0),
		"wraps":          area(12, 0, 2, ^uint64(0)),
		"number 0":       area(0, 0, 1, 5000),
	} {
		if resp := register(t, s, area(20, 0, 8, 9000), q); resp.Error.GetCode() != pluginv1.ErrorCode_ERROR_CODE_NOT_REGISTERED {
			t.Errorf("%s: %v", name, resp)
		}
		if s.memory.byID(20) != nil {
			t.Fatalf("%s: the region before it is left", name)
		}
	}
	if err := s.memory.drop(1); err == nil {
		t.Error("a segment with a region was taken back")
	}
	for range 2 { // the second is of an unknown region
		if resp, err := s.Unregister(context.Background(), &pluginv1.UnregisterRequest{RegionId: 10}); err != nil || resp.Error != nil {
			t.Error(resp, err)
		}
	}
	if err := s.memory.drop(1); err != nil {
		t.Error(err)
	}
	if err := s.memory.drop(1); err == nil {
		t.Error("taken back twice")
	}
}

// Find holds a region, and Unregister waits for it.
func TestFind(t *testing.T) {
	r := &recorded{paths: []transports.Path{{Type: "t"}}}
	s, _, _ := serve(t, r, Options{})
	register(t, s, area(1, 0, 100, 1000), area(2, 100, 100, 1100))
	if resp, err := s.Start(context.Background(), &pluginv1.StartTransportRequest{Instance: "i"}); err != nil || resp.Error != nil || resp.Path.Type != "t" {
		t.Fatal(resp, err)
	}
	h := r.host
	for _, c := range []struct {
		addr, n uint64
		ok      bool
	}{{1000, 100, true}, {1000, 101, false}, {1099, 1, true}, {1100, 100, true}, {999, 1, false}, {1200, 1, false}, {1000, 0, false}, {1150, ^uint64(0), false}} {
		ref, err := h.Find(c.addr, c.n)
		if (err == nil) != c.ok {
			t.Errorf("Find(%d, %d): %v", c.addr, c.n, err)
		}
		if err == nil {
			ref.Release()
		}
	}
	ref, err := h.Find(1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if resp, _ := s.Unregister(ctx, &pluginv1.UnregisterRequest{RegionId: 1}); resp.Error.GetCode() != pluginv1.ErrorCode_ERROR_CODE_UNQUIET {
		t.Errorf("with a reference: %v", resp)
	}
	if _, err := h.Find(1000, 1); !errors.Is(err, transports.ErrNotRegistered) {
		t.Errorf("found again: %v", err)
	}
	ref.Release()
	if resp, _ := s.Unregister(context.Background(), &pluginv1.UnregisterRequest{RegionId: 1}); resp.Error != nil {
		t.Errorf("without: %v", resp)
	}
	if _, err := h.Signal(context.Background(), "x", 1, nil); !errors.Is(err, transports.ErrUnreachable) {
		t.Errorf("Signal: %v", err)
	}
}

func TestStart(t *testing.T) {
	one := []transports.Path{{Type: "t"}}
	for name, c := range map[string]struct {
		r    *recorded
		want string
	}{
		"good":      {&recorded{paths: one}, ""},
		"no path":   {&recorded{}, "exactly one path"},
		"two paths": {&recorded{paths: append(one, one...)}, "exactly one path"},
		"fails":     {&recorded{start: func(transports.Host) error { return errors.New("no device") }}, "no device"},
		"signals": {&recorded{paths: one, start: func(h transports.Host) error {
			h.OnSignal(3, nil)
			return nil
		}}, "signals"},
		"no listener": {&recorded{paths: one, start: func(h transports.Host) error {
			_, err := h.Listen(context.Background(), units.PortRange{})
			return err
		}}, "no listener"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, _ := serve(t, c.r, Options{})
			resp, err := s.Start(context.Background(), &pluginv1.StartTransportRequest{})
			if err != nil || (c.want == "") != (resp.Error == nil) || !strings.Contains(resp.Error.GetMessage(), c.want) {
				t.Errorf("%v, %v", resp, err)
			}
		})
	}
}

// The node's listener is what the transport gets.
func TestListen(t *testing.T) {
	var got net.Listener
	r := &recorded{paths: []transports.Path{{Type: "t"}}, start: func(h transports.Host) (err error) {
		got, err = h.Listen(context.Background(), units.PortRange{})
		return err
	}}
	s, _, _ := serve(t, r, Options{Listen: true})
	if f := s.Features(); len(f) != 1 || f[0] != "listen" {
		t.Errorf("features %v", f)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	fd, _ := unix.Dup(int(f.Fd()))
	f.Close()
	ln.Close()
	if err := s.Side(&pluginv1.SideRequest{What: &pluginv1.SideRequest_Listener{Listener: &pluginv1.Listener{Name: "default"}}}, fd); err != nil {
		t.Fatal(err)
	}
	if resp, err := s.Start(context.Background(), &pluginv1.StartTransportRequest{}); err != nil || resp.Error != nil {
		t.Fatal(resp, err)
	}
	defer got.Close()
	c, err := net.Dial("tcp", got.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestSideRefuses(t *testing.T) {
	s, _, _ := serve(t, &recorded{}, Options{})
	pipe := func() int {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		unix.Close(p[1])
		return p[0]
	}
	before := openFiles(t)
	for name, c := range map[string]struct {
		req *pluginv1.SideRequest
		fd  int
	}{
		"nothing":              {&pluginv1.SideRequest{}, pipe()},
		"no descriptor":        {&pluginv1.SideRequest{What: &pluginv1.SideRequest_Give{Give: &pluginv1.Segment{SegmentId: 2, Length: 1}}}, -1},
		"a segment twice":      {&pluginv1.SideRequest{What: &pluginv1.SideRequest_Give{Give: &pluginv1.Segment{SegmentId: 1, Length: 1}}}, pipe()},
		"a pipe as memory":     {&pluginv1.SideRequest{What: &pluginv1.SideRequest_Give{Give: &pluginv1.Segment{SegmentId: 2, Length: 1}}}, pipe()},
		"an empty segment":     {&pluginv1.SideRequest{What: &pluginv1.SideRequest_Give{Give: &pluginv1.Segment{SegmentId: 2}}}, pipe()},
		"a pipe as a listener": {&pluginv1.SideRequest{What: &pluginv1.SideRequest_Listener{Listener: &pluginv1.Listener{Name: "default"}}}, pipe()},
		"a pipe as a channel":  {&pluginv1.SideRequest{What: &pluginv1.SideRequest_Channel{Channel: &pluginv1.Channel{Name: "transfer"}}}, pipe()},
	} {
		if err := s.Side(c.req, c.fd); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors before, %d after: all were to be closed", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(l)
}

// A batch that is cancelled takes its own operations along and no others, whatever packet they came in.
func TestCancel(t *testing.T) {
	ended := make(chan uint64, 10)
	r := &recorded{paths: []transports.Path{{Type: "t"}}, submit: func(ctx context.Context, ops []transports.Op, done transports.Completion) error {
		<-ctx.Done()
		for i := range ops {
			ended <- ops[i].Cookie
			done(ops[i].Cookie, 0, ctx.Err())
		}
		return nil
	}}
	s, c, _ := serve(t, r, Options{})
	register(t, s, area(1, 0, 100, 1000))
	if resp, err := s.Start(context.Background(), &pluginv1.StartTransportRequest{}); err != nil || resp.Error != nil {
		t.Fatal(resp, err)
	}
	p, err := s.Dial(context.Background(), &pluginv1.DialRequest{SegmentName: "x"})
	if err != nil || p.PeerId == 0 {
		t.Fatal(p, err)
	}
	send := func(req *pluginv1.TransferRequest) {
		b, err := proto.Marshal(req)
		if err == nil {
			_, err = c.Write(b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	op := func(id uint64) []*pluginv1.Operation {
		return []*pluginv1.Operation{{OperationId: id, RegionId: 1, Length: 1, RemoteAddress: 1}}
	}
	send(&pluginv1.TransferRequest{BatchId: 7, PeerId: p.PeerId, Operations: op(1)})
	send(&pluginv1.TransferRequest{BatchId: 7, PeerId: p.PeerId, Operations: op(2)})
	send(&pluginv1.TransferRequest{BatchId: 8, PeerId: p.PeerId, Operations: op(3)})
	send(&pluginv1.TransferRequest{CancelBatchIds: []uint64{7, 99}})
	if a, b := <-ended, <-ended; a+b != 3 || a == b {
		t.Errorf("ended: %d, %d", a, b)
	}
	got := map[uint64]pluginv1.ErrorCode{}
	for len(got) < 2 {
		for _, e := range receive(t, c).Completions {
			got[e.OperationId] = e.Error.GetCode()
		}
	}
	if got[1] != pluginv1.ErrorCode_ERROR_CODE_CANCELLED || got[2] != pluginv1.ErrorCode_ERROR_CODE_CANCELLED {
		t.Errorf("got %v", got)
	}
	send(&pluginv1.TransferRequest{CancelBatchIds: []uint64{8}})
	if e := receive(t, c).Completions; len(e) != 1 || e[0].OperationId != 3 {
		t.Errorf("got %v", e)
	}
}

func receive(t testing.TB, c *net.UnixConn) *pluginv1.TransferResponse {
	t.Helper()
	buf := make([]byte, maxPacket)
	c.SetReadDeadline(time.Now().Add(30 * time.Second))
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	var resp pluginv1.TransferResponse
	if err := proto.Unmarshal(buf[:n], &resp); err != nil {
		t.Fatal(err)
	}
	return &resp
}

func TestErrors(t *testing.T) {
	for _, c := range codes {
		if e := toProto(c.err); e.Code != c.code {
			t.Errorf("%v became %v", c.err, e.Code)
		}
	}
	e := toProto(errors.New(strings.Repeat("é", 1000) + "\xff"))
	if e.Code != pluginv1.ErrorCode_ERROR_CODE_INTERNAL || len(e.Message) > maxMessage+3 {
		t.Errorf("%d bytes, %v", len(e.Message), e.Code)
	}
	if _, err := proto.Marshal(e); err != nil {
		t.Error(err)
	}
}

// FuzzTake feeds packets of a node: each operation in them ends exactly once, and nothing else does.
func FuzzTake(f *testing.F) {
	for _, req := range []*pluginv1.TransferRequest{
		{BatchId: 1, PeerId: 1, Operations: []*pluginv1.Operation{{OperationId: 5, RegionId: 1, Offset: 4, Length: 8, RemoteAddress: 9}, {OperationId: 6, RegionId: 2}}},
		{CancelBatchIds: []uint64{1, 2}},
		{BatchId: 1, PeerId: 3, Operations: []*pluginv1.Operation{{OperationId: 5}}, CancelBatchIds: []uint64{1}},
	} {
		b, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		var req pluginv1.TransferRequest
		if proto.Unmarshal(packet, &req) != nil || len(req.Operations) > 200 {
			return
		}
		s, c, _ := serve(t, &recorded{}, Options{})
		register(t, s, area(1, 0, 100, 1000))
		if _, err := s.Dial(context.Background(), &pluginv1.DialRequest{SegmentName: "x"}); err != nil {
			t.Fatal(err)
		}
		want := map[uint64]int{}
		for _, o := range req.Operations {
			want[o.OperationId]++
		}
		s.take(&req)
		for range req.Operations {
			if len(want) == 0 {
				break
			}
			for _, e := range receive(t, c).Completions {
				if want[e.OperationId]--; want[e.OperationId] < 0 {
					t.Fatalf("operation %d ended once too often", e.OperationId)
				}
				if want[e.OperationId] == 0 {
					delete(want, e.OperationId)
				}
			}
		}
		s.wg.Wait()
		if len(want) != 0 || len(s.batches) != 0 {
			t.Fatalf("%d operations and %d batches are left", len(want), len(s.batches))
		}
	})
}
