package mover

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// The bytes of the wire.
const (
	askRead  = 'r'
	askWrite = 'w'
	askLen   = 17

	answerOK       = 0
	answerRejected = 1
)

// piece is what is moved between two looks at the clock.
const piece = 1 << 20

// line is one connection.
type line struct {
	c     *net.UnixConn
	stall time.Duration
	why   atomic.Pointer[error] // set by abort
	ask   [askLen]byte
}

// sendBuffer is what the kernel holds between the two processes; the more, the fewer times they wait for each other. The
// kernel's limit (net.core.wmem_max) may be less.
const sendBuffer = 1 << 20

func newLine(c *net.UnixConn, stall time.Duration) *line {
	_ = c.SetWriteBuffer(sendBuffer) // works without it too
	return &line{c: c, stall: stall}
}

// abort ends the request that the connection carries; whoever moves its bytes reports it.
func (l *line) abort(err error) {
	if l.why.CompareAndSwap(nil, &err) {
		l.c.Close()
	}
}

// failed explains an error of the connection: by abort's reason if there is one.
func (l *line) failed(err error) error {
	if why := l.why.Load(); why != nil {
		return *why
	}
	if e, ok := err.(net.Error); ok && e.Timeout() {
		return fmt.Errorf("the peer moved nothing for %v: %w: %w", l.stall, transports.ErrTimeout, err)
	}
	return fmt.Errorf("%w: %w", transports.ErrInterrupted, err)
}

// send writes head and body.
func (l *line) send(head, body []byte) error {
	for {
		n := min(len(body), piece)
		l.c.SetDeadline(time.Now().Add(l.stall))
		if _, err := (&net.Buffers{head, body[:n]}).WriteTo(l.c); err != nil {
			return err
		}
		if head, body = nil, body[n:]; len(body) == 0 {
			return nil
		}
	}
}

// receive fills b.
func (l *line) receive(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), piece)
		l.c.SetDeadline(time.Now().Add(l.stall))
		if _, err := io.ReadFull(l.c, b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// move runs one request. answered tells whether the target said anything.
func (l *line) move(write bool, addr uint64, local []byte) (answered bool, err error) {
	l.ask[0] = askRead
	body := []byte(nil)
	if write {
		l.ask[0], body = askWrite, local
	}
	binary.LittleEndian.PutUint64(l.ask[1:], addr)
	binary.LittleEndian.PutUint64(l.ask[9:], uint64(len(local)))
	if err := l.send(l.ask[:], body); err != nil {
		return false, err
	}
	answer := l.ask[:1]
	if err := l.receive(answer); err != nil {
		return false, err
	}
	switch {
	case answer[0] == answerRejected:
		return true, errRejected
	case answer[0] != answerOK:
		return true, fmt.Errorf("answer %d: %w", answer[0], transports.ErrProtocol)
	case write:
		return true, nil
	}
	return true, l.receive(local)
}

// errRejected leaves the connection usable.
var errRejected = fmt.Errorf("the peer has no such range for this: %w", transports.ErrRejected)

func (t *Transport) accept(ln *net.UnixListener) {
	for {
		c, err := ln.AcceptUnix()
		if err != nil {
			t.mu.Lock()
			closed := t.closed
			t.mu.Unlock()
			if closed {
				return
			}
			time.Sleep(20 * time.Millisecond) // out of file descriptors: others may give some back
			continue
		}
		l := newLine(c, t.cfg.Stall)
		t.mu.Lock()
		if t.closed {
			c.Close()
		} else {
			t.serving[l] = struct{}{}
			t.wg.Go(func() {
				t.serve(l)
				t.mu.Lock()
				delete(t.serving, l)
				t.mu.Unlock()
				c.Close()
			})
		}
		t.mu.Unlock()
	}
}

// serve answers the requests of one connection until it ends or something is wrong with it.
func (t *Transport) serve(l *line) {
	if checkUser(l.c) != nil {
		return
	}
	for {
		l.c.SetDeadline(time.Time{}) // idle connections may be as old as they like
		if _, err := io.ReadFull(l.c, l.ask[:]); err != nil {
			return
		}
		write := l.ask[0] == askWrite
		addr, n := binary.LittleEndian.Uint64(l.ask[1:]), binary.LittleEndian.Uint64(l.ask[9:])
		if !write && l.ask[0] != askRead {
			return
		}
		if !t.answer(l, write, addr, n) {
			return
		}
	}
}

// answer serves one request; false ends the connection.
func (t *Transport) answer(l *line, write bool, addr, n uint64) bool {
	need := transports.RemoteRead
	if write {
		need = transports.RemoteWrite
	}
	r := t.regions.hold(l, addr, n)
	if r == nil || r.Access()&need == 0 {
		r.release(l)
		if write { // its bytes are under way
			l.c.SetDeadline(time.Now().Add(l.stall))
			if _, err := io.CopyN(io.Discard, l.c, int64(n)); err != nil {
				return false
			}
		}
		return l.send([]byte{answerRejected}, nil) == nil
	}
	defer r.release(l)
	mem := r.Bytes()[addr-r.Addr():][:n]
	if !write {
		return l.send([]byte{answerOK}, mem) == nil
	}
	return l.receive(mem) == nil && l.send([]byte{answerOK}, nil) == nil
}
