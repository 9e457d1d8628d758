package rpc

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readSize      = 256 << 10 // of a loop's shared read buffer
	flushSize     = 256 << 10 // answers are written when so many bytes are ready, even in the middle of a batch
	keepOutput    = 1 << 20   // larger output buffers are dropped after use
	smallestInput = 4 << 10   // first buffer of a partial request
	eventBatch    = 256
	acceptBatch   = 64
	tickTime      = 100 * time.Millisecond // resolution of timeouts
	acceptPause   = 100 * time.Millisecond // after running out of descriptors
)

// loop owns connections: it alone reads, writes and closes them.
type loop struct {
	server *Server
	index  int
	ep     int
	wakeFD int

	mu       sync.Mutex
	mailbox  []mail
	spare    []mail
	signaled bool
	dead     bool // the loop has ended; mail is dropped

	// The rest is used by the loop's goroutine only.
	conns     []*Conn // by descriptor
	open      int
	listeners map[int]*listener
	timed     map[*Conn]struct{} // connections with a partial request or unsent answers
	newest    *Conn              // idle list, only with an idle timeout
	oldest    *Conn
	now       int64 // clock at the last wake-up
	nextTick  int64
	resume    int64 // when accepting goes on after a pause; 0 = it was not paused
	draining  bool
	killed    bool
	rbuf      []byte
	out       []byte
	call      Call
	lookout   lookout
	events    [eventBatch]unix.EpollEvent
}

// mail is what other goroutines want from a loop.
type mail struct {
	conn   *Conn
	answer []byte // of a slow call
	adopt  bool   // conn is new
	close  bool
	listen *listener
	drain  bool // finish what was read, then close
	kill   bool // close everything
}

func newLoop(s *Server, index int) (*loop, error) {
	l := &loop{server: s, index: index, listeners: map[int]*listener{}, timed: map[*Conn]struct{}{}, rbuf: make([]byte, readSize), lookout: newLookout()}
	var err error
	if l.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if l.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(l.ep)
		return nil, os.NewSyscallError("eventfd", err)
	}
	if err := l.watch(unix.EPOLL_CTL_ADD, l.wakeFD, unix.EPOLLIN); err != nil {
		l.closeFDs()
		return nil, err
	}
	return l, nil
}

func (l *loop) closeFDs() {
	unix.Close(l.wakeFD)
	unix.Close(l.ep)
}

func (l *loop) watch(op, fd int, events uint32) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.ep, op, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}))
}

// post hands m to the loop. Answers to connections of a loop that has ended are dropped.
func (l *loop) post(m mail) {
	l.mu.Lock()
	if l.dead {
		l.mu.Unlock()
		return
	}
	l.mailbox = append(l.mailbox, m)
	wake := !l.signaled
	l.signaled = true
	if wake { // under the lock, so that the descriptor cannot be closed meanwhile
		one := [8]byte{1}
		_, _ = unix.Write(l.wakeFD, one[:]) // full means that the loop is awake already
	}
	l.mu.Unlock()
}

// run is the loop's goroutine. It ends after a kill, or a drain when nothing is left.
func (l *loop) run() {
	defer l.end()
	for {
		n, err := l.wait()
		if err != nil && err != unix.EINTR {
			l.server.log.Error("rpc: event loop failed", "loop", l.index, "error", err)
			return
		}
		l.now = l.server.clock()
		mailed := false
		for i := range max(n, 0) {
			e := &l.events[i]
			fd := int(e.Fd)
			switch {
			case fd == l.wakeFD:
				mailed = true
			case l.conn(fd) != nil:
				l.ready(l.conn(fd), e.Events)
			case l.listeners[fd] != nil:
				l.accept(l.listeners[fd])
			}
		}
		if mailed {
			l.readMail()
		}
		l.tick()
		if l.killed || l.draining && l.open == 0 {
			return
		}
	}
}

func (l *loop) end() {
	l.stopListening()
	for _, c := range l.conns {
		if c != nil {
			l.close(c, ClosedShutdown)
		}
	}
	l.mu.Lock()
	l.dead = true
	left := l.mailbox
	l.mailbox = nil
	l.closeFDs()
	l.mu.Unlock()
	for _, m := range left { // connections that never got here
		if m.adopt {
			l.reject(m.conn)
		}
		if m.listen != nil {
			unix.Close(m.listen.fd)
			m.listen.ln.Close()
		}
	}
}

