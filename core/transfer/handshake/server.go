package handshake

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/logx"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/internal/jsoncpp"
	"github.com/mooncake-agent/mooncake/transports"
)

// ServerConfig sets the limits of a Server. Zero values mean the defaults in parentheses.
type ServerConfig struct {
	MaxLength       units.Size    // of the length field of a request (1 MiB)
	SilentTimeout   time.Duration // a client that sends nothing for so long is dropped (5 s, upstream's)
	RequestTimeout  time.Duration // for a whole request (60 s), and again for its handler
	LingerTimeout   time.Duration // how long a client may keep its end open after the reply (2 s)
	MaxConns        int           // open connections (1024)
	MaxConnsPerAddr int           // of one client address (256)
	Log             *slog.Logger  // (none)
	Metrics         *Metrics      // (none)
}

// Server is the daemon. Install handlers, then call Serve once; Close ends it.
//
// At a limit, a new connection takes the place of the oldest one that has not sent its request yet or
// has got its reply, so silent clients lock nobody out. When all are being answered, the new one is
// closed.
type Server struct {
	cfg      ServerConfig
	handlers [TypeProbe + 1]transports.SignalFunc
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	warn     *logx.Limiter

	mu     sync.Mutex
	ln     net.Listener
	closed bool
	total  int
	addrs  map[netip.Addr]*client
}

// client is one remote address.
type client struct {
	conns int
	idle  list.List // of *conn: those that can be dropped, oldest first
}

type conn struct {
	net.Conn
	from *client
	addr netip.Addr
	elem *list.Element // in from.idle; nil while a request is being answered
	// dropped: makeRoom closed it and no longer counts it.
	dropped bool
}

// NewServer returns a server that answers Probe and, as a node without RDMA, Connection. Metadata and
// Notify have no handler yet: their connections are closed without reply.
func NewServer(cfg ServerConfig) *Server {
	cfg.MaxLength = cmp.Or(cfg.MaxLength, DefaultMaxLength)
	cfg.SilentTimeout = cmp.Or(cfg.SilentTimeout, 5*time.Second)
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, time.Minute)
	cfg.LingerTimeout = cmp.Or(cfg.LingerTimeout, 2*time.Second)
	cfg.MaxConns = cmp.Or(cfg.MaxConns, 1024)
	cfg.MaxConnsPerAddr = cmp.Or(cfg.MaxConnsPerAddr, 256)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, addrs: map[netip.Addr]*client{}, warn: logx.Every(10 * time.Second)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.Handle(TypeConnection, func(_ context.Context, _ net.Addr, req []byte) []byte { return refuseConnection(req) })
	s.Handle(TypeProbe, func(context.Context, net.Addr, []byte) []byte { return alive })
	return s
}

// Handle installs the handler of a message type (0..3), replacing the one before. Legal before Serve.
// The body that f gets is JSON by jsoncpp's rules. f runs in the connection's goroutine; its ctx ends
// after RequestTimeout and at Close.
func (s *Server) Handle(typ byte, f transports.SignalFunc) { s.handlers[typ] = f }

// HandleNotify installs a handler for notifications that were understood; what upstream's daemon
// would die of is closed without reply.
func (s *Server) HandleNotify(f func(from net.Addr, m Message)) {
	s.Handle(TypeNotify, func(_ context.Context, from net.Addr, req []byte) []byte {
		m, err := ParseMessage(req)
		if err != nil {
			return nil
		}
		f(from, m)
		return accepted()
	})
}

// Serve accepts connections until Close and then returns nil. It takes over ln.
func (s *Server) Serve(ln net.Listener) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ln.Close()
	}
	s.ln = ln
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()
	for pause := time.Duration(0); ; {
		c, err := ln.Accept()
		if err == nil {
			pause = 0
			s.admit(c)
			continue
		}
		if s.ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		// Out of descriptors or memory: keep what we have and try again.
		s.warn.Log(s.ctx, s.cfg.Log, slog.LevelWarn, "accept", "handshake: accept failed", "err", err)
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
		}
	}
}

// Close stops accepting, drops all connections and waits until no handler runs.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	if s.ln != nil {
		s.ln.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

func (s *Server) admit(c net.Conn) {
	addr := remoteIP(c.RemoteAddr())
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		c.Close()
		return
	}
	from := s.addrs[addr]
	if from == nil {
		from = &client{}
		s.addrs[addr] = from
	}
	if !s.makeRoom(from) {
		s.forget(addr, from)
		s.mu.Unlock()
		s.cfg.Metrics.refused()
		c.Close()
		s.warn.Log(s.ctx, s.cfg.Log, slog.LevelWarn, "full", "handshake: too many connections, one was refused", "from", addr)
		return
	}
	k := &conn{Conn: c, from: from, addr: addr}
	k.elem = from.idle.PushBack(k)
	from.conns++
	s.total++
	s.wg.Add(1)
	s.mu.Unlock()
	go s.serve(k)
}

