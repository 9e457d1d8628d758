package client

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/core/logx"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/core/transfer"
)

// Client is a client of one Store. All methods may be called concurrently. Every call ends: at ctx's
// deadline, or by the timeouts of Config and of the engine. Errors are [Error]s.
type Client struct {
	opt    Options
	engine *transfer.Engine
	tenant string
	id     wire.UUID
	log    *slog.Logger
	warn   *logx.Limiter
	m      *metrics

	quick *master // calls that look at what they name
	scans *master // calls that look at everything

	avoid avoided
	turn  atomic.Uint32 // spreads reads over replicas
	keep  *keeper

	revoking revocations
	quit     context.Context // ended by Close
	end      context.CancelFunc
	closing  sync.Once
	bg       sync.WaitGroup
}

// New makes a client. It has no side effects but the registration of metrics: the master is called when it
// is needed.
func New(o Options) (*Client, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("store: %w: %w", ErrInvalid, err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = prometheus.NewRegistry()
	}
	if o.ID.IsZero() {
		o.ID = newUUID()
	}
	c := &Client{opt: o, engine: o.Engine, tenant: o.Tenant, id: o.ID, log: o.Log, warn: logx.Every(10 * time.Second),
		quick: newMaster(&o, o.rpcConfig(o.RPCTimeout, o.Connections)),
		scans: newMaster(&o, o.rpcConfig(o.ScanTimeout, 1))}
	if c.tenant == "" {
		c.tenant = wire.DefaultTenant
	}
	hello := &wire.BatchPutEndRequest{Client: c.id, Type: wire.ReplicaAll, Tenant: c.tenant}
	c.quick.hello, c.scans.hello = hello, hello
	c.avoid.keep = o.AvoidTime
	c.quit, c.end = context.WithCancel(context.Background())
	c.keep = newKeeper(c)
	var err error
	if c.m, err = newMetrics(o.Metrics); err != nil {
		return nil, fmt.Errorf("store: metrics: %w", err)
	}
	return c, nil
}

func newUUID() (u wire.UUID) {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	u[0], u[1] = binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])
	return u
}

// ID is this client's identity at the master.
func (c *Client) ID() wire.UUID { return c.id }

// Engine is the engine that the client was made with.
func (c *Client) Engine() *transfer.Engine { return c.engine }

// Master is the address of the master in use, host:port.
func (c *Client) Master() string { return c.quick.address() }

// Connect asks the master whether it is there and speaks this client's protocol. It is not needed before
// other calls, but tells early what is wrong.
func (c *Client) Connect(ctx context.Context) error {
	r, err := call(ctx, c.quick, wire.ServiceReady, idempotent, &wire.NoArgs{})
	if err == nil {
		_, err = wire.Unwrap(r)
	}
	if err != nil {
		return fail("connect", "", err)
	}
	if r.Value != wire.ServiceVersion {
		return failf("connect", "", ErrUnsupported, "the master at %s speaks %q, this client %q", c.Master(), r.Value, wire.ServiceVersion)
	}
	return nil
}

// Close withdraws what is mounted, as [Mount.Unmount] does, ends the background work and closes the
// connections. When ctx ends before the master has taken note, the error says so; the master forgets this
// client by itself then. Further calls wait for the first one.
func (c *Client) Close(ctx context.Context) error {
	var err error
	c.closing.Do(func() {
		err = c.keep.close(ctx)
		c.revoking.close()
		c.end()
		c.bg.Wait()
		c.quick.close()
		c.scans.close()
	})
	return err
}

// errNoEngine is the error of calls that move data on a client without an engine.
var errNoEngine = fmt.Errorf("%w: this client has no engine to move data with", ErrUnsupported)

// detached is a context for cleaning up after a call whose own context may have ended.
func detached(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

// avoided remembers peers that could not be reached, so that they are read last for a while.
type avoided struct {
	keep time.Duration
	mu   sync.Mutex
	m    map[string]time.Time
}

func (a *avoided) add(endpoint string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for e, t := range a.m {
		if now.After(t) {
			delete(a.m, e)
		}
	}
	if a.m == nil {
		a.m = map[string]time.Time{}
	}
	a.m[endpoint] = now.Add(a.keep)
}

func (a *avoided) has(endpoint string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	t, ok := a.m[endpoint]
	return ok && time.Now().Before(t)
}

// open returns the engine's handle for a replica's segment.
func (c *Client) open(ctx context.Context, endpoint string) (*transfer.Segment, error) {
	s, err := c.engine.Open(ctx, endpoint)
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, transfer.ErrState) {
			c.avoid.add(endpoint)
		}
		return nil, fmt.Errorf("%w: %w", ErrTransfer, err)
	}
	return s, nil
}