func (l *loop) conn(fd int) *Conn {
	if fd < len(l.conns) {
		return l.conns[fd]
	}
	return nil
}

func (l *loop) timeout() int {
	if len(l.timed) > 0 || l.oldest != nil || l.resume != 0 {
		return int(tickTime / time.Millisecond)
	}
	return -1
}

func (l *loop) readMail() {
	var b [8]byte
	_, _ = unix.Read(l.wakeFD, b[:]) // resets the counter
	l.mu.Lock()
	box := l.mailbox
	l.mailbox, l.spare = l.spare[:0], nil
	l.signaled = false
	l.mu.Unlock()
	for i := range box {
		m := &box[i]
		switch {
		case m.adopt:
			l.adopt(m.conn)
		case m.close:
			l.close(m.conn, ClosedRequested)
		case m.listen != nil:
			l.listen(m.listen)
		case m.drain:
			l.drain()
		case m.kill:
			l.killed = true
		default:
			l.deliver(m.conn, m.answer)
		}
		box[i] = mail{}
	}
	l.spare = box
}

// ready handles the events of one connection.
func (l *loop) ready(c *Conn, events uint32) {
	if events&unix.EPOLLOUT != 0 {
		l.flushBacklog(c)
	}
	if c.closed || events&^unix.EPOLLOUT == 0 {
		return
	}
	if c.paused || l.draining { // reported without being asked for: the connection is broken
		if events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			l.close(c, ClosedByPeer)
		}
		return
	}
	l.read(c)
}

// interest makes epoll watch for events on c.
func (l *loop) interest(c *Conn, events uint32) {
	if c.interest == events || c.closed {
		return
	}
	if err := l.watch(unix.EPOLL_CTL_MOD, c.fd, events); err != nil {
		l.server.log.Error("rpc: cannot watch a connection", "peer", c.addr, "error", err)
		l.close(c, ClosedError)
		return
	}
	c.interest = events
}

// updateInterest derives what to watch from the state of c.
func (l *loop) updateInterest(c *Conn) {
	var events uint32
	if !c.paused && !l.draining {
		events = unix.EPOLLIN
	}
	if len(c.out) > 0 {
		events |= unix.EPOLLOUT
	}
	l.interest(c, events)
}

func (l *loop) listen(ln *listener) {
	if l.draining {
		unix.Close(ln.fd)
		ln.ln.Close()
		return
	}
	if err := l.watch(unix.EPOLL_CTL_ADD, ln.fd, unix.EPOLLIN); err != nil {
		l.server.log.Error("rpc: cannot watch a listener", "address", ln.ln.Addr(), "error", err)
		unix.Close(ln.fd)
		ln.ln.Close()
		return
	}
	l.listeners[ln.fd] = ln
}

func (l *loop) stopListening() {
	for fd, ln := range l.listeners {
		unix.Close(fd)
		ln.ln.Close()
		delete(l.listeners, fd)
	}
}

func (l *loop) accept(ln *listener) {
	for range acceptBatch {
		fd, sa, err := unix.Accept4(ln.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			l.server.admit(fd, addrOf(sa), ln.label)
			continue
		case unix.EAGAIN:
			return
		case unix.EINTR, unix.ECONNABORTED:
			continue
		case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS:
			// The pending connection stays readable; look away for a moment instead of spinning.
			l.server.stats.refuse("descriptors")
			l.resume = l.now + int64(acceptPause)
			for fd := range l.listeners {
				_ = l.watch(unix.EPOLL_CTL_MOD, fd, 0)
			}
			return
		default:
			l.server.log.Error("rpc: accept failed", "address", ln.ln.Addr(), "error", err)
			return
		}
	}
}

