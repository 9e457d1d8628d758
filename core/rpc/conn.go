package rpc

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is one connection of a server, as handlers see it. Its methods are safe for concurrent use.
type Conn struct {
	id    uint64
	addr  netip.AddrPort
	label any
	loop  *loop
	user  atomic.Pointer[any]

	ctxOnce sync.Once
	ctx     context.Context
	cancel  context.CancelFunc

	// The rest belongs to the loop.
	fd       int
	peer     *peer
	in       []byte // received and not yet consumed; nil most of the time
	out      []byte // answers that the socket did not take yet
	sent     int    // of out
	slow     int    // requests on workers
	interest uint32 // what epoll watches
	paused   bool   // not read: answers are stuck or workers are full
	closed   bool
	greeted  bool // first bytes were seen to be RPC
	timed    bool // member of loop.timed

	inSince, outSince int64 // loop clock: when a partial request or unsent answers began to wait
	lastActive        int64
	lastAnswer        int64
	lastFunction      uint32
	newer, older      *Conn // idle list
}

// ID numbers the connections of a server from 1.
func (c *Conn) ID() uint64 { return c.id }

// RemoteAddr returns the peer's address; the zero value for a Unix socket.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.addr }

// Label returns what was given to [Server.Listen] with the listener that accepted the connection.
func (c *Conn) Label() any { return c.label }

// SetData attaches a value for later calls on this connection.
func (c *Conn) SetData(v any) { c.user.Store(&v) }

// Data returns the value of SetData, nil before.
func (c *Conn) Data() any {
	if p := c.user.Load(); p != nil {
		return *p
	}
	return nil
}

// Close closes the connection soon, without waiting for unsent answers.
func (c *Conn) Close() { c.loop.post(mail{conn: c, close: true}) }

// context ends with the connection.
func (c *Conn) context() context.Context {
	c.ctxOnce.Do(func() { c.ctx, c.cancel = context.WithCancel(c.loop.server.ctx) })
	return c.ctx
}

func (c *Conn) cancelContext() {
	c.ctxOnce.Do(func() { c.ctx, c.cancel = context.WithCancel(c.loop.server.ctx) })
	c.cancel()
}

// CloseReason tells why a connection ended.
type CloseReason string

// The reasons.
const (
	ClosedByPeer    CloseReason = "peer"          // end of stream or reset
	ClosedProtocol  CloseReason = "protocol"      // not coro_rpc
	ClosedBodyCap   CloseReason = "body_cap"      // a request above max_body
	ClosedOutputCap CloseReason = "output_cap"    // unsent answers above max_output
	ClosedBuffered  CloseReason = "buffered_cap"  // max_buffered reached
	ClosedRead      CloseReason = "read_timeout"  // a partial request waited too long
	ClosedWrite     CloseReason = "write_timeout" // the peer does not read its answers
	ClosedIdle      CloseReason = "idle_timeout"
	ClosedHandover  CloseReason = "http"     // now served as HTTP
	ClosedRequested CloseReason = "handler"  // Conn.Close
	ClosedShutdown  CloseReason = "shutdown" // Server.Close
	ClosedError     CloseReason = "error"
)

var closeReasons = []CloseReason{ClosedByPeer, ClosedProtocol, ClosedBodyCap, ClosedOutputCap, ClosedBuffered, ClosedRead, ClosedWrite,
	ClosedIdle, ClosedHandover, ClosedRequested, ClosedShutdown, ClosedError}

// CloseInfo is what a server knows at the end of a connection.
type CloseInfo struct {
	Reason CloseReason
	// Answered is false if no request was answered. Otherwise LastFunction was the last one and
	// SinceAnswer passed since: a peer that could not decode an answer hangs up at once.
	Answered     bool
	LastFunction uint32
	SinceAnswer  time.Duration
}

// listener is a socket that a loop accepts from.
type listener struct {
	fd    int
	label any
	ln    net.Listener
}
