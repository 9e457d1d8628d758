package rpc

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/internal/spin"
)

const clientReadBuffer = 64 << 10

// clientConn is one connection of a client: a goroutine that reads answers, and callers that write.
type clientConn struct {
	client   *Client
	nc       net.Conn
	raw      syscall.RawConn // nil: writes cannot be tried without blocking
	try      func(fd uintptr) bool
	tryBuf   []byte
	tryN     int
	tryErr   error
	load     atomic.Int64 // calls that hold a place
	lastUsed atomicTime
	received atomic.Uint64 // bytes
	closing  atomic.Bool   // broken on purpose

	choice spin.Choice           // of how to wait
	look   func(fd uintptr) bool // readOrSleep and tryReading, as values that are made once
	peek   func(fd uintptr)
	inMu   sync.Mutex // held while answers are taken
	in     intake
	inN    int
	inErr  error // why no more answers come

	mu      sync.Mutex
	seq     uint32
	pending map[uint32]*pendingCall
	queue   []byte // frames to write
	spare   []byte
	writing bool // somebody writes what is in the queue
	err     error
}

// newClientConn starts the reader. c.mu is held.
func newClientConn(c *Client, nc net.Conn) *clientConn {
	x := &clientConn{client: c, nc: nc, pending: map[uint32]*pendingCall{}, in: intake{buf: make([]byte, clientReadBuffer)}}
	x.lastUsed.Store(time.Now().UnixNano())
	if t, ok := nc.(*net.TCPConn); ok {
		_ = t.SetNoDelay(true)
	}
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			x.raw, x.look, x.peek = raw, x.readOrSleep, x.tryReading
			x.try = func(fd uintptr) bool {
				x.tryN, x.tryErr = unix.Write(int(fd), x.tryBuf)
				return true
			}
		}
	}
	c.wg.Go(x.read)
	return x
}

// send queues a request and sees to it that it is written.
func (x *clientConn) send(function uint32, body []byte) (*pendingCall, error) {
	p := &pendingCall{done: make(chan struct{})}
	x.mu.Lock()
	if x.err != nil {
		x.mu.Unlock()
		x.leave()
		return nil, errNotSent
	}
	seq := x.seq
	for x.pending[seq] != nil { // 2^32 calls ago, and never answered
		seq++
	}
	x.seq = seq + 1
	x.pending[seq] = p
	p.before = x.received.Load()
	at := len(x.queue)
	x.queue = appendRequestHeader(x.queue, function)
	x.queue = finishRequest(append(x.queue, body...), at, seq)
	if x.writing {
		x.mu.Unlock()
		return p, nil
	}
	x.writing = true
	x.flush()
	return p, nil
}

// flush writes the queue. x.mu is held and x.writing set by the caller; both are given up. What the
// socket does not take at once is left to a goroutine, because a caller must not wait longer than its
// context.
func (x *clientConn) flush() {
	for len(x.queue) > 0 && x.err == nil {
		b := x.queue
		x.queue, x.spare = x.spare, nil
		x.mu.Unlock()
		n := x.tryWrite(b)
		x.mu.Lock()
		if n < len(b) && x.err == nil { // the reader lives, so the client still waits for goroutines
			x.client.wg.Go(func() { x.writeRest(b, n) })
			x.mu.Unlock()
			return
		}
		x.recycle(b)
	}
	x.writing = false
	x.mu.Unlock()
}

// writeRest writes b[n:], then the queue.
func (x *clientConn) writeRest(b []byte, n int) {
	_ = x.nc.SetWriteDeadline(time.Now().Add(x.client.cfg.Timeout))
	if _, err := x.nc.Write(b[n:]); err != nil {
		x.fail(fmt.Errorf("%w: write: %w", ErrConnectionLost, err))
	}
	_ = x.nc.SetWriteDeadline(time.Time{})
	x.mu.Lock()
	x.recycle(b)
	x.flush()
}

func (x *clientConn) recycle(b []byte) {
	if cap(b) <= bodyChunk {
		x.spare = b[:0]
	}
}

// tryWrite writes what the socket takes without blocking. Errors show again in the blocking write.
func (x *clientConn) tryWrite(b []byte) int {
	if x.raw == nil {
		return 0
	}
	x.tryBuf, x.tryN, x.tryErr = b, 0, nil
	err := x.raw.Write(x.try)
	x.tryBuf = nil
	if err != nil || x.tryErr != nil {
		return 0
	}
	return x.tryN
}

// read delivers answers until the connection ends.
func (x *clientConn) read() {
	x.fail(x.readAnswers())
}

// readAnswers takes what comes. Between two answers it sleeps; meanwhile a caller may take them (see spin), so that
// answers are taken with x.inMu held.
func (x *clientConn) readAnswers() error {
	if x.raw == nil {
		for {
			n, err := x.nc.Read(x.in.room())
			if err != nil {
				return fmt.Errorf("%w: %w", ErrConnectionLost, err)
			}
			if err := x.took(n); err != nil {
				return err
			}
		}
	}
	for {
		if err := x.raw.Read(x.look); err != nil {
			x.inMu.Lock()
			found := x.inErr // by spin, which has woken this goroutine
			x.inMu.Unlock()
			if found != nil {
				return found
			}
			return fmt.Errorf("%w: %w", ErrConnectionLost, err)
		}
		err := x.settle()
		x.inMu.Unlock()
		if err != nil {
			return err
		}
	}
}

