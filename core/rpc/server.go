package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// Options are what a server needs besides numbers. All are optional.
type Options struct {
	Log     *slog.Logger
	Metrics prometheus.Registerer
	// HTTP serves connections on the same port that begin with an HTTP request.
	HTTP http.Handler
	// OnOpen and OnClose see connections come and go. They run on the event loop and must be short.
	// OnClose is called once for each OnOpen, after the last handler that ran on the loop, but slow
	// handlers may still run. A connection that is handed over to HTTP counts as closed.
	OnOpen  func(*Conn)
	OnClose func(*Conn, CloseInfo)
	// Scribble overwrites each request body when its handler has returned, which shows in tests what
	// a handler kept without copying.
	Scribble bool
}

// Function names what a handler serves.
type Function struct {
	ID   uint32
	Name string // for metrics and logs
}

type function struct {
	Function
	handler Handler
	slow    bool
	calls   []counter // by loop
}

// Server serves coro_rpc on any number of listeners. Register handlers first, then Listen; Close ends
// it for good.
type Server struct {
	cfg  ServerConfig
	opts Options
	log  *slog.Logger

	functions map[uint32]*function
	unknown   *function
	loops     []*loop
	workers   *workers
	http      *httpServer
	peers     peers
	stats     *stats
	start     time.Time
	ctx       context.Context // of slow calls
	cancel    context.CancelFunc

	lastConn    atomic.Uint64
	connections atomic.Int64
	slow        atomic.Int64
	buffered    atomic.Int64

	mu      sync.Mutex
	running bool
	closed  bool
	ended   chan struct{} // Close is done
	err     error         // of Close
	wg      sync.WaitGroup
}

// NewServer makes a server; it opens descriptors for its loops but starts nothing.
func NewServer(cfg ServerConfig, opts Options) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("rpc: %w", err)
	}
	s := &Server{cfg: cfg, opts: opts, log: opts.Log, functions: map[uint32]*function{}, start: time.Now(), ended: make(chan struct{})}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.workers = newWorkers(cfg.workers())
	s.unknown = s.newFunction(Function{Name: "unknown"}, nil, false)
	if opts.HTTP != nil {
		s.http = newHTTPServer(&s.cfg, opts.HTTP, s.log)
	}
	for i := range cfg.loops() {
		l, err := newLoop(s, i)
		if err != nil {
			for _, l := range s.loops {
				l.closeFDs()
			}
			return nil, fmt.Errorf("rpc: %w", err)
		}
		s.loops = append(s.loops, l)
	}
	s.stats = newStats(s)
	if opts.Metrics != nil {
		if err := opts.Metrics.Register(s.stats); err != nil {
			for _, l := range s.loops {
				l.closeFDs()
			}
			return nil, fmt.Errorf("rpc: metrics: %w", err)
		}
	}
	return s, nil
}

func (s *Server) newFunction(f Function, h Handler, slow bool) *function {
	return &function{Function: f, handler: h, slow: slow, calls: make([]counter, s.cfg.loops())}
}

// Handle registers a handler that runs on the event loop and must not block. It panics after the
// first Listen and for an id that has a handler already.
func (s *Server) Handle(f Function, h Handler) { s.register(f, h, false) }

// HandleSlow registers a handler that runs on a worker.
func (s *Server) HandleSlow(f Function, h Handler) { s.register(f, h, true) }

func (s *Server) register(f Function, h Handler, slow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running {
		panic("rpc: Handle after Listen")
	}
	if old, ok := s.functions[f.ID]; ok {
		panic(fmt.Sprintf("rpc: %s and %s have the id %08x", f.Name, old.Name, f.ID))
	}
	s.functions[f.ID] = s.newFunction(f, h, slow)
}

// clock is monotonic time since the server was made.
func (s *Server) clock() int64 { return int64(time.Since(s.start)) }

