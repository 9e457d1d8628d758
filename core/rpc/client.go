package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// spread is how many calls a connection gets before the client opens another one.
const spread = 8

// ClientOptions are optional.
type ClientOptions struct {
	// Dial replaces the TCP dialer.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Client calls one server over a few pipelined connections, which it opens when calls need them and
// again after they broke. Safe for concurrent use.
//
// A call that was sent is never sent again: after [ErrConnectionLost] and [ErrTimeout] the caller decides,
// since the server may have served it.
type Client struct {
	address string
	cfg     ClientConfig
	dial    func(ctx context.Context, address string) (net.Conn, error)
	ctx     context.Context // of dialling
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu     sync.Mutex
	conns  []*clientConn
	flight *dialFlight   // a connection is being made
	room   chan struct{} // closed when a call ends or a connection comes; nil when nobody waits
	reaper *time.Timer
	closed bool
}

// dialFlight is one attempt to connect that any number of calls wait for.
type dialFlight struct {
	done chan struct{}
	err  error
}

// NewClient makes a client of the server at host:port. It connects at the first call.
func NewClient(address string, cfg ClientConfig, opts ClientOptions) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("rpc: client of %s: %w", address, err)
	}
	c := &Client{address: address, cfg: cfg, dial: opts.Dial}
	if c.dial == nil {
		d := net.Dialer{}
		c.dial = func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// Address returns the server's address.
func (c *Client) Address() string { return c.address }

// Config returns the client's settings.
func (c *Client) Config() ClientConfig { return c.cfg }

// Call sends a request and returns the body of its answer, which the caller owns. Without an earlier
// deadline in ctx the call ends after the configured timeout. Errors are [RemoteError] for an error
// answer, or wrap [ErrDial], [ErrBusy], [ErrTooLarge] (nothing was sent), [ErrConnectionLost], [ErrTimeout],
// [ErrBadAnswer], [ErrClosed] or the cancellation of ctx.
func (c *Client) Call(ctx context.Context, fn Function, body []byte) ([]byte, error) {
	answer, err := c.call(ctx, fn, body)
	if err != nil {
		return nil, fmt.Errorf("rpc: %s at %s: %w", fn.label(), c.address, err)
	}
	return answer, nil
}

func (f Function) label() string {
	if f.Name != "" {
		return f.Name
	}
	return fmt.Sprintf("function %08x", f.ID)
}

func (c *Client) call(ctx context.Context, fn Function, body []byte) ([]byte, error) {
	if uint64(len(body)) > uint64(c.cfg.MaxBody) {
		return nil, fmt.Errorf("%w: %d bytes, max_body is %d", ErrTooLarge, len(body), c.cfg.MaxBody)
	}
	if err := context.Cause(ctx); err != nil {
		return nil, ended(err)
	}
	deadline := time.Now().Add(c.cfg.Timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	timer := timers.Get().(*time.Timer)
	timer.Reset(time.Until(deadline))
	defer func() {
		timer.Stop()
		timers.Put(timer)
	}()
	for {
		conn, err := c.acquire(ctx, timer.C)
		if err != nil {
			return nil, err
		}
		p, err := conn.send(fn.ID, body)
		if errors.Is(err, errNotSent) {
			continue // it broke before; acquire will not give it again
		}
		if err != nil {
			return nil, err
		}
		begin := time.Now()
		looked := conn.choice.Look() && conn.spin(p)
		select {
		case <-p.done:
			conn.choice.Took(looked, time.Since(begin))
			return p.result()
		case <-timer.C:
			if answer, err, done := conn.abandon(p, true); done {
				return answer, err
			}
			return nil, ended(context.DeadlineExceeded)
		case <-ctx.Done():
			if answer, err, done := conn.abandon(p, false); done {
				return answer, err
			}
			return nil, ended(context.Cause(ctx))
		}
	}
}

var timers = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}}

// ended turns the end of a context into the client's error.
func ended(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return err
}

// acquire reserves room for a call on a connection.
func (c *Client) acquire(ctx context.Context, timeout <-chan time.Time) (*clientConn, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, ErrClosed
		}
		best := c.least()
		load := 0
		if best != nil {
			load = int(best.load.Load())
		}
		if (best == nil || load >= spread) && c.flight == nil && len(c.conns) < c.cfg.MaxConnections {
			c.startDial()
		}
		if best != nil && load < c.cfg.Pipeline {
			best.load.Add(1)
			c.mu.Unlock()
			return best, nil
		}
		flight := c.flight
		if best != nil || flight == nil {
			flight = &dialFlight{} // wait for room only; a failed dial is not this call's failure
		}
		if c.room == nil {
			c.room = make(chan struct{})
		}
		room := c.room
		c.mu.Unlock()
		select {
		case <-flight.done:
			if flight.err != nil {
				return nil, flight.err
			}
		case <-room:
		case <-timeout:
			if best == nil {
				return nil, fmt.Errorf("%w: %w", ErrDial, ended(context.DeadlineExceeded))
			}
			return nil, fmt.Errorf("%w: %w", ErrBusy, ended(context.DeadlineExceeded))
		case <-ctx.Done():
			return nil, ended(context.Cause(ctx))
		}
	}
}