// readOrSleep reads, and is false when nothing is there, else x.inMu is held on return. It runs inside a RawConn, which
// Close waits for: nobody closes a connection while it holds a lock that taking answers needs.
func (x *clientConn) readOrSleep(fd uintptr) bool {
	x.inMu.Lock()
	x.tryReading(fd)
	if x.inN < 0 && x.inErr == nil {
		x.inMu.Unlock()
		return false
	}
	return true
}

// tryReading reads what the socket has: x.inN bytes, -1 if there are none. x.inMu is held.
func (x *clientConn) tryReading(fd uintptr) {
	if x.inN = -1; x.inErr != nil {
		return
	}
	n, err := unix.Read(int(fd), x.in.room())
	for err == unix.EINTR {
		n, err = unix.Read(int(fd), x.in.room())
	}
	switch {
	case err == unix.EAGAIN:
	case err != nil:
		x.inErr = fmt.Errorf("%w: read: %w", ErrConnectionLost, err)
	case n == 0:
		x.inErr = fmt.Errorf("%w: %w", ErrConnectionLost, io.EOF)
	default:
		x.inN = n
	}
}

// settle takes what tryReading has read. x.inMu is held.
func (x *clientConn) settle() error {
	if x.inErr == nil && x.inN > 0 {
		x.inErr = x.took(x.inN)
	}
	return x.inErr
}

// spin takes answers in the goroutine of a caller for a moment: most come so soon that waking the reader would take
// longer. The reader finds the rest, and is woken for an error. False means that it did not
// look, because others do.
func (x *clientConn) spin(p *pendingCall) bool {
	if x.raw == nil || !spin.Enter() {
		return false
	}
	defer spin.Leave()
	if !x.inMu.TryLock() {
		return false
	}
	spin.Until(func() bool {
		if x.raw.Control(x.peek) != nil || x.settle() != nil {
			return true
		}
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	})
	bad := x.inErr != nil
	x.inMu.Unlock()
	if bad {
		// epoll reports what there is to read when it is asked, so the reader may not hear of bytes that were taken here.
		_ = x.nc.SetReadDeadline(time.Unix(1, 0))
	}
	return true
}

// took takes n bytes that lie where x.in wanted them.
func (x *clientConn) took(n int) error {
	x.received.Add(uint64(n))
	x.in.add(n)
	for {
		h, body, ok, err := x.in.next(uint64(x.client.cfg.MaxBody))
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrConnectionLost, err)
		case !ok:
			return nil
		case !x.complete(h, body):
			return fmt.Errorf("%w: %w: no call has sequence %d", ErrConnectionLost, ErrBadAnswer, h.seq)
		}
	}
}

// complete hands an answer to its call; false means that there is none.
func (x *clientConn) complete(h responseHeader, body []byte) bool {
	x.mu.Lock()
	p := x.pending[h.seq]
	delete(x.pending, h.seq)
	x.mu.Unlock()
	if p == nil {
		return false
	}
	p.answer = body
	if h.code != 0 {
		p.answer = nil
		remote, err := decodeError(h.code, body)
		p.err = remote
		if err != nil {
			p.err = fmt.Errorf("%w: error answer with code %d: %w", ErrBadAnswer, h.code, err)
		}
	}
	x.leave()
	close(p.done)
	return true
}

// leave gives back a place for a call.
func (x *clientConn) leave() {
	x.lastUsed.Store(time.Now().UnixNano())
	x.load.Add(-1)
	x.client.released()
}

// abandon gives up waiting for p. done tells that it ended meanwhile. The place stays taken until the
// answer comes. silent means that p timed out: if nothing at all has come since p was sent, the
// connection is taken for dead.
func (x *clientConn) abandon(p *pendingCall, silent bool) (answer []byte, err error, done bool) {
	x.mu.Lock()
	select {
	case <-p.done:
		x.mu.Unlock()
		answer, err = p.result()
		return answer, err, true
	default:
	}
	dead := silent && x.received.Load() == p.before
	x.mu.Unlock()
	if dead {
		x.fail(fmt.Errorf("%w: the server is silent", ErrConnectionLost))
	}
	return nil, nil, false
}

// fail ends the connection and all its calls. The first reason counts.
func (x *clientConn) fail(err error) {
	x.client.drop(x)
	x.nc.Close()
	if x.closing.Load() {
		err = ErrClosed
	}
	x.mu.Lock()
	if x.err != nil {
		x.mu.Unlock()
		return
	}
	x.err = err
	calls := x.pending
	x.pending, x.queue, x.spare = nil, nil, nil
	x.mu.Unlock()
	for _, p := range calls {
		p.err = err
		x.leave()
		close(p.done)
	}
}
