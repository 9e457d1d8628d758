package tcp

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports"
)

// server answers the requests of peers.
//
// An idle connection is never closed for its age: the pooled connections of upstream's clients are used
// again without a check and a request on a closed one is lost. The only bound is the limit of open
// files; when it is reached, the longest idle connection of the address that holds most of them goes.
type server struct {
	t   *Transport
	ln  net.Listener
	max int

	mu     sync.Mutex
	conns  map[*conn]struct{}
	byHost map[string]int
	closed bool
	wg     sync.WaitGroup
}

func newServer(t *Transport, ln net.Listener) *server {
	if sc, ok := ln.(syscall.Conn); ok {
		if rc, err := sc.SyscallConn(); err == nil {
			setBuffers(rc, &t.cfg)
		}
	}
	s := &server{t: t, ln: ln, max: t.cfg.MaxConnections, conns: map[*conn]struct{}{}, byHost: map[string]int{}}
	if s.max == 0 {
		s.max = connectionLimit()
	}
	for range t.cfg.Acceptors {
		s.wg.Go(s.accept)
	}
	return s
}

// connectionLimit leaves a quarter of the open files, at most 1024, to the rest of the process.
func connectionLimit() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 512
	}
	n := min(l.Cur, 10_000_000)
	return int(max(n-min(n/4, 1024), 1))
}

func (s *server) port() int {
	if a, ok := s.ln.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

func (s *server) accept() {
	pause := time.Millisecond
	for {
		c, err := s.ln.Accept()
		switch {
		case err == nil:
			pause = time.Millisecond
			s.admit(c)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			// Out of descriptors or of memory, or the peer gave up while in the backlog.
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
				s.mu.Lock()
				s.evict("")
				s.mu.Unlock()
			}
			s.t.logs.warn("accept failed", "err", err, "retry_in", pause.String())
			select {
			case <-s.t.quit:
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, time.Second)
		}
	}
}

// admit starts to serve c, after making room for it.
func (s *server) admit(nc net.Conn) {
	sk, err := newSock(nc, &s.t.cfg)
	if err != nil {
		nc.Close()
		return
	}
	c := &conn{srv: s, sock: sk, host: hostOf(nc.RemoteAddr())}
	c.init()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || (len(s.conns) >= s.max && !s.evict(c.host)) {
		if !s.closed {
			s.t.m.refused.Inc()
			s.t.logs.warn("connection refused: all served connections are busy", "peer", nc.RemoteAddr(), "limit", s.max)
		}
		nc.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.byHost[c.host]++
	s.t.m.accepted.Inc()
	s.t.m.connections.Inc()
	s.wg.Go(func() {
		c.serve()
		s.forget(c)
	})
}

func (s *server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(c)
}

// remove is idempotent. s.mu is held.
func (s *server) remove(c *conn) {
	if _, ok := s.conns[c]; !ok {
		return
	}
	delete(s.conns, c)
	if s.byHost[c.host]--; s.byHost[c.host] == 0 {
		delete(s.byHost, c.host)
	}
	s.t.m.connections.Dec()
}

// evict closes the longest idle connection of the address that holds most of them, counting one more
// for newcomer; if all of those are busy, the longest idle one of all. s.mu is held.
func (s *server) evict(newcomer string) bool {
	most, count := "", 0
	for h, n := range s.byHost {
		if h == newcomer {
			n++
		}
		if n > count {
			most, count = h, n
		}
	}
	var own, other *conn
	for c := range s.conns {
		if c.busy.Load() {
			continue
		}
		if c.host == most && (own == nil || c.idleSince.Load() < own.idleSince.Load()) {
			own = c
		}
		if other == nil || c.idleSince.Load() < other.idleSince.Load() {
			other = c
		}
	}
	if own == nil {
		own = other
	}
	if own == nil {
		return false
	}
	s.remove(own)
	own.kick()
	s.t.m.evicted.Inc()
	s.t.logs.warn("limit of served connections reached: closed the longest idle one", "limit", s.max,
		"peer", own.RemoteAddr(), "connections_of_peer", count, "idle", s.t.now()-time.Duration(own.idleSince.Load()))
	return true
}

// sweep drops connections that stopped in the middle of a request.
func (s *server) sweep(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if !c.busy.Load() {
			c.watch = watch{}
			continue
		}
		if c.watch.stalled(now, c.progress.Load(), s.t.cfg.StallTimeout) {
			s.remove(c)
			c.abort()
			c.kick()
			s.t.m.stalled[roleServer].Inc()
			s.t.logs.warn("served connection dropped: the peer stopped in the middle of a request", "peer", c.RemoteAddr(), "after", s.t.cfg.StallTimeout)
		}
	}
}

// dropUsers closes the connections that use r.
func (s *server) dropUsers(r *registration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.uses(r) {
			c.abort()
			c.kick()
		}
	}
}

// close ends all connections and waits for their goroutines.
func (s *server) close() {
	s.ln.Close()
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.kick()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// claim finds the memory of a request. On refusal reason is a value of the metric's label.
func (s *server) claim(h header) (ref transports.Ref, reg *registration, reason string) {
	switch {
	case h.size == 0:
		return ref, nil, "zero"
	case h.wraps():
		return ref, nil, "overflow"
	}
	if reg, _ = s.t.regions.acquire(h.addr, h.size); reg == nil {
		return ref, nil, "unregistered"
	}
	ref, err := s.t.host.Find(h.addr, h.size)
	if err != nil {
		reg.release()
		return transports.Ref{}, nil, "unregistered"
	}
	need := transports.RemoteRead
	if h.write() {
		need = transports.RemoteWrite
	}
	if ref.Access&need == 0 {
		ref.Release()
		reg.release()
		return transports.Ref{}, nil, "access"
	}
	return ref, reg, ""
}

func hostOf(a net.Addr) string {
	if ap, err := netip.ParseAddrPort(a.String()); err == nil {
		return ap.Addr().Unmap().String()
	}
	return a.String()
}

// watch notices when a counter stands still. The zero value starts with the next look.
type watch struct {
	seen  uint64
	since time.Duration
}

func (w *watch) stalled(now time.Duration, count uint64, limit time.Duration) bool {
	if w.since == 0 || count != w.seen {
		*w = watch{seen: count, since: now}
		return false
	}
	return now-w.since >= limit
}
