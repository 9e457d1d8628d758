package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// master is a way to the master: one pool of connections to the address in use. Several of them exist in a
// client, so that a ping never waits behind a large batch.
type master struct {
	cfg    rpc.ClientConfig
	leader Leader                   // nil: addrs are given once and for all
	hello  *wire.BatchPutEndRequest // sent before anything else to each address; nil: nothing is

	mu      sync.Mutex
	addrs   []string
	cur     int // of addrs
	pools   []*rpc.Client
	greeted []bool
	closed  bool
	silent  time.Time // until then calls fail at once with lastErr, because a connection attempt has timed out
	lastErr error
}

// silence is how long calls fail at once after nobody answered a connection attempt at any address. Refused
// attempts cost nothing, so every call makes its own.
const silence = time.Second

func newMaster(o *Options, cfg rpc.ClientConfig) *master {
	m := &master{cfg: cfg, leader: o.Leader}
	m.use(o.Master)
	return m
}

// use makes these the addresses, with nothing known of them.
func (m *master) use(addrs []string) {
	m.addrs, m.cur = slices.Clone(addrs), 0
	m.pools, m.greeted = make([]*rpc.Client, len(addrs)), make([]bool, len(addrs))
	m.lastErr = nil
}

// follow turns to the leader. Calls that still wait for an answer of the one before end: it has nothing to say any
// more, and may be a host that is gone.
func (m *master) follow(ctx context.Context) error {
	addr, err := m.leader.Leader(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	m.mu.Lock()
	var before *rpc.Client
	if !m.closed && (len(m.addrs) == 0 || m.addrs[0] != addr) {
		if len(m.pools) > 0 {
			before = m.pools[0]
		}
		m.use([]string{addr})
	}
	m.mu.Unlock()
	if before != nil {
		before.Close()
	}
	return nil
}

// pool returns the pool in use. greet tells that nothing has been sent to it before.
func (m *master) pool(ctx context.Context) (p *rpc.Client, greet bool, err error) {
	if m.leader != nil {
		if err := m.follow(ctx); err != nil {
			return nil, false, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, false, ErrClosed
	}
	if m.lastErr != nil {
		if time.Now().Before(m.silent) {
			return nil, false, fmt.Errorf("%w (a moment ago)", m.lastErr)
		}
		m.lastErr = nil
	}
	if m.pools[m.cur] == nil {
		if m.pools[m.cur], err = rpc.NewClient(m.addrs[m.cur], m.cfg, rpc.ClientOptions{}); err != nil {
			return nil, false, err
		}
	}
	greet = m.hello != nil && !m.greeted[m.cur]
	m.greeted[m.cur] = true
	return m.pools[m.cur], greet, nil
}

// next leaves a pool that could not connect; false if every address was tried in a row.
func (m *master) next(p *rpc.Client, tried int, err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pools) > 0 && m.pools[m.cur] == p {
		m.cur = (m.cur + 1) % len(m.addrs)
	}
	if tried < len(m.addrs) {
		return true
	}
	var slow interface{ Timeout() bool }
	// A caller that waits less than a connection attempt may take (rpc.ErrTimeout) has proved nothing.
	if !errors.Is(err, rpc.ErrTimeout) && errors.As(err, &slow) && slow.Timeout() {
		m.silent, m.lastErr = time.Now().Add(silence), err
	}
	return false
}

// address is the one in use; "" while no leader is known.
func (m *master) address() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.addrs) == 0 {
		return ""
	}
	return m.addrs[m.cur]
}

func (m *master) close() {
	m.mu.Lock()
	m.closed = true
	pools := slices.Clone(m.pools)
	m.mu.Unlock()
	for _, p := range pools {
		if p != nil {
			p.Close()
		}
	}
}

// again says whether a call may be sent a second time when its connection broke: the first may have been
// served.
type again bool

const (
	once       again = false
	idempotent again = true
)

// call calls a function of the master. The error is of the rpc package; what the master answers is in resp.
func call[Req, Resp any](ctx context.Context, m *master, f *wire.Method[Req, Resp], how again, req *Req) (resp Resp, err error) {
	if err := context.Cause(ctx); err != nil {
		return resp, err
	}
	for tried := 0; ; {
		p, greet, err := m.pool(ctx)
		if err != nil {
			return resp, err
		}
		if greet {
			// The end of no put at all is a request that only this version of the protocol has. Masters that
			// serve several versions know from it whom they talk to; a reader's requests do not tell.
			_, _ = invoke(ctx, p, wire.BatchPutEnd, m.hello)
		}
		resp, err := invoke(ctx, p, f, req)
		switch {
		case err == nil:
			return resp, nil
		case ctx.Err() != nil:
			return resp, err
		case errors.Is(err, rpc.ErrDial):
			if tried++; !m.next(p, tried, err) {
				return resp, err
			}
		case (errors.Is(err, rpc.ErrConnectionLost) || errors.Is(err, rpc.ErrClosed)) && how == idempotent:
			how = once
		default:
			return resp, err
		}
	}
}

// invoke is wire.Invoke, but reads an answer that was meant for a client of another version, too: a master that
// serves several may take this client for one of them.
func invoke[Req, Resp any](ctx context.Context, p *rpc.Client, f *wire.Method[Req, Resp], req *Req) (resp Resp, err error) {
	buf := requests.Get().(*[]byte)
	defer requests.Put(buf)
	if *buf, err = f.AppendRequest((*buf)[:0], wire.Newest, req, p.Config().Literal); err != nil {
		return resp, err
	}
	answer, err := p.Call(ctx, f.Function(), *buf)
	if cap(*buf) > keepRequest {
		*buf = nil
	}
	if err != nil {
		return resp, err
	}
	if err = f.DecodeResponse(answer, wire.Newest, &resp, true); err == nil { // answer is ours and stays
		return resp, nil
	}
	lay, _ := f.Layout(wire.Newest)
	others, _ := f.Candidates(lay.RequestCode)
	for _, v := range others.Versions() {
		var other Resp
		if v != wire.Newest && f.DecodeResponse(answer, v, &other, true) == nil {
			return other, nil
		}
	}
	return resp, fmt.Errorf("rpc: %s at %s: %w: %w", f.Name(), p.Address(), rpc.ErrBadAnswer, err)
}

var requests = sync.Pool{New: func() any { return new([]byte) }}

// keepRequest is the largest request whose buffer is used again.
const keepRequest = 64 << 10
