// Package transport serves a Go transport to a node from a process of its own: what it takes is a
// [transports.Transport], the same that could be linked into the node. Package plugins/sdk/external runs it.
//
// The transport sees the node's regions as memory that this process maps, and a [transports.Host] that answers Find,
// Identity and, with [Options.Listen], Listen. Signals of the handshake daemon are not offered to plugins.
package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
)

// Options are what the Go contract does not say.
type Options struct {
	// MustMatch names attributes of the transport's path that a peer's path must have with the same value, such as the
	// host's boot id. The node then knows without a call which peers it need not dial.
	MustMatch []string
	// Listen asks the node for a listening TCP socket of its port range, which Host.Listen returns then. It stays open
	// while the plugin is started again.
	Listen bool
}

// Server is a TransportService.
type Server struct {
	pluginv1.UnimplementedTransportServiceServer
	o Options
	t transports.Transport // set by Serve

	memory memory
	out    writer

	ctx    context.Context // of all batches
	cancel context.CancelFunc
	wg     sync.WaitGroup // the reader of the channel, and Submits

	mu       sync.Mutex
	channel  *net.UnixConn
	listener net.Listener
	started  bool
	peers    map[uint64]transports.Peer
	lastPeer uint64
	batches  map[uint64]*batch
	once     sync.Once
	err      error // of Close
}

// NewServer returns a server without a transport.
func NewServer(o Options) *Server {
	s := &Server{o: o, peers: map[uint64]transports.Peer{}, batches: map[uint64]*batch{}}
	s.memory.init()
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Serve sets the transport, which is not started, before anything is asked of the server.
func (s *Server) Serve(t transports.Transport) { s.t = t }

// Features are what the plugin has to announce.
func (s *Server) Features() []string {
	if s.o.Listen {
		return []string{"listen"}
	}
	return nil
}

// Side takes a request of the side socket. The descriptor is the server's from then on, also after an error; -1 is none.
func (s *Server) Side(req *pluginv1.SideRequest, fd int) error {
	file := func(name string) (*os.File, error) {
		if fd < 0 {
			return nil, errors.New("no descriptor came with it")
		}
		return os.NewFile(uintptr(fd), name), nil
	}
	switch w := req.What.(type) {
	case *pluginv1.SideRequest_Give:
		f, err := file("segment")
		if err != nil {
			return err
		}
		return s.memory.give(w.Give, f)
	case *pluginv1.SideRequest_Drop:
		return s.memory.drop(w.Drop.SegmentId)
	case *pluginv1.SideRequest_Listener:
		f, err := file("listener")
		if err != nil {
			return err
		}
		return s.takeListener(w.Listener.Name, f)
	case *pluginv1.SideRequest_Channel:
		f, err := file("channel")
		if err != nil {
			return err
		}
		return s.takeChannel(w.Channel.Name, f)
	}
	if f, err := file("unknown"); err == nil {
		f.Close()
	}
	return fmt.Errorf("a request of type %T is not known", req.What)
}

// takeListener takes the node's listener.
func (s *Server) takeListener(name string, f *os.File) error {
	defer f.Close() // FileListener duplicates it
	ln, err := net.FileListener(f)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if name != "default" || s.listener != nil {
		ln.Close()
		return fmt.Errorf("listener %q: one of the name default is wanted", name)
	}
	s.listener = ln
	return nil
}

// takeChannel takes the transfer socket.
func (s *Server) takeChannel(name string, f *os.File) error {
	defer f.Close() // FileConn duplicates it
	c, err := net.FileConn(f)
	if err != nil {
		return err
	}
	u, ok := c.(*net.UnixConn)
	s.mu.Lock()
	defer s.mu.Unlock()
	if name != "transfer" || !ok || s.channel != nil {
		c.Close()
		return fmt.Errorf("channel %q: one of the name transfer is wanted", name)
	}
	s.channel, s.out.c = u, u
	return nil
}

// Start implements TransportService.
func (s *Server) Start(ctx context.Context, req *pluginv1.StartTransportRequest) (*pluginv1.StartTransportResponse, error) {
	path, err := s.start(ctx, req)
	if err != nil {
		return &pluginv1.StartTransportResponse{Error: toProto(err)}, nil
	}
	return &pluginv1.StartTransportResponse{Path: path, MustMatch: s.o.MustMatch}, nil
}

func (s *Server) start(ctx context.Context, req *pluginv1.StartTransportRequest) (*pluginv1.Path, error) {
	s.mu.Lock()
	c := s.channel
	again := s.started
	s.started = true
	s.mu.Unlock()
	switch {
	case again:
		return nil, errors.New("started twice")
	case c == nil:
		return nil, errors.New("start: the transfer socket was not handed over")
	}
	h := &host{s: s, id: transports.Identity{Segment: req.SegmentName, Host: req.Host, Instance: req.Instance, HostID: req.HostId}}
	if err := s.t.Start(ctx, h); err != nil {
		return nil, err
	}
	if h.signals {
		return nil, errors.New("the transport wants signals of the handshake daemon, which plugins do not get")
	}
	var d transports.Descriptor
	s.t.Describe(&d)
	if d.Agent == nil || len(d.Agent.Paths) != 1 {
		return nil, errors.New("the transport does not describe exactly one path")
	}
	p := d.Agent.Paths[0]
	s.wg.Go(func() { s.read(c) })
	return &pluginv1.Path{Type: p.Type, Host: p.Host, Port: uint32(p.Port), Attributes: p.Attr}, nil
}

// Register implements TransportService.
func (s *Server) Register(ctx context.Context, req *pluginv1.RegisterRequest) (*pluginv1.RegisterResponse, error) {
	var resp pluginv1.RegisterResponse
	var added []*region
	for _, q := range req.Regions {
		r, err := s.memory.region(q)
		if err == nil {
			r.reg, err = s.t.Register(ctx, r)
		}
		switch {
		case err == nil:
			s.memory.add(r)
			added = append(added, r)
		case errors.Is(err, transports.ErrNotShareable):
			resp.Refused = append(resp.Refused, &pluginv1.RefusedRegion{RegionId: q.RegionId, Error: toProto(err)})
			err = nil
		}
		if err != nil {
			for _, r := range added {
				err = errors.Join(err, s.memory.remove(ctx, r))
			}
			return &pluginv1.RegisterResponse{Error: toProto(err)}, nil
		}
	}
	return &resp, nil
}

// Unregister implements TransportService.
func (s *Server) Unregister(ctx context.Context, req *pluginv1.UnregisterRequest) (*pluginv1.UnregisterResponse, error) {
	if r := s.memory.byID(req.RegionId); r != nil {
		ctx, cancel := shortly(ctx)
		defer cancel()
		if err := s.memory.remove(ctx, r); err != nil {
			return &pluginv1.UnregisterResponse{Error: toProto(err)}, nil
		}
	}
	return &pluginv1.UnregisterResponse{}, nil
}

// shortly ends a little before ctx, so that the answer arrives in time.
func shortly(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-time.Until(end)/8))
}

