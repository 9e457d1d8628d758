package client

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// keeper keeps what the client lends mounted. One goroutine talks to the master about it, over a connection of its
// own, so that neither data nor other calls delay a heartbeat; another one fetches tasks. Both start with the
// first mount.
type keeper struct {
	c    *Client
	line *master

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	wake   chan struct{} // look at the mounts now

	mu      sync.Mutex
	mounts  []*Mount
	started bool
	closing bool
	stop    context.Context // of the end; set with closing

	lastOK time.Time // of the keeper's goroutine: last answer that was OK
	known  bool      // the master has called this client OK since it last lost it
}

func newKeeper(c *Client) *keeper {
	k := &keeper{c: c, wake: make(chan struct{}, 1),
		// A heartbeat that takes longer than two periods is worth less than the next one.
		line: newMaster(&c.opt, c.opt.rpcConfig(min(c.opt.RPCTimeout, max(2*c.opt.Heartbeat, 500*time.Millisecond)), 1))}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k
}

func (k *keeper) add(m *Mount) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closing {
		return ErrClosed
	}
	k.mounts = append(k.mounts, m)
	if !k.started {
		k.started = true
		k.wg.Go(k.run)
		k.wg.Go(k.runTasks)
	}
	k.poke()
	return nil
}

func (k *keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// leave asks the keeper's goroutine to unmount.
func (k *keeper) leave(m *Mount) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m.leaving = true
	k.poke()
}

func (k *keeper) isLeaving(m *Mount) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return m.leaving || k.closing
}

// close unmounts everything and ends the goroutines.
func (k *keeper) close(ctx context.Context) error {
	k.mu.Lock()
	k.closing, k.stop = true, ctx
	started := k.started
	k.mu.Unlock()
	var errs []error
	if started {
		all := k.all()
		k.poke()
		for _, m := range all {
			select {
			case <-m.left:
				errs = append(errs, m.leaveErr)
			case <-ctx.Done():
				errs = append(errs, failf("unmount", "", ErrUnavailable, "the master has not taken note: %w", context.Cause(ctx)))
			}
		}
	}
	k.cancel()
	k.line.close() // ends a call under way
	k.wg.Wait()
	return errors.Join(errs...)
}

// How fast the first attempts to mount follow each other while the master does not answer.
const firstRetry = 50 * time.Millisecond

// run is the keeper's goroutine.
func (k *keeper) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	retry := firstRetry
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		k.unmountLeaving()
		if k.ctx.Err() != nil {
			return
		}
		begin := time.Now()
		ok := k.mountNew() && k.beat()
		next := k.c.opt.Heartbeat - time.Since(begin)
		if ok {
			retry = firstRetry
		} else {
			next = min(next, retry)
			retry = min(2*retry, k.c.opt.Heartbeat)
		}
		timer.Reset(max(next, time.Millisecond))
	}
}

// unmountLeaving unmounts what wants to go.
func (k *keeper) unmountLeaving() {
	for _, m := range k.all() {
		if !k.isLeaving(m) {
			continue
		}
		ctx, cancel := k.leaveContext()
		err := m.unmount(ctx)
		cancel()
		if err != nil {
			k.c.log.Warn("the master could not be told that a segment leaves; it drops it when its client_ttl is over", "segment", m.seg.Name, "err", err)
		}
		k.mu.Lock()
		k.mounts = slices.DeleteFunc(k.mounts, func(x *Mount) bool { return x == m })
		k.mu.Unlock()
		m.leaveErr = err
		close(m.left)
	}
}

// leaveContext bounds an unmount: by Close's context, and by what a living master takes.
func (k *keeper) leaveContext() (context.Context, context.CancelFunc) {
	k.mu.Lock()
	defer k.mu.Unlock()
	parent := k.ctx
	if k.stop != nil {
		parent = k.stop
	}
	return context.WithTimeout(parent, k.c.opt.UnmountGrace+10*time.Second)
}

