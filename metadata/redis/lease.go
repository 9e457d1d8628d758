package redis

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

// markerPrefix is where each lease keeps a key of its own. When that is gone the server has lost its data or
// the lease has run out. It lies below mooncake/ so that users who may only touch that can have leases.
const markerPrefix = "mooncake/.lease/"

// KEYS[1] is the marker in all lease scripts, the other KEYS belong to the lease. For each of those an
// argument holds the SHA-1 sums of the values that this lease may have put there; a key with any other value
// was overwritten by somebody else and is left alone.
var (
	// ARGV: ttl in ms, value.
	leasePutScript = redis.NewScript(`
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[1])
return 1`)

	// ARGV: ttl in ms, sums of each key. Returns 0 if the lease is over, else 1 and the indexes of the keys
	// that are no longer this lease's.
	renewScript = redis.NewScript(`
if redis.call('PEXPIRE', KEYS[1], ARGV[1]) == 0 then return {0} end
local out = {1}
for i = 2, #KEYS do
  local now = redis.pcall('GET', KEYS[i])
  if type(now) == 'string' and string.find(ARGV[i], redis.sha1hex(now), 1, true) then
    redis.call('PEXPIRE', KEYS[i], ARGV[1])
  else
    out[#out+1] = i
  end
end
return out`)

	// ARGV: unused, sums of each key.
	revokeScript = redis.NewScript(`
redis.call('DEL', KEYS[1])
for i = 2, #KEYS do
  local now = redis.pcall('GET', KEYS[i])
  if type(now) == 'string' and string.find(ARGV[i], redis.sha1hex(now), 1, true) then
    redis.call('DEL', KEYS[i])
  end
end
return 1`)
)

// lease is a set of keys with a time to live that this process renews.
type lease struct {
	b      *Backend
	marker string
	ttl    time.Duration
	alive  chan struct{}
	stop   context.CancelFunc // ends the renewals, and with them alive

	// lock is a mutex that can be waited for with a context; it keeps puts and renewals apart and guards
	// what follows.
	lock    chan struct{}
	order   []string            // keys, in the order of their first put
	sums    map[string][]string // by key: sums of the values it may have
	revoked bool
}

// Lease implements metadata.Leaser.
func (b *Backend) Lease(ctx context.Context, ttl time.Duration) (metadata.Lease, error) {
	ttl = cmp.Or(ttl, b.cfg.LeaseTTL, metadata.DefaultLeaseTTL)
	if ttl < time.Second {
		return nil, b.target.Refusef("lease", "", "a ttl of %v is less than 1s", ttl)
	}
	l := &lease{
		b: b, marker: markerPrefix + uuid.NewString(), ttl: ttl, alive: make(chan struct{}),
		lock: make(chan struct{}, 1), sums: map[string][]string{},
	}
	var granted time.Time
	err := b.call(ctx, request{op: "lease", prefix: true, repeat: true}, func(ctx context.Context) error {
		granted = time.Now()
		return b.client.Set(ctx, l.marker, "1", ttl).Err()
	})
	if err != nil {
		return nil, err
	}
	renewals, stop := context.WithCancel(b.life.Context())
	l.stop = stop
	if !b.life.Go(func(context.Context) { l.renew(renewals, granted) }) {
		stop()
		return nil, b.target.Fail("lease", "", metadata.ErrClosed, nil)
	}
	return l, nil
}

// renew extends the lease at each third of its ttl, and gives up when that failed for a whole one.
func (l *lease) renew(ctx context.Context, granted time.Time) {
	defer l.stop()
	defer close(l.alive)
	for remote.Sleep(ctx, time.Until(granted.Add(l.ttl/3))) {
		begun := time.Now()
		deadline, cancel := context.WithDeadline(ctx, granted.Add(l.ttl))
		err := l.extend(deadline)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			granted = begun
		case errors.Is(err, metadata.ErrUnavailable), errors.Is(err, metadata.ErrLeaseLost):
			l.b.log.Warn("redis: lease lost", "error", err)
			return
		default: // refused: perhaps not for ever
			if time.Since(granted) >= l.ttl || !remote.Sleep(ctx, l.ttl/10) {
				l.b.log.Warn("redis: lease lost", "error", err)
				return
			}
		}
	}
}