// makeRoom drops an idle connection where a limit is reached, of the same address or of the address with
// the most connections, and tells whether there is room now. A dropped connection is not counted any more,
// although its goroutine may take a moment to end: else one burst would be paid for twice, and a request
// refused while there is room.
func (s *Server) makeRoom(from *client) bool {
	if from.conns >= s.cfg.MaxConnsPerAddr {
		return s.dropOldest(from, from)
	}
	if s.total < s.cfg.MaxConns {
		return true
	}
	var most *client
	for _, c := range s.addrs {
		if c.idle.Len() > 0 && (most == nil || c.conns > most.conns) {
			most = c
		}
	}
	return most != nil && s.dropOldest(most, from)
}

// dropOldest drops a connection of c so that from can have one.
func (s *Server) dropOldest(c, from *client) bool {
	e := c.idle.Front()
	if e == nil {
		return false
	}
	k := c.idle.Remove(e).(*conn)
	k.elem, k.dropped = nil, true
	c.conns--
	s.total--
	if c != from {
		s.forget(k.addr, c)
	}
	k.Close()
	s.cfg.Metrics.dropped()
	return true
}

func (s *Server) forget(addr netip.Addr, c *client) {
	if c.conns == 0 {
		delete(s.addrs, addr)
	}
}

// busy takes k out of the connections that may be dropped; false = it was dropped already.
func (s *Server) busy(k *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.elem == nil {
		return false
	}
	k.from.idle.Remove(k.elem)
	k.elem = nil
	return true
}

func (s *Server) idle(k *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.elem = k.from.idle.PushFront(k) // answered: the first to go
}

func (s *Server) serve(k *conn) {
	defer s.wg.Done()
	stop := context.AfterFunc(s.ctx, func() { k.Close() })
	defer func() {
		stop()
		k.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		if k.elem != nil {
			k.from.idle.Remove(k.elem)
		}
		if !k.dropped {
			k.from.conns--
			s.total--
			s.forget(k.addr, k.from)
		}
	}()
	f, err := ReadFrame(&patient{c: k.Conn, each: s.cfg.SilentTimeout, until: time.Now().Add(s.cfg.RequestTimeout)}, s.cfg.MaxLength)
	if err == nil {
		err = jsoncpp.Valid(f.Body)
	}
	if err != nil {
		if !errors.Is(err, io.EOF) && s.ctx.Err() == nil {
			s.cfg.Metrics.request("malformed", "closed")
			s.warn.Log(s.ctx, s.cfg.Log, slog.LevelWarn, k.addr.String(), "handshake: bad request, connection closed", "from", k.RemoteAddr(), "err", err)
		}
		return
	}
	if !s.busy(k) {
		return
	}
	var reply []byte
	if h := s.handlers[f.Type]; h != nil {
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.RequestTimeout)
		reply = h(ctx, k.RemoteAddr(), f.Body)
		cancel()
	}
	if reply == nil {
		s.cfg.Metrics.request(typeName(f.Type), "closed")
		s.warn.Log(s.ctx, s.cfg.Log, slog.LevelWarn, k.addr.String(), "handshake: request not understood, connection closed",
			"from", k.RemoteAddr(), "type", typeName(f.Type), "bytes", len(f.Body))
		return
	}
	s.cfg.Metrics.request(typeName(f.Type), "answered")
	k.SetWriteDeadline(time.Now().Add(s.cfg.RequestTimeout))
	if _, err := k.Write(AppendFrame(make([]byte, 0, len(reply)+10), Frame{Type: f.Type, Old: f.Old, Body: reply})); err != nil {
		return
	}
	// Half-close and let the client go first: closing with unread bytes would reset the connection and
	// could destroy the reply on its way.
	if t, ok := k.Conn.(interface{ CloseWrite() error }); ok {
		t.CloseWrite()
	}
	s.idle(k)
	k.SetReadDeadline(time.Now().Add(s.cfg.LingerTimeout))
	io.Copy(io.Discard, io.LimitReader(k.Conn, int64(s.cfg.MaxLength)))
}

// patient reads with a deadline for each read and one for all of them.
type patient struct {
	c     net.Conn
	each  time.Duration
	until time.Time
}

func (p *patient) Read(b []byte) (int, error) {
	d := time.Now().Add(p.each)
	if p.until.Before(d) {
		d = p.until
	}
	p.c.SetReadDeadline(d)
	return p.c.Read(b)
}

func remoteIP(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
