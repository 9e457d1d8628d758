package transfer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
)

// keeper owns this engine's two entries in the metadata service. One goroutine does all writes:
// registrations that arrive while it writes share the next document, entries that vanish or are
// overwritten are put back, a lost lease is replaced.
type keeper struct {
	e       *Engine
	st      *storage
	leaser  metadata.Leaser // nil where the service has no leases
	rpcDoc  []byte
	rpcSelf rpcMeta

	mu      sync.Mutex
	ops     []*publication
	stopped bool
	ramDoc  []byte // last published, for the watchers
	err     error  // for health

	kick  chan struct{}
	check chan struct{}
	quit  chan struct{}
	done  chan struct{}

	watch     sync.WaitGroup
	stopWatch context.CancelFunc

	// Owned by the goroutine.
	lease            metadata.Lease
	needRPC, needRAM bool
	wrote            bool      // something may be in the service
	yielded          bool      // a living engine with the older claim holds our name
	reclaimed        time.Time // when a living foreign holder was last overwritten
	reclaimPause     time.Duration
}

// publication is a request for a new document; err is valid once done is closed.
type publication struct {
	added []*registered
	taken bool // guarded by keeper.mu
	done  chan struct{}
	err   error
}

// The pause between attempts to put entries back.
const (
	retryFirst = 100 * time.Millisecond
	retryLast  = time.Second
)

// claimTimeout bounds one attempt to claim the name. Start's context has a deadline for the start as a whole,
// and a backend leaves a call with a deadline to it.
const claimTimeout = 5 * time.Second