// least returns the connection with the fewest calls.
func (c *Client) least() *clientConn {
	var best *clientConn
	for _, x := range c.conns {
		if best == nil || x.load.Load() < best.load.Load() {
			best = x
		}
	}
	return best
}

// startDial begins to connect in the background. c.mu is held.
func (c *Client) startDial() {
	f := &dialFlight{done: make(chan struct{})}
	c.flight = f
	c.wg.Go(func() {
		nc, err := c.connect()
		c.mu.Lock()
		c.flight = nil
		if err == nil && c.closed {
			nc.Close()
			err = ErrClosed
		}
		if err == nil {
			c.conns = append(c.conns, newClientConn(c, nc))
			c.scheduleReaper()
		}
		f.err = err
		close(f.done)
		c.wakeWaiters()
		c.mu.Unlock()
	})
}

func (c *Client) connect() (net.Conn, error) {
	var err error
	for i := range c.cfg.DialAttempts {
		if i > 0 {
			select {
			case <-time.After(c.cfg.DialPause):
			case <-c.ctx.Done():
				return nil, ErrClosed
			}
		}
		ctx, cancel := context.WithTimeout(c.ctx, c.cfg.DialTimeout)
		var nc net.Conn
		nc, err = c.dial(ctx, c.address)
		cancel()
		if err == nil {
			return nc, nil
		}
	}
	return nil, fmt.Errorf("%w: %w", ErrDial, err)
}

// wakeWaiters lets calls look again for room. c.mu is held.
func (c *Client) wakeWaiters() {
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// released is called when a call has left a connection.
func (c *Client) released() {
	c.mu.Lock()
	c.wakeWaiters()
	c.mu.Unlock()
}

// drop forgets a broken connection.
func (c *Client) drop(x *clientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, y := range c.conns {
		if x == y {
			c.conns = append(c.conns[:i], c.conns[i+1:]...)
			break
		}
	}
	c.wakeWaiters()
}

// scheduleReaper arranges that idle connections are closed. c.mu is held.
func (c *Client) scheduleReaper() {
	if c.cfg.IdleTimeout > 0 && c.reaper == nil && !c.closed {
		c.reaper = time.AfterFunc(c.cfg.IdleTimeout/2, c.reap)
	}
}

func (c *Client) reap() {
	c.mu.Lock()
	var idle []*clientConn
	defer func() {
		c.mu.Unlock()
		for _, x := range idle {
			x.nc.Close() // its reader notices; no call is lost
		}
	}()
	c.reaper = nil
	limit := time.Now().Add(-c.cfg.IdleTimeout).UnixNano()
	kept := c.conns[:0]
	for _, x := range c.conns {
		if x.load.Load() == 0 && x.lastUsed.Load() < limit {
			idle = append(idle, x)
			continue
		}
		kept = append(kept, x)
	}
	clear(c.conns[len(kept):])
	if c.conns = kept; len(kept) > 0 {
		c.scheduleReaper()
	}
}

// Close breaks all connections, fails the calls in flight with ErrClosed and waits for the client's
// goroutines.
func (c *Client) Close() error {
	c.mu.Lock()
	var open []*clientConn // closed without the lock: that waits for who takes answers, who may wait for the lock
	if !c.closed {
		c.closed = true
		c.cancel()
		open = append(open, c.conns...)
		for _, x := range open {
			x.closing.Store(true)
		}
		c.wakeWaiters()
		if c.reaper != nil {
			c.reaper.Stop()
		}
	}
	c.mu.Unlock()
	for _, x := range open {
		x.nc.Close()
	}
	c.wg.Wait()
	return nil
}

// pendingCall is a call on a connection. done is closed after answer or err was set.
type pendingCall struct {
	done   chan struct{}
	answer []byte
	err    error
	before uint64 // bytes that the connection had received when the call was queued
}

func (p *pendingCall) result() ([]byte, error) { return p.answer, p.err }

// errNotSent means that the connection broke before the call was queued on it.
var errNotSent = errors.New("not sent")

type atomicTime = atomic.Int64 // Unix nanoseconds
