package rpc

import (
	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/internal/rawsock"
)

// read takes what the socket has, once, and serves the whole requests in it.
func (l *loop) read(c *Conn) {
	buf := l.rbuf
	if c.in != nil { // behind the beginning of a request
		if !l.growInput(c) {
			return
		}
		buf = c.in[len(c.in):cap(c.in)]
	}
	n, err := rawsock.Recv(c.fd, buf)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return
	case err != nil || n == 0:
		l.close(c, ClosedByPeer)
		return
	}
	l.server.stats.received.Add(uint64(n))
	if c.lastActive != l.now {
		c.lastActive = l.now
		l.touchIdle(c)
	}
	if c.in != nil {
		c.in = c.in[:len(c.in)+n]
		l.consume(c, c.in)
		return
	}
	l.consume(c, buf[:n])
}

// consume serves the whole requests in data, which is c.in or the shared read buffer, sends their
// answers and keeps the rest.
func (l *loop) consume(c *Conn, data []byte) {
	used := l.process(c, data)
	l.flush(c)
	if c.closed {
		return
	}
	if len(c.out) > 0 && !c.paused {
		l.pause(c, "output")
	}
	if l.keepInput(c, data[used:], used > 0) {
		l.updateInterest(c)
	}
}

// process serves requests until data holds no whole one or the connection pauses or closes, and
// returns how many bytes it used.
func (l *loop) process(c *Conn, data []byte) (used int) {
	cfg := &l.server.cfg
	for {
		b := data[used:]
		if len(b) == 0 {
			return used
		}
		if !c.greeted {
			if b[0] != magic {
				l.greet(c, b)
				return used
			}
			c.greeted = true
		}
		if len(b) < RequestHeaderSize {
			return used
		}
		h, ok := parseRequest(b)
		size := h.size()
		if !ok || size-RequestHeaderSize > uint64(cfg.MaxBody) {
			l.flush(c) // answers to the requests before
			reason := ClosedProtocol
			if ok {
				reason = ClosedBodyCap
			}
			l.close(c, reason)
			return used
		}
		if uint64(len(b)) < size {
			return used
		}
		// A connection whose slow requests fill the workers waits for one of them to end; others
		// may go on, so the limits can be exceeded by one request each.
		if c.slow > 0 {
			if int(c.peer.inFlight.Load()) >= cfg.MaxInFlightPerIP {
				l.pause(c, "address")
				return used
			}
			if l.server.slow.Load() >= int64(cfg.MaxQueued) {
				l.pause(c, "workers")
				return used
			}
		}
		l.serve(c, h, b[RequestHeaderSize:RequestHeaderSize+h.body])
		used += int(size)
		if len(l.out) >= flushSize {
			if l.flush(c); c.closed {
				return used
			}
			if len(c.out) > 0 {
				l.pause(c, "output")
				return used
			}
		}
	}
}

// serve handles one request; an answer given at once is appended to l.out.
func (l *loop) serve(c *Conn, h requestHeader, body []byte) {
	c.lastFunction = h.function
	fn := l.server.functions[h.function]
	if fn == nil {
		l.server.unknown.calls[l.index].Add(1)
		l.server.stats.countError(CodeUnknownFunction)
		l.out = appendError(l.out, h.seq, CodeUnknownFunction, textUnknownFunction)
		return
	}
	fn.calls[l.index].Add(1)
	call := &l.call
	*call = Call{server: l.server, conn: c, fn: fn, seq: h.seq, body: body, out: l.out, at: len(l.out),
		literal: wantsLiteral(body), received: l.now}
	if fn.slow || len(body) > int(l.server.cfg.SlowBody) {
		l.dispatch(call.slowCall(fn.handler))
		return
	}
	call.run(fn.handler)
	if call.state == callLater {
		l.dispatch(call.slowCall(call.later))
	} else {
		l.out = call.out
	}
	if l.server.opts.Scribble {
		scribble(body)
	}
}

// dispatch hands a call to the workers.
func (l *loop) dispatch(call *Call) {
	call.conn.slow++
	call.conn.peer.inFlight.Add(1)
	l.server.slow.Add(1)
	l.server.workers.submit(call)
}

// deliver sends the answer of a slow call.
func (l *loop) deliver(c *Conn, answer []byte) {
	c.slow--
	c.peer.inFlight.Add(-1)
	l.server.slow.Add(-1)
	if c.closed {
		return
	}
	c.lastActive = l.now
	l.touchIdle(c)
	l.send(c, answer)
	if c.closed {
		return
	}
	if c.paused && len(c.out) == 0 {
		l.unpause(c)
	} else {
		l.updateInterest(c)
	}
	l.closeIfDone(c)
}