// Dial implements TransportService.
func (s *Server) Dial(ctx context.Context, req *pluginv1.DialRequest) (*pluginv1.DialResponse, error) {
	q := req.GetPath()
	d := &transports.Descriptor{Name: req.SegmentName, DialHost: q.GetHost(), Agent: &transports.AgentExt{V: 1, Instance: req.Instance, Paths: []transports.Path{
		{Type: q.GetType(), Host: q.GetHost(), Port: int(q.GetPort()), Attr: q.GetAttributes()}}}}
	p, err := s.t.Dial(ctx, d)
	if err != nil {
		return &pluginv1.DialResponse{Error: toProto(err)}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastPeer++
	s.peers[s.lastPeer] = p
	return &pluginv1.DialResponse{PeerId: s.lastPeer}, nil
}

// Hangup implements TransportService.
func (s *Server) Hangup(_ context.Context, req *pluginv1.HangupRequest) (*pluginv1.HangupResponse, error) {
	s.mu.Lock()
	p := s.peers[req.PeerId]
	delete(s.peers, req.PeerId)
	s.mu.Unlock()
	if p != nil {
		if err := p.Close(); err != nil {
			return &pluginv1.HangupResponse{Error: toProto(err)}, nil
		}
	}
	return &pluginv1.HangupResponse{}, nil
}

// Close closes the transport, which ends everything in flight, and tells the node so. Then it gives the memory back.
func (s *Server) Close() error {
	s.once.Do(func() {
		if s.t != nil {
			s.err = s.t.Close()
		}
		s.cancel()
		s.mu.Lock()
		c, ln := s.channel, s.listener
		s.mu.Unlock()
		if ln != nil {
			ln.Close()
		}
		if c != nil {
			c.CloseRead() // wakes the reader
			s.wg.Wait()
			c.Close()
		}
		s.err = errors.Join(s.err, s.memory.clear())
	})
	return s.err
}