func newKeeper(e *Engine, port int) *keeper {
	k := &keeper{e: e, st: e.st, rpcSelf: rpcMeta{e.id.Host, port},
		kick: make(chan struct{}, 1), check: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	k.rpcDoc = k.st.frame(k.rpcSelf.encode())
	k.leaser, _ = e.st.b.(metadata.Leaser)
	return k
}

// start claims the name, publishes both entries and starts to watch over them.
func (k *keeper) start(ctx context.Context) error {
	deadline := time.Now().Add(k.e.opt.MetadataStartTimeout)
	for pause := retryFirst; ; pause = min(2*pause, 2*time.Second) {
		attempt, done := context.WithTimeout(ctx, claimTimeout)
		err := k.claim(attempt)
		done()
		if err == nil {
			break
		}
		if !errors.Is(err, metadata.ErrUnavailable) {
			return k.abandon(ctx, err)
		}
		if ctx.Err() != nil {
			return k.abandon(ctx, fmt.Errorf("%w: %w", context.Cause(ctx), err))
		}
		if time.Now().Add(pause).After(deadline) {
			return k.abandon(ctx, fmt.Errorf("the metadata service did not answer for %v (metadata_start_timeout): %w", k.e.opt.MetadataStartTimeout, err))
		}
		k.e.warn.Log(ctx, k.e.log, slog.LevelWarn, "start", "metadata service is not available yet, trying again", "err", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	poll := k.e.opt.CheckInterval
	watched, cancel := context.WithCancel(context.Background())
	k.stopWatch = cancel
	w, watches := k.st.b.(metadata.Watcher)
	if _, polls := k.st.b.(metadata.PollingWatcher); watches && !polls {
		poll = max(poll, watchedCheck)
		for _, key := range []string{k.st.rpcKey(k.e.id.Segment), k.st.ramKey(k.e.id.Segment)} {
			k.watch.Go(func() { k.watchKey(watched, w, key) })
		}
	}
	go k.run(poll)
	return nil
}

// abandon takes back what a failed start may have written.
func (k *keeper) abandon(ctx context.Context, err error) error {
	if k.wrote {
		k.withdrawOwn(ctx)
	}
	return err
}

// watchedCheck is how often entries are read back although the service reports changes: a holder that died
// causes none where entries have no leases.
const watchedCheck = 10 * time.Second

// claim publishes under our name unless a living engine holds it.
func (k *keeper) claim(ctx context.Context) error {
	if err := k.checkHolder(ctx); err != nil {
		return err
	}
	if err := k.putRPC(ctx); err != nil {
		return err
	}
	if err := k.putRAM(ctx, nil); err != nil {
		return err
	}
	// Of two that started at the same moment the one that wrote first finds the other's entry here.
	return k.checkHolder(ctx)
}

// checkHolder is an error that wraps ErrNameTaken when the name's rpc_meta is another living engine's.
func (k *keeper) checkHolder(ctx context.Context) error {
	ent, err := k.st.b.Get(ctx, k.st.rpcKey(k.e.id.Segment))
	if errors.Is(err, metadata.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if same(ent.Value, k.rpcDoc) {
		return nil
	}
	if h := k.e.findHolder(ctx, ent.Value); h.alive {
		return k.taken(h)
	} else {
		k.e.log.Info("replacing the entry of an engine that does not answer", "segment", k.e.id.Segment, "holder", h.String(), "reason", h.why)
	}
	return nil
}

func (k *keeper) taken(h holder) error {
	return fmt.Errorf("%w: %q is published by the living engine at %s; stop it or choose another local_hostname", ErrNameTaken, k.e.id.Segment, h)
}

// run is the goroutine.
func (k *keeper) run(poll time.Duration) {
	defer close(k.done)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	k.watch.Go(func() {
		select {
		case <-k.quit:
			cancel()
		case <-ctx.Done():
		}
	})
	tick := time.NewTicker(poll)
	defer tick.Stop()
	pause := retryFirst
	rounds := 0
	for {
		var lost <-chan struct{}
		if k.lease != nil {
			lost = k.lease.Alive()
		}
		var again <-chan time.Time
		if k.needRPC || k.needRAM {
			again = time.After(pause)
		}
		select {
		case <-k.quit:
			k.failAll()
			return
		case <-k.kick:
		case <-again:
			pause = min(2*pause, retryLast)
		case <-lost:
			k.e.log.Warn("metadata lease was lost, publishing again", "segment", k.e.id.Segment)
			k.lease, k.needRPC, k.needRAM = nil, true, true
		case <-k.check:
			k.verify(ctx, true)
		case <-tick.C:
			rounds++
			k.verify(ctx, rounds%k.ramEvery() == 0)
		}
		if k.publish(ctx) {
			pause = retryFirst
		}
	}
}

// ramEvery says in which of the polls a large document is read back too.
func (k *keeper) ramEvery() int {
	if len(k.ramDoc) > 64<<10 {
		return 8
	}
	return 1
}

// add asks for a publication of the document with added and waits for its result. On success they count as
// registered.
func (k *keeper) add(ctx context.Context, added []*registered) error {
	p := &publication{added: added, done: make(chan struct{})}
	k.mu.Lock()
	if k.stopped {
		k.mu.Unlock()
		return ErrState
	}
	k.ops = append(k.ops, p)
	k.mu.Unlock()
	signal(k.kick)
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
	}
	k.mu.Lock()
	if !p.taken {
		for i, o := range k.ops {
			if o == p {
				k.ops = append(k.ops[:i:i], k.ops[i+1:]...)
				break
			}
		}
		k.mu.Unlock()
		return fmt.Errorf("not published: %w", context.Cause(ctx))
	}
	k.mu.Unlock()
	<-p.done
	return p.err
}

// touch asks for a publication that nobody waits for.
func (k *keeper) touch() {
	p := &publication{done: make(chan struct{})}
	k.mu.Lock()
	k.ops = append(k.ops, p)
	k.mu.Unlock()
	signal(k.kick)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (k *keeper) take() []*publication {
	k.mu.Lock()
	defer k.mu.Unlock()
	ops := k.ops
	k.ops = nil
	for _, p := range ops {
		p.taken = true
	}
	return ops
}

func (k *keeper) finish(ops []*publication, err error) {
	for _, p := range ops {
		if err == nil {
			k.e.regs.commit(p.added)
		}
		p.err = err
		close(p.done)
	}
}

func (k *keeper) failAll() {
	k.mu.Lock()
	k.stopped = true
	k.mu.Unlock()
	k.finish(k.take(), ErrState)
}

// publish does what is pending and tells whether nothing is left to be tried again.
func (k *keeper) publish(ctx context.Context) bool {
	ops := k.take()
	if len(ops) == 0 && !k.needRPC && !k.needRAM {
		return true
	}
	if k.yielded { // the holder of our name would be overwritten
		k.needRPC, k.needRAM = false, false
		k.finish(ops, k.health())
		return true
	}
	if k.needRPC {
		if err := k.putRPC(ctx); err != nil {
			k.failed(err)
			k.finish(ops, err)
			return false
		}
		k.needRPC = false
	}
	if len(ops) > 0 || k.needRAM {
		k.publishOps(ctx, ops)
	}
	if k.needRAM {
		return false
	}
	k.setErr(nil)
	return true
}

// publishOps publishes the document with all of ops. When the service refuses it, each gets a try of its own,
// so that one registration that is too large does not spoil those of others.
func (k *keeper) publishOps(ctx context.Context, ops []*publication) {
	var all []*registered
	for _, p := range ops {
		all = append(all, p.added...)
	}
	err := k.putRAM(ctx, all)
	if err == nil {
		k.needRAM = false
		k.finish(ops, nil)
		return
	}
	refused := isRefusal(err)
	if len(ops) > 1 && refused {
		for i := range ops {
			k.publishOps(ctx, ops[i:i+1])
		}
		return
	}
	k.failed(err)
	k.finish(ops, err)
	// An unanswered write may have happened, with regions that are now rolled back.
	k.needRAM = k.needRAM || !refused
}

func (k *keeper) failed(err error) {
	k.setErr(err)
	k.e.warn.Log(context.Background(), k.e.log, slog.LevelWarn, "publish", "metadata entries could not be published", "segment", k.e.id.Segment, "err", err)
}

func (k *keeper) setErr(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil && k.err != nil {
		k.e.log.Info("metadata entries are in order again", "segment", k.e.id.Segment)
	}
	k.err = err
}

func (k *keeper) health() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

func (k *keeper) putRAM(ctx context.Context, added []*registered) error {
	doc := k.st.frame(k.e.descriptor(added).Encode(k.e.opt.Now()))
	before := k.setRAM(doc)
	err := k.put(ctx, k.st.ramKey(k.e.id.Segment), doc)
	if isRefusal(err) {
		k.setRAM(before)
	}
	return err
}

// setRAM notes what is about to be published, for the watchers, and returns what was before.
func (k *keeper) setRAM(doc []byte) (before []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before, k.ramDoc = k.ramDoc, doc
	return before
}

// isRefusal: the service answered, and nothing was written.
func isRefusal(err error) bool {
	return errors.Is(err, metadata.ErrTooLarge) || errors.Is(err, metadata.ErrRefused)
}

// putRPC writes rpc_meta. Upstream's HTTP servers refuse to replace one: what is there is then kept if it is ours,
// and deleted first if its holder is dead.
func (k *keeper) putRPC(ctx context.Context) error {
	key := k.st.rpcKey(k.e.id.Segment)
	err := k.put(ctx, key, k.rpcDoc)
	if !errors.Is(err, metadata.ErrRefused) {
		return err
	}
	ent, gerr := k.st.b.Get(ctx, key)
	if gerr != nil {
		return err
	}
	if same(ent.Value, k.rpcDoc) {
		return nil
	}
	if h := k.e.findHolder(ctx, ent.Value); h.alive {
		return k.taken(h)
	}
	if err := k.st.b.Delete(ctx, key); err != nil {
		return err
	}
	return k.put(ctx, key, k.rpcDoc)
}

// put writes under the lease where there is one. The backend's own timeout bounds it.
func (k *keeper) put(ctx context.Context, key string, value []byte) error {
	err := k.putOnce(ctx, key, value)
	if errors.Is(err, metadata.ErrLeaseLost) {
		k.lease = nil
		k.needRPC, k.needRAM = true, true
		err = k.putOnce(ctx, key, value)
	}
	result := "ok"
	if err != nil {
		result = "failed"
	}
	k.e.m.publishes.WithLabelValues(result).Inc()
	return err
}

func (k *keeper) putOnce(ctx context.Context, key string, value []byte) error {
	k.wrote = true
	if k.leaser == nil {
		return k.st.b.Put(ctx, key, value)
	}
	if k.lease == nil {
		l, err := k.leaser.Lease(ctx, 0)
		if err != nil {
			return err
		}
		k.lease = l
	}
	return k.lease.Put(ctx, key, value)
}

// stop ends the goroutine and withdraws the entries: rpc_meta first, as upstream does.
func (k *keeper) stop(ctx context.Context) error {
	close(k.quit)
	k.stopWatch()
	<-k.done
	k.watch.Wait()
	return k.withdrawOwn(ctx)
}

// withdrawOwn deletes the entries that are still ours. It takes between one and five seconds at most, also when
// ctx is over: entries left behind mislead others.
func (k *keeper) withdrawOwn(ctx context.Context) error {
	limit := 5 * time.Second
	if d, ok := ctx.Deadline(); ok {
		limit = min(max(time.Until(d), time.Second), limit)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	var errs []error
	for _, key := range []string{k.st.rpcKey(k.e.id.Segment), k.st.ramKey(k.e.id.Segment)} {
		ent, err := k.st.b.Get(ctx, key)
		if err == nil && k.ours(key, ent.Value) {
			err = k.st.b.Delete(ctx, key)
		}
		if err != nil && !errors.Is(err, metadata.ErrNotFound) {
			errs = append(errs, fmt.Errorf("withdraw %s: %w", key, err))
		}
	}
	if k.lease != nil {
		if err := k.lease.Revoke(ctx); err != nil {
			errs = append(errs, fmt.Errorf("revoke the lease: %w", err))
		}
		k.lease = nil
	}
	return errors.Join(errs...)
}
