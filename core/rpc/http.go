package rpc

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// httpMethods are the request lines that hand a connection over. Their first letters differ from
// coro_rpc's magic, so the first byte decides most cases.
var httpMethods = [][]byte{[]byte("GET "), []byte("HEAD "), []byte("POST "), []byte("PUT "), []byte("DELETE "), []byte("OPTIONS "), []byte("PATCH ")}

// startsHTTP reports whether b begins an HTTP request, or may when more of it is there.
func startsHTTP(b []byte) (is, maybe bool) {
	for _, m := range httpMethods {
		if bytes.HasPrefix(b, m) {
			return true, true
		}
		if bytes.HasPrefix(m, b) {
			maybe = true
		}
	}
	return false, maybe
}

// greet decides on a connection whose first bytes are not RPC: HTTP is handed over, a beginning of
// it waits for more, anything else closes.
func (l *loop) greet(c *Conn, b []byte) {
	is, maybe := startsHTTP(b)
	switch {
	case l.server.http == nil || !maybe:
		l.close(c, ClosedProtocol)
	case is:
		l.handOver(c, b)
	}
}

// handOver takes c out of the loop and gives its descriptor and the bytes read to the HTTP server.
func (l *loop) handOver(c *Conn, head []byte) {
	h := &handedConn{head: bytes.Clone(head), server: l.server, peer: c.peer}
	fd := c.fd
	if err := unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, fd, nil); err != nil {
		l.close(c, ClosedError)
		return
	}
	l.forget(c, ClosedHandover)
	f := os.NewFile(uintptr(fd), "")
	conn, err := net.FileConn(f) // has a descriptor of its own
	f.Close()
	if err != nil {
		l.server.log.Warn("rpc: cannot serve a connection as HTTP", "peer", c.addr, "error", err)
		l.server.peers.remove(c.peer)
		return
	}
	h.Conn = conn
	l.server.http.take(h)
}

// handedConn is a connection that gives back what was read from it before.
type handedConn struct {
	net.Conn
	head   []byte
	server *Server
	peer   *peer
	once   sync.Once
}

func (h *handedConn) Read(b []byte) (int, error) {
	if len(h.head) > 0 {
		n := copy(b, h.head)
		h.head = h.head[n:]
		return n, nil
	}
	return h.Conn.Read(b)
}

// Close also ends the connection's share of its address's limit.
func (h *handedConn) Close() error {
	h.once.Do(func() {
		h.server.http.open.Add(-1)
		h.server.peers.remove(h.peer)
	})
	return h.Conn.Close()
}

// httpServer is a net.Listener of handed connections and the server that accepts from it.
type httpServer struct {
	server *http.Server
	conns  chan net.Conn
	done   chan struct{}
	stop   sync.Once
	open   atomic.Int64
	max    int64
}

func newHTTPServer(cfg *ServerConfig, h http.Handler, log *slog.Logger) *httpServer {
	return &httpServer{
		server: &http.Server{Handler: h, ReadHeaderTimeout: cfg.HTTPReadTimeout, ReadTimeout: cfg.HTTPWriteTimeout, WriteTimeout: cfg.HTTPWriteTimeout,
			IdleTimeout: cfg.HTTPReadTimeout, MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)},
		conns: make(chan net.Conn, cfg.HTTPConnectionsLimit), done: make(chan struct{}), max: int64(cfg.HTTPConnectionsLimit),
	}
}

// take never blocks: above the limit the connection is closed.
func (s *httpServer) take(c *handedConn) {
	if s.open.Add(1) > s.max {
		c.Close()
		return
	}
	select {
	case <-s.done:
		c.Close()
	case s.conns <- c: // has room for max
	default:
		c.Close()
	}
}

func (s *httpServer) serve() {
	if err := s.server.Serve(s); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		s.server.ErrorLog.Printf("rpc: plain HTTP ended: %v", err)
	}
}

// shutdown waits for running requests until ctx ends.
func (s *httpServer) shutdown(ctx context.Context) {
	s.stop.Do(func() { close(s.done) })
	if s.server.Shutdown(ctx) != nil {
		s.server.Close()
	}
}

// closeQueued closes what nobody accepted any more.
func (s *httpServer) closeQueued() {
	for {
		select {
		case c := <-s.conns:
			c.Close()
		default:
			return
		}
	}
}

// Accept, Close and Addr make it a net.Listener.
func (s *httpServer) Accept() (net.Conn, error) {
	select {
	case <-s.done:
		return nil, net.ErrClosed
	case c := <-s.conns:
		return c, nil
	}
}

func (s *httpServer) Close() error {
	s.stop.Do(func() { close(s.done) })
	return nil
}

func (s *httpServer) Addr() net.Addr { return httpAddr{} }

type httpAddr struct{}

func (httpAddr) Network() string { return "rpc" }
func (httpAddr) String() string  { return "rpc" }

// closeGrace is how long handlers get to notice that their context ended.
const closeGrace = time.Second
