package memory

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

func init() {
	module.Define(metadata.Kind, "memory", "a store inside this process", defaultConfig(), New)
}

// Backend is one user of a store, as a process would be one of a service.
type Backend struct {
	store    *Store
	target   remote.Target
	leaseTTL time.Duration
	life     *remote.Life
	// release gives back the share in a named store.
	release func()

	mu     sync.Mutex // guards leases
	leases map[*lease]struct{}
}

var (
	_ metadata.Backend   = (*Backend)(nil)
	_ metadata.Lister    = (*Backend)(nil)
	_ metadata.Committer = (*Backend)(nil)
	_ metadata.Watcher   = (*Backend)(nil)
	_ metadata.Leaser    = (*Backend)(nil)
)

// New builds a backend on the store that the config names.
func New(_ context.Context, _ module.Env, c Config) (metadata.Backend, error) {
	name, err := c.store()
	if err != nil {
		return nil, err
	}
	if name == "" {
		b := NewStore().Open()
		b.leaseTTL = c.LeaseTTL
		return b, nil
	}
	store, release := shared.take(name)
	b := store.Open()
	b.target.Addr, b.release, b.leaseTTL = name, release, c.LeaseTTL
	return b, nil
}

// shared are the named stores of this process.
var shared = registry{stores: map[string]*counted{}}

type registry struct {
	mu     sync.Mutex
	stores map[string]*counted
}

type counted struct {
	*Store
	users int
}

func (r *registry) take(name string) (*Store, func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.stores[name]
	if c == nil {
		c = &counted{Store: NewStore()}
		r.stores[name] = c
	}
	c.users++
	return c.Store, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if c.users--; c.users == 0 {
			delete(r.stores, name)
		}
	}
}

// Open returns a new backend on the store. Closing it is like the end of a process: its leases run out.
func (s *Store) Open() *Backend {
	return &Backend{
		store: s, life: remote.NewLife(), release: func() {}, leases: map[*lease]struct{}{},
		target: remote.Target{Name: "memory", Addr: "store"},
	}
}

// ready is the check in front of every call.
func (b *Backend) ready(ctx context.Context, op, key string) error {
	if b.life.Closed() {
		return b.target.Fail(op, key, metadata.ErrClosed, nil)
	}
	if ctx.Err() != nil {
		return b.target.Ended(ctx, op, key, nil)
	}
	return nil
}

func (b *Backend) readyKey(ctx context.Context, op, key string) error {
	if err := b.ready(ctx, op, key); err != nil {
		return err
	}
	return b.target.CheckKey(op, key)
}

// Get implements metadata.Backend.
func (b *Backend) Get(ctx context.Context, key string) (metadata.Entry, error) {
	if err := b.readyKey(ctx, "get", key); err != nil {
		return metadata.Entry{}, err
	}
	e, ok := b.store.get(key)
	if !ok {
		return metadata.Entry{}, b.target.Fail("get", key, metadata.ErrNotFound, nil)
	}
	return e, nil
}

// Put implements metadata.Backend.
func (b *Backend) Put(ctx context.Context, key string, value []byte) error {
	if err := b.readyKey(ctx, "put", key); err != nil {
		return err
	}
	b.store.put(key, value, nil)
	return nil
}

// Delete implements metadata.Backend.
func (b *Backend) Delete(ctx context.Context, key string) error {
	if err := b.readyKey(ctx, "delete", key); err != nil {
		return err
	}
	b.store.delete(key)
	return nil
}

// List implements metadata.Lister.
func (b *Backend) List(ctx context.Context, prefix string) ([]metadata.Entry, error) {
	if err := b.ready(ctx, "list", prefix); err != nil {
		return nil, err
	}
	return b.store.list(prefix), nil
}

// Commit implements metadata.Committer.
func (b *Backend) Commit(ctx context.Context, writes ...metadata.Write) error {
	if err := b.ready(ctx, "commit", ""); err != nil {
		return err
	}
	if err := b.target.CheckWrites(writes); err != nil {
		return err
	}
	if key, ok := b.store.commit(writes); !ok {
		return b.target.Fail("commit", key, metadata.ErrConflict, nil)
	}
	return nil
}

// Watch implements metadata.Watcher. A consumer that falls far behind gets a reset instead of the events
// it missed.
func (b *Backend) Watch(ctx context.Context, prefix string) iter.Seq2[metadata.Event, error] {
	return func(yield func(metadata.Event, error) bool) {
		if b.life.Closed() {
			yield(metadata.Event{}, b.target.Fail("watch", prefix, metadata.ErrClosed, nil))
			return
		}
		w := b.store.watch(prefix)
		defer b.store.unwatch(w)
		for {
			for _, ev := range w.take() {
				if ctx.Err() != nil || b.life.Closed() || !yield(ev, nil) {
					return
				}
			}
			select {
			case <-w.wake:
			case <-ctx.Done():
				return
			case <-b.life.Context().Done():
				return
			}
		}
	}
}

// Lease implements metadata.Leaser.
func (b *Backend) Lease(ctx context.Context, ttl time.Duration) (metadata.Lease, error) {
	if err := b.ready(ctx, "lease", ""); err != nil {
		return nil, err
	}
	ttl = cmp.Or(ttl, b.leaseTTL, metadata.DefaultLeaseTTL)
	if ttl < time.Second {
		return nil, b.target.Refusef("lease", "", "a ttl of %v is less than 1s", ttl)
	}
	l := &lease{b: b, ttl: ttl, alive: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.leases == nil {
		return nil, b.target.Fail("lease", "", metadata.ErrClosed, nil)
	}
	b.leases[l] = struct{}{}
	b.store.grant(l)
	return l, nil
}

// Close implements metadata.Backend.
func (b *Backend) Close() error {
	if !b.life.Close() {
		return nil
	}
	b.mu.Lock()
	leases := b.leases
	b.leases = nil
	b.mu.Unlock()
	for l := range leases {
		b.store.orphan(l)
	}
	b.release()
	return nil
}

// lease is a lease of one backend. Its keys and its state belong to the store.
type lease struct {
	b     *Backend
	ttl   time.Duration
	alive chan struct{}
	// Guarded by the store's mutex.
	ended bool
	keys  map[string]struct{}
	stop  func() bool // of the expiry timer, once the backend was closed
}

// Put implements metadata.Lease.
func (l *lease) Put(ctx context.Context, key string, value []byte) error {
	if err := l.b.readyKey(ctx, "lease put", key); err != nil {
		if errors.Is(err, metadata.ErrClosed) {
			return l.b.target.Fail("lease put", key, metadata.ErrLeaseLost, nil)
		}
		return err
	}
	if !l.b.store.put(key, value, l) {
		return l.b.target.Fail("lease put", key, metadata.ErrLeaseLost, nil)
	}
	return nil
}

// Alive implements metadata.Lease.
func (l *lease) Alive() <-chan struct{} { return l.alive }

// Revoke implements metadata.Lease. On a closed backend it still removes the keys.
func (l *lease) Revoke(context.Context) error {
	l.b.store.revoke(l)
	l.b.mu.Lock()
	delete(l.b.leases, l)
	l.b.mu.Unlock()
	return nil
}