func (l *lease) enter(ctx context.Context, op string) error {
	select {
	case l.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return l.b.target.Ended(ctx, op, "", nil)
	}
}

func (l *lease) leave() { <-l.lock }

// keysAndSums are the arguments of the scripts.
func (l *lease) keysAndSums() ([]string, []any) {
	keys := append([]string{l.marker}, l.order...)
	args := []any{l.ttl.Milliseconds()}
	for _, k := range l.order {
		args = append(args, strings.Join(l.sums[k], " "))
	}
	return keys, args
}

func (l *lease) extend(ctx context.Context) error {
	if err := l.enter(ctx, "lease renewal"); err != nil {
		return err
	}
	defer l.leave()
	keys, args := l.keysAndSums()
	var lost []int64
	err := l.b.call(ctx, request{op: "lease renewal", prefix: true, repeat: true}, func(ctx context.Context) error {
		out, err := renewScript.Run(ctx, l.b.client, keys, args...).Int64Slice()
		if err == nil && (len(out) == 0 || out[0] == 0) {
			err = errLeaseLost
		}
		if err == nil {
			lost = out[1:]
		}
		return err
	})
	for _, i := range lost {
		l.forget(keys[i-1])
	}
	return err
}

func (l *lease) forget(key string) {
	delete(l.sums, key)
	for i, k := range l.order {
		if k == key {
			l.order = append(l.order[:i:i], l.order[i+1:]...)
			return
		}
	}
}

// Put implements metadata.Lease.
func (l *lease) Put(ctx context.Context, key string, value []byte) error {
	const op = "lease put"
	if err := l.b.target.CheckKey(op, key); err != nil {
		return err
	}
	select {
	case <-l.alive:
		return l.b.target.Fail(op, key, metadata.ErrLeaseLost, nil)
	default:
	}
	ctx, done := l.b.life.Call(ctx, l.b.cfg.Timeout)
	defer done()
	if err := l.enter(ctx, op); err != nil {
		return err
	}
	defer l.leave()
	if l.revoked {
		return l.b.target.Fail(op, key, metadata.ErrLeaseLost, nil)
	}
	// Until the answer is there the key may have the old value or the new one.
	before, known := l.sums[key]
	if !known {
		l.order = append(l.order, key)
	}
	l.sums[key] = append(before[:len(before):len(before)], version(value))
	err := l.b.call(ctx, request{op: op, key: key, repeat: true, size: len(value)}, func(ctx context.Context) error {
		n, err := leasePutScript.Run(ctx, l.b.client, []string{l.marker, key}, l.ttl.Milliseconds(), value).Int()
		if err == nil && n == 0 {
			err = errLeaseLost
		}
		return err
	})
	switch {
	case err == nil:
		l.sums[key] = []string{version(value)}
	case errors.Is(err, metadata.ErrLeaseLost):
		l.stop()
	case !errors.Is(err, metadata.ErrUnavailable): // not written
		if l.sums[key] = before; !known {
			l.forget(key)
		}
	}
	return err
}

// Alive implements metadata.Lease.
func (l *lease) Alive() <-chan struct{} { return l.alive }

// Revoke implements metadata.Lease.
func (l *lease) Revoke(ctx context.Context) error {
	l.stop()
	<-l.alive
	ctx, done := l.b.life.Call(ctx, l.b.cfg.Timeout)
	defer done()
	if err := l.enter(ctx, "lease revoke"); err != nil {
		return err
	}
	defer l.leave()
	if l.revoked {
		return nil
	}
	keys, args := l.keysAndSums()
	err := l.b.call(ctx, request{op: "lease revoke", prefix: true, repeat: true}, func(ctx context.Context) error {
		return revokeScript.Run(ctx, l.b.client, keys, args...).Err()
	})
	l.revoked = err == nil
	return err
}