func (l *loop) pause(c *Conn, reason string) {
	c.paused = true
	l.server.stats.paused[reason].Add(1)
}

// unpause goes on with what was received before the pause, then with reading.
func (l *loop) unpause(c *Conn) {
	c.paused = false
	if l.draining {
		return
	}
	if c.in != nil {
		c.inSince = l.now // the wait was ours
		l.consume(c, c.in)
		return
	}
	l.updateInterest(c)
}

// Output.

// flush writes the answers in l.out, which belong to c; if c has been closed they are dropped.
func (l *loop) flush(c *Conn) {
	b := l.out
	if cap(b) > keepOutput {
		l.out = nil
	} else {
		l.out = b[:0]
	}
	if len(b) > 0 && !c.closed {
		l.send(c, b)
	}
}

// send writes b behind what is unsent already. It copies what the socket does not take.
func (l *loop) send(c *Conn, b []byte) {
	c.lastAnswer = l.now
	if len(c.out) == 0 {
		n, ok := l.write(c, b)
		if !ok || n == len(b) {
			return
		}
		b = b[n:]
		c.outSince = l.now
		l.setTimed(c)
	}
	if len(c.out)-c.sent+len(b) > int(l.server.cfg.MaxOutput)+ResponseHeaderSize {
		l.close(c, ClosedOutputCap)
		return
	}
	if c.sent > 0 { // keep the backlog from growing by what has left already
		c.out = c.out[:copy(c.out, c.out[c.sent:])]
		c.sent = 0
	}
	before := cap(c.out)
	c.out = append(c.out, b...)
	l.charge(c, cap(c.out)-before)
}

// write writes once; false means that the connection was closed.
func (l *loop) write(c *Conn, b []byte) (int, bool) {
	for {
		n, err := rawsock.Send(c.fd, b)
		switch err {
		case nil:
			l.server.stats.sent.Add(uint64(n))
			return n, true
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return 0, true
		}
		l.close(c, ClosedByPeer)
		return 0, false
	}
}

// flushBacklog continues with unsent answers when the socket has room.
func (l *loop) flushBacklog(c *Conn) {
	if len(c.out) == 0 {
		l.updateInterest(c)
		return
	}
	n, ok := l.write(c, c.out[c.sent:])
	if !ok {
		return
	}
	if c.sent += n; c.sent < len(c.out) {
		return
	}
	c.sent = 0
	l.setOutput(c, nil)
	if l.closeIfDone(c) {
		return
	}
	if c.paused {
		l.unpause(c)
	} else {
		l.updateInterest(c)
	}
}

// Input.

// growInput makes room behind c.in: twice as much as before, but never more than the request needs,
// so that a header alone cannot claim memory.
func (l *loop) growInput(c *Conn) bool {
	if len(c.in) < cap(c.in) {
		return true
	}
	size := 2 * cap(c.in)
	if h, ok := parseRequest(c.in); ok {
		size = min(size, max(int(h.size()), len(c.in)+smallestInput))
	}
	return l.setInput(c, append(make([]byte, 0, size), c.in...))
}

// keepInput stores the unused rest of what was received; false means that c was closed. progress
// tells that the rest begins a new request.
func (l *loop) keepInput(c *Conn, rest []byte, progress bool) bool {
	if len(rest) == 0 {
		return l.setInput(c, nil)
	}
	fresh := c.in == nil
	if fresh || progress {
		c.inSince = l.now
	}
	l.setTimed(c)
	size := max(len(rest), smallestInput)
	if fresh || cap(c.in) > 4*size {
		return l.setInput(c, append(make([]byte, 0, size), rest...))
	}
	c.in = c.in[:copy(c.in, rest)]
	return true
}

func (l *loop) setInput(c *Conn, b []byte) bool {
	change := cap(b) - cap(c.in)
	c.in = b
	return l.charge(c, change)
}

func (l *loop) setOutput(c *Conn, b []byte) bool {
	change := cap(b) - cap(c.out)
	c.out = b
	return l.charge(c, change)
}

// charge adds to the buffered bytes; false means that there was no room and c was closed.
func (l *loop) charge(c *Conn, n int) bool {
	if n == 0 {
		return true
	}
	if l.server.buffered.Add(int64(n)) > int64(l.server.cfg.MaxBuffered) && n > 0 {
		l.close(c, ClosedBuffered)
		return false
	}
	return true
}

func scribble(b []byte) {
	for i := range b {
		b[i] = 0xdb
	}
}
