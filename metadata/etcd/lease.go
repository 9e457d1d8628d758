package etcd

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

// lease is an etcd lease that this process renews. The lease belongs to the cluster, not to a connection:
// it survives changes of the endpoint.
type lease struct {
	b     *Backend
	id    clientv3.LeaseID
	alive chan struct{}

	stop context.CancelFunc // ends the renewals, and with them alive

	mu      sync.Mutex // serialises Revoke
	revoked bool
}

// Lease implements metadata.Leaser. etcd counts whole seconds, so ttl is rounded up; it may also raise a
// short ttl to one and a half of its election timeout.
func (b *Backend) Lease(ctx context.Context, ttl time.Duration) (metadata.Lease, error) {
	ttl = cmp.Or(ttl, b.cfg.LeaseTTL, metadata.DefaultLeaseTTL)
	if ttl < time.Second {
		return nil, b.target.Refusef("lease", "", "a ttl of %v is less than 1s", ttl)
	}
	seconds := int64((ttl + time.Second - 1) / time.Second)
	l := &lease{b: b, alive: make(chan struct{})}
	var granted time.Time
	// Repeating may leave a lease behind that nobody renews; it runs out by itself.
	err := b.call(ctx, request{op: "lease", repeat: true}, func(ctx context.Context, c *clientv3.Client) error {
		granted = time.Now()
		resp, err := c.Grant(ctx, seconds)
		if err == nil {
			l.id = resp.ID
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	renewals, stop := context.WithCancel(b.life.Context())
	l.stop = stop
	if !b.life.Go(func(context.Context) { l.renew(renewals, ttl, granted) }) {
		stop()
		return nil, b.target.Fail("lease", "", metadata.ErrClosed, nil)
	}
	return l, nil
}

// renew asks for a new ttl at each third of it, and gives up when none was granted for a whole one.
func (l *lease) renew(ctx context.Context, ttl time.Duration, granted time.Time) {
	defer l.stop()
	defer close(l.alive)
	for remote.Sleep(ctx, time.Until(granted.Add(ttl/3))) {
		deadline, cancel := context.WithDeadline(ctx, granted.Add(ttl))
		var begun time.Time
		err := l.b.call(deadline, request{op: "lease renewal", repeat: true}, func(ctx context.Context, c *clientv3.Client) error {
			begun = time.Now()
			_, err := c.KeepAliveOnce(ctx, l.id)
			return err
		})
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			granted = begun
		case errors.Is(err, metadata.ErrUnavailable), errors.Is(err, metadata.ErrLeaseLost):
			l.b.log.Warn("etcd: lease lost", "error", err)
			return
		default: // refused: perhaps not for ever
			if time.Since(granted) >= ttl || !remote.Sleep(ctx, ttl/10) {
				l.b.log.Warn("etcd: lease lost", "error", err)
				return
			}
		}
	}
}

// Put implements metadata.Lease.
func (l *lease) Put(ctx context.Context, key string, value []byte) error {
	if err := l.b.target.CheckKey("lease put", key); err != nil {
		return err
	}
	select {
	case <-l.alive:
		return l.b.target.Fail("lease put", key, metadata.ErrLeaseLost, nil)
	default:
	}
	req := request{op: "lease put", key: key, repeat: true, size: len(value)}
	err := l.b.call(ctx, req, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Put(ctx, key, string(value), clientv3.WithLease(l.id))
		return err
	})
	if errors.Is(err, metadata.ErrLeaseLost) {
		l.stop()
	}
	return err
}

// Alive implements metadata.Lease.
func (l *lease) Alive() <-chan struct{} { return l.alive }

// Revoke implements metadata.Lease. A connection that looks dead is replaced first: otherwise the keys
// could stay until the lease runs out.
func (l *lease) Revoke(ctx context.Context) error {
	l.stop()
	<-l.alive
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revoked {
		return nil
	}
	l.b.dropSuspect()
	err := l.b.call(ctx, request{op: "lease revoke", repeat: true}, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Revoke(ctx, l.id)
		return err
	})
	if err == nil || errors.Is(err, metadata.ErrLeaseLost) {
		l.revoked = true
		return nil
	}
	return err
}