// Listen serves connections that ln accepts, until Close. The server owns ln from here on, also after
// an error. label is what [Conn.Label] answers for them.
func (s *Server) Listen(ln net.Listener, label any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		ln.Close()
		return fmt.Errorf("rpc: listen on %s: server %w", ln.Addr(), ErrClosed)
	}
	fd, err := duplicate(ln)
	if err != nil {
		ln.Close()
		return fmt.Errorf("rpc: listen on %s: %w", ln.Addr(), err)
	}
	s.startLocked()
	s.loops[0].post(mail{listen: &listener{fd: fd, label: label, ln: ln}})
	return nil
}

// duplicate returns a descriptor of the listening socket for epoll.
func duplicate(ln net.Listener) (fd int, err error) {
	sc, ok := ln.(syscall.Conn)
	if !ok {
		return 0, fmt.Errorf("%T has no descriptor", ln)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := raw.Control(func(n uintptr) {
		fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0)
	})
	if ctlErr != nil {
		return 0, ctlErr
	}
	return fd, os.NewSyscallError("fcntl", err)
}

func (s *Server) startLocked() {
	if s.running {
		return
	}
	s.running = true
	for _, l := range s.loops {
		s.wg.Go(l.run)
	}
	if s.http != nil {
		s.wg.Go(s.http.serve)
	}
}

// admit takes an accepted socket or closes it. It runs on loop 0.
func (s *Server) admit(fd int, addr netip.AddrPort, label any) {
	p, refused := s.peers.add(addr.Addr(), s.cfg.MaxConnections, s.cfg.MaxConnectionsPerIP)
	if refused != "" {
		s.stats.refuse(refused)
		unix.Close(fd)
		return
	}
	if addr.IsValid() {
		// A failure costs speed, or means that the peer has gone already.
		if s.cfg.NoDelay {
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		}
		if sec := int(s.cfg.KeepAlive / time.Second); sec > 0 {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, sec)
		}
	}
	s.connections.Add(1)
	s.stats.accepted.Add(1)
	c := &Conn{id: s.lastConn.Add(1), addr: addr, label: label, fd: fd, peer: p}
	c.loop = s.loops[int(c.id)%len(s.loops)]
	if c.loop == s.loops[0] {
		c.loop.adopt(c)
		return
	}
	c.loop.post(mail{conn: c, adopt: true})
}

// Connections returns how many RPC connections are open.
func (s *Server) Connections() int { return int(s.connections.Load()) }

// Close stops accepting and reading, lets running handlers finish and their answers leave, and
// returns when everything has ended. When ctx ends before, connections are cut and the contexts of slow
// handlers end; a handler that ignores that is named in the error. Later calls wait for the first.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.ended
		return s.err
	}
	s.closed = true
	running := s.running
	s.mu.Unlock()
	defer close(s.ended)
	if s.opts.Metrics != nil {
		defer s.opts.Metrics.Unregister(s.stats)
	}
	defer s.cancel()
	if !running {
		for _, l := range s.loops {
			l.closeFDs()
		}
		return nil
	}
	for _, l := range s.loops {
		l.post(mail{drain: true})
	}
	if s.http != nil {
		s.http.shutdown(ctx)
	}
	loops := make(chan struct{})
	go func() { // ends with the loops, which end below at the latest
		s.wg.Wait()
		close(loops)
	}()
	select {
	case <-loops:
	case <-ctx.Done():
		for _, l := range s.loops {
			l.post(mail{kill: true})
		}
		<-loops
	}
	if s.http != nil {
		s.http.closeQueued()
	}
	s.cancel()
	s.err = s.waitWorkers()
	return s.err
}

// waitWorkers waits for slow handlers, which have lost their connections.
func (s *Server) waitWorkers() error {
	deadline := time.Now().Add(closeGrace)
	timer := time.AfterFunc(closeGrace, s.workers.wake)
	defer timer.Stop()
	if n := s.workers.wait(func() bool { return !time.Now().Before(deadline) }); n > 0 {
		return fmt.Errorf("rpc: close: %d slow handlers did not end %s after their context", n, closeGrace)
	}
	return nil
}