func addrOf(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		a := netip.AddrFrom16(sa.Addr).Unmap()
		if sa.ZoneId != 0 && a.Is6() {
			if i, err := net.InterfaceByIndex(int(sa.ZoneId)); err == nil {
				a = a.WithZone(i.Name)
			}
		}
		return netip.AddrPortFrom(a, uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// adopt takes a new connection.
func (l *loop) adopt(c *Conn) {
	for len(l.conns) <= c.fd {
		l.conns = append(l.conns, make([]*Conn, max(64, len(l.conns), c.fd+1-len(l.conns)))...)
	}
	if l.draining {
		l.reject(c)
		return
	}
	l.conns[c.fd] = c
	l.open++
	c.interest = unix.EPOLLIN
	c.lastActive = l.now
	l.touchIdle(c)
	if l.server.opts.OnOpen != nil {
		l.server.opts.OnOpen(c)
	}
	if err := l.watch(unix.EPOLL_CTL_ADD, c.fd, unix.EPOLLIN); err != nil {
		l.server.log.Error("rpc: cannot watch a connection", "peer", c.addr, "error", err)
		l.close(c, ClosedError)
	}
}

// reject closes a connection that was accepted but not adopted.
func (l *loop) reject(c *Conn) {
	c.closed = true
	unix.Close(c.fd)
	l.server.peers.remove(c.peer)
	l.server.connections.Add(-1)
	l.server.stats.closed[ClosedShutdown].Add(1)
}

// forget removes c from every list, without closing its descriptor.
func (l *loop) forget(c *Conn, reason CloseReason) {
	c.closed = true
	l.conns[c.fd] = nil
	l.open--
	delete(l.timed, c)
	l.unlinkIdle(c)
	l.server.buffered.Add(-int64(cap(c.in) + cap(c.out)))
	c.in, c.out = nil, nil
	c.cancelContext()
	l.server.connections.Add(-1)
	l.server.stats.closed[reason].Add(1)
	if f := l.server.opts.OnClose; f != nil {
		info := CloseInfo{Reason: reason, Answered: c.lastAnswer != 0, LastFunction: c.lastFunction}
		if info.Answered {
			info.SinceAnswer = time.Duration(l.server.clock() - c.lastAnswer)
		}
		f(c, info)
	}
}

func (l *loop) close(c *Conn, reason CloseReason) {
	if c.closed {
		return
	}
	l.forget(c, reason)
	unix.Close(c.fd) // also removes it from epoll
	l.server.peers.remove(c.peer)
}

// drain stops reading; connections close when their answers have left.
func (l *loop) drain() {
	l.draining = true
	l.stopListening()
	for _, c := range l.conns {
		if c != nil && !l.closeIfDone(c) {
			l.updateInterest(c)
		}
	}
}

func (l *loop) closeIfDone(c *Conn) bool {
	if l.draining && !c.closed && c.slow == 0 && len(c.out) == 0 {
		l.close(c, ClosedShutdown)
	}
	return c.closed
}

// Timeouts.

func (l *loop) tick() {
	if l.now < l.nextTick {
		return
	}
	l.nextTick = l.now + int64(tickTime)
	cfg := &l.server.cfg
	for c := range l.timed {
		switch {
		case len(c.out) > 0 && l.now-c.outSince > int64(cfg.WriteTimeout)+perMiB(len(c.out)):
			l.close(c, ClosedWrite)
		case len(c.in) > 0 && !c.paused && l.now-c.inSince > int64(cfg.ReadTimeout)+perMiB(len(c.in)):
			l.close(c, ClosedRead)
		case len(c.in) == 0 && len(c.out) == 0:
			delete(l.timed, c)
			c.timed = false
		}
	}
	for c := l.oldest; c != nil && l.now-c.lastActive > int64(cfg.IdleTimeout); c = l.oldest {
		if c.slow > 0 || len(c.out) > 0 || c.paused {
			c.lastActive = l.now
			l.touchIdle(c)
			continue
		}
		l.close(c, ClosedIdle)
	}
	if l.resume != 0 && l.now >= l.resume {
		l.resume = 0
		for fd := range l.listeners {
			_ = l.watch(unix.EPOLL_CTL_MOD, fd, unix.EPOLLIN)
		}
	}
}

// perMiB is one second for each MiB: what the slowest tolerated peer moves.
func perMiB(n int) int64 { return int64(n>>20) * int64(time.Second) }

func (l *loop) setTimed(c *Conn) {
	if !c.timed {
		c.timed = true
		l.timed[c] = struct{}{}
	}
}

// touchIdle moves c to the young end of the idle list.
func (l *loop) touchIdle(c *Conn) {
	if l.server.cfg.IdleTimeout <= 0 || l.newest == c {
		return
	}
	l.unlinkIdle(c)
	c.older = l.newest
	if l.newest != nil {
		l.newest.newer = c
	}
	l.newest = c
	if l.oldest == nil {
		l.oldest = c
	}
}

func (l *loop) unlinkIdle(c *Conn) {
	if c.newer != nil {
		c.newer.older = c.older
	} else if l.newest == c {
		l.newest = c.older
	}
	if c.older != nil {
		c.older.newer = c.newer
	} else if l.oldest == c {
		l.oldest = c.newer
	}
	c.newer, c.older = nil, nil
}
