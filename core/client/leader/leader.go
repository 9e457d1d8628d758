// Package leader follows the election of a Store's master, as Mooncake holds it in etcd: the key
// mooncake-store/CLUSTER/master_view has the leader's host:port as its value and belongs to the leader's lease, so it
// is gone when the leader is (mooncake-store/src/ha/leadership).
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
)

// DefaultCluster is the cluster of masters that were given no cluster_id.
const DefaultCluster = "mooncake_cluster"

// Key is where masters of a cluster ("" is [DefaultCluster]) say which of them leads.
func Key(cluster string) string {
	if cluster == "" {
		cluster = DefaultCluster
	}
	return "mooncake-store/" + cluster + "/master_view"
}

// ErrNone means that no master leads now.
var ErrNone = errors.New("no master is elected")

const (
	resync = 30 * time.Second // upstream's; a watch may have missed something
	poll   = time.Second      // without a watch, and after a failure
)

// Follower knows the leader. Safe for concurrent use.
type Follower struct {
	b   metadata.Backend
	key string
	log *slog.Logger

	cancel context.CancelFunc
	wg     sync.WaitGroup
	looked chan struct{} // closed when the first look has ended
	again  chan struct{} // look now

	mu   sync.Mutex
	addr string
	err  error // why there is no addr
}

// Follow begins to follow the election under key. The backend stays the caller's and must live until Close has
// returned.
func Follow(b metadata.Backend, key string, log *slog.Logger) *Follower {
	f := &Follower{b: b, key: key, log: log, looked: make(chan struct{}), again: make(chan struct{}, 1), err: ErrNone}
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	every := poll
	if w, ok := b.(metadata.Watcher); ok {
		if _, polls := b.(metadata.PollingWatcher); !polls {
			every = resync
			f.wg.Go(func() { f.watch(ctx, w) })
		}
	}
	f.wg.Go(func() { f.run(ctx, every) })
	return f
}

// Close ends the following. Leader goes on to answer what was known last.
func (f *Follower) Close() {
	f.cancel()
	f.wg.Wait()
}

// Leader returns the leader's host:port. It waits only for the first look at the election. While the service that
// holds the election cannot be asked, the answer is the leader known last. The error wraps [ErrNone], or says why
// the service does not tell.
func (f *Follower) Leader(ctx context.Context) (string, error) {
	select {
	case <-f.looked:
	case <-ctx.Done():
		return "", fmt.Errorf("the election %s: %w", f.key, context.Cause(ctx))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addr, f.err
}

// watch asks for a look whenever the key changes. Looking each time, instead of believing the event, makes the order
// of looks the order of truths.
func (f *Follower) watch(ctx context.Context, w metadata.Watcher) {
	for e := range w.Watch(ctx, f.key) {
		if e.Type == metadata.EventReset || e.Entry.Key == f.key {
			select {
			case f.again <- struct{}{}:
			default:
			}
		}
	}
}

func (f *Follower) run(ctx context.Context, every time.Duration) {
	first := true
	for {
		next := every
		if !f.look(ctx) {
			next = poll
		}
		if first {
			close(f.looked)
			first = false
		}
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-f.again:
		case <-t.C:
		}
		t.Stop()
	}
}

// look reads the key; false if that failed.
func (f *Follower) look(ctx context.Context) bool {
	e, err := f.b.Get(ctx, f.key)
	addr := strings.TrimSpace(string(e.Value))
	if err == nil {
		if host, port, bad := net.SplitHostPort(addr); bad != nil || host == "" || port == "" {
			err = fmt.Errorf("%w: %s holds %q, which is no host:port", ErrNone, f.key, addr)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		if addr != f.addr {
			f.log.Info("the master in charge", "master", addr, "before", f.addr, "election", f.key)
		}
		f.addr, f.err = addr, nil
		return true
	case ctx.Err() != nil:
	case errors.Is(err, metadata.ErrNotFound):
		if f.addr != "" {
			f.log.Warn("no master is in charge any more; waiting for the next one", "before", f.addr, "election", f.key)
		}
		f.addr, f.err = "", fmt.Errorf("%w: there is no key %s; is a master with enable_ha and this cluster_id running?", ErrNone, f.key)
		return true
	case errors.Is(err, ErrNone):
		f.log.Warn("the election cannot be followed", "election", f.key, "error", err)
		f.addr, f.err = "", err
	case f.addr == "":
		f.err = fmt.Errorf("the election %s cannot be read: %w", f.key, err)
	default:
		f.log.Debug("the election cannot be read; the master known last stays in use", "master", f.addr, "election", f.key, "error", err)
	}
	return false
}