// mountNew announces segments that the master does not have yet.
func (k *keeper) mountNew() bool {
	ok := true
	for _, m := range k.all() {
		if m.announced {
			continue
		}
		r, err := call(k.ctx, k.line, wire.MountSegment, idempotent, &wire.MountSegmentRequest{Segment: m.Segment(), Client: k.c.id})
		if _, err = unwrap("mount", "", r, err); err != nil {
			k.failed(m, err)
			ok = false
			continue
		}
		m.announced = true
		m.isMounted(true, nil)
		s := m.Segment()
		k.c.log.Info("segment is mounted", "segment", s.Name, "endpoint", s.TEEndpoint, "bytes", s.Size, "master", k.line.address())
	}
	return ok
}

// failed notes that a segment is not mounted.
func (k *keeper) failed(m *Mount, err error) {
	if k.ctx.Err() != nil {
		return
	}
	m.isMounted(false, err)
	k.c.warn.Log(k.ctx, k.c.log, slog.LevelWarn, "mount", "the segment is not mounted; trying again", "segment", m.seg.Name, "master", k.line.address(), "err", err)
}

// beat sends one heartbeat and does what the answer asks for.
func (k *keeper) beat() bool {
	r, err := call(k.ctx, k.line, wire.Ping, idempotent, &wire.ClientRequest{Client: k.c.id})
	reply, err := unwrap("heartbeat", "", r, err)
	switch {
	case err != nil:
		if k.ctx.Err() != nil {
			return false
		}
		k.c.m.heartbeats.WithLabelValues("failed").Inc()
		k.c.warn.Log(k.ctx, k.c.log, slog.LevelWarn, "heartbeat", "the master does not answer; it forgets this node and its objects after client_ttl", "master", k.line.address(),
			"last answer", k.sinceOK(), "err", err)
		for _, m := range k.all() {
			m.isMounted(false, err)
		}
		return false
	case reply.Status == wire.ClientNeedRemount:
		k.c.m.heartbeats.WithLabelValues("remount").Inc()
		return k.remount()
	}
	k.c.m.heartbeats.WithLabelValues("ok").Inc()
	k.lastOK, k.known = time.Now(), true
	for _, m := range k.all() {
		if m.announced {
			m.isMounted(true, nil)
		}
	}
	return true
}

func (k *keeper) sinceOK() string {
	if k.lastOK.IsZero() {
		return "never"
	}
	return time.Since(k.lastOK).Round(100*time.Millisecond).String() + " ago"
}

// remount brings the segments back to a master that does not count this client as mounted. That is so right after
// the first mount, where nothing is lost. Otherwise the master was restarted or has taken this node for dead: its
// objects are gone and their memory is given out again, so readers and writers of before must be kept out.
func (k *keeper) remount() bool {
	known := k.known
	k.known = false
	var list []*Mount
	var segs []wire.Segment
	for _, m := range k.all() {
		if !m.announced && !m.fenced {
			continue
		}
		lost, err := known, error(nil)
		if !m.fenced {
			if lost, err = k.lost(k.ctx, m.Segment().ID); errors.Is(err, ErrUnsupported) {
				lost, err = known, nil // a master without that question
			}
		}
		if err == nil && lost && !m.fenced {
			m.announced = false
			m.isMounted(false, errors.New("the master has lost the segment"))
			k.c.log.Warn("the master has lost this segment with its objects (it was restarted, or did not hear from us for client_ttl); mounting it again, empty",
				"segment", m.seg.Name, "last answer", k.sinceOK())
			if err = m.renew(k.ctx); err == nil {
				m.fenced = true
				k.c.m.remounts.Inc()
			}
		}
		if err != nil {
			k.failed(m, err)
			continue
		}
		list, segs = append(list, m), append(segs, m.Segment())
	}
	if len(list) == 0 {
		return false
	}
	r, err := call(k.ctx, k.line, wire.ReMountSegment, idempotent, &wire.ReMountSegmentRequest{Segments: segs, Client: k.c.id})
	if _, err = unwrap("mount", "", r, err); err != nil {
		for _, m := range list {
			k.failed(m, err)
		}
		return false
	}
	for _, m := range list {
		m.announced, m.fenced = true, false
		m.isMounted(true, nil)
	}
	return true
}

// Health is nil while everything that is lent is mounted and the heartbeat is answered, else the reason.
func (c *Client) Health() error {
	for _, m := range c.keep.all() {
		if err := m.Err(); err != nil {
			return err
		}
	}
	return nil
}
