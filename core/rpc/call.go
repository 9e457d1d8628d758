package rpc

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/structpack"
)

// Handler serves one request. It answers exactly once, with Done, Reply or Fail, before it returns;
// or it calls Later. Handlers of one server run concurrently. A panic becomes an answer with
// [CodeHandlerFailed].
//
// On the event loop it must not block. The Call and Body are valid only until the handler returns:
// Body is the connection's read buffer.
type Handler func(c *Call)

// Call is one request being served. Not safe for concurrent use.
type Call struct {
	server   *Server
	conn     *Conn
	fn       *function
	seq      uint32
	body     []byte
	out      []byte // the answer is appended behind out[:at]
	at       int
	state    callState
	literal  bool
	ctx      context.Context // nil on the loop
	later    Handler
	received int64 // loop clock
}

type callState uint8

const (
	callOpen callState = iota
	callAnswered
	callLater
)

// Body returns the request's body. It must not be changed.
func (c *Call) Body() []byte { return c.body }

// Function returns the function id.
func (c *Call) Function() uint32 { return c.fn.ID }

// Conn returns the connection that the request came on.
func (c *Call) Conn() *Conn { return c.conn }

// Literal reports whether the answer should carry its type literal, as the request did. Requests
// without a body count as with; error answers always have it.
func (c *Call) Literal() bool { return c.literal }

// Slow reports whether the handler runs on a worker, where it may block.
func (c *Call) Slow() bool { return c.ctx != nil }

// Context ends, on a worker, when slow_timeout has passed, the connection breaks or the server has
// no more time to close. On the loop it is the server's and has no deadline.
func (c *Call) Context() context.Context {
	if c.ctx != nil {
		return c.ctx
	}
	return c.server.ctx
}

// Buffer returns a buffer to which the caller appends the answer's body; Done takes it back:
//
//	buf, err := message.Append(c.Buffer(), &value, c.Literal())
//	c.Done(buf)
//
// What is in the buffer must not be changed. A handler that fails after Buffer calls Fail instead.
func (c *Call) Buffer() []byte {
	if c.state != callOpen { // a mistake, which Done reports; the first answer must survive it
		return appendResponseHeader(nil, 0, c.seq)
	}
	return appendResponseHeader(c.out[:c.at], 0, c.seq)
}

// Answered reports whether the call was answered or postponed.
func (c *Call) Answered() bool { return c.state != callOpen }

// Done completes the answer whose body was appended to Buffer's slice.
func (c *Call) Done(buf []byte) {
	if !c.answer() {
		return
	}
	c.out = buf
	if n := len(buf) - c.at - ResponseHeaderSize; uint64(n) > uint64(c.server.cfg.MaxOutput) {
		c.fail(CodeTooLarge, fmt.Sprintf("the answer has %d bytes, more than max_output", n))
		return
	}
	finishResponse(buf, c.at)
}

// Reply answers with a body.
func (c *Call) Reply(body []byte) { c.Done(append(c.Buffer(), body...)) }

// Fail answers with an RPC error.
func (c *Call) Fail(code Code, message string) {
	if c.answer() {
		c.fail(code, message)
	}
}

// FailArguments answers that the body is not what the function takes, in the C++ server's words.
func (c *Call) FailArguments() { c.Fail(CodeInvalidArguments, textInvalidArguments) }

func (c *Call) fail(code Code, message string) {
	c.out = appendError(c.out[:c.at], c.seq, code, message)
	c.server.stats.countError(code)
}

// Later lets h serve the request on a worker, with a Call of its own and a copy of the body. The
// handler that calls it returns without an answer. On a worker it runs h at once.
func (c *Call) Later(h Handler) {
	if c.Slow() {
		h(c)
		return
	}
	if c.answer() {
		c.state, c.later = callLater, h
	}
}

func (c *Call) answer() bool {
	if c.state != callOpen {
		c.server.log.Error("rpc: a handler answered twice", "function", c.fn.Name)
		return false
	}
	c.state = callAnswered
	return true
}

// run calls h and makes sure that there is an answer.
func (c *Call) run(h Handler) {
	defer func() {
		if p := recover(); p != nil {
			c.server.log.Error("rpc: a handler panicked", "function", c.fn.Name, "panic", p, "stack", string(debug.Stack()))
			c.state = callAnswered
			c.fail(CodeHandlerFailed, fmt.Sprintf("%s: internal error", c.fn.Name))
			return
		}
		if c.state == callOpen {
			c.server.log.Error("rpc: a handler did not answer", "function", c.fn.Name)
			c.Fail(CodeHandlerFailed, c.fn.Name+": no answer")
		}
	}()
	h(c)
}

// slowCall is the Call of a worker, made from the loop's.
func (c *Call) slowCall(h Handler) *Call {
	return &Call{server: c.server, conn: c.conn, fn: c.fn, seq: c.seq, body: append([]byte(nil), c.body...),
		literal: c.literal, later: h, received: c.received}
}

// serve runs the call on a worker and sends the answer through the loop.
func (c *Call) serve() {
	ctx, cancel := context.WithTimeout(c.conn.context(), c.server.cfg.SlowTimeout)
	c.ctx = ctx
	c.run(c.later)
	cancel()
	c.server.stats.slowSeconds.Observe(time.Duration(c.server.clock() - c.received).Seconds())
	c.conn.loop.post(mail{conn: c.conn, answer: c.out})
}

// wantsLiteral tells the form of the answer to a request: that of the request, and with literal if
// its body is too short to tell. Every peer reads both forms.
func wantsLiteral(body []byte) bool { return len(body) < 4 || structpack.HasLiteral(body) }
