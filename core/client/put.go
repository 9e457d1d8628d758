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

// Object is one object of a batch put. Its value is the concatenation of Parts.
type Object struct {
	Key   string
	Parts [][]byte
}

// Put stores value under key. Nobody sees the object before it is complete. An existing key is ErrExists (see
// [ExistsOK]), a full store ErrNoSpace (see [WaitForSpace]). value must not be empty.
func (c *Client) Put(ctx context.Context, key string, value []byte, opts ...PutOption) error {
	return c.putOne(ctx, &puts, Object{key, [][]byte{value}}, opts)
}

// PutParts is Put for a value that lies in several pieces of memory.
func (c *Client) PutParts(ctx context.Context, key string, parts [][]byte, opts ...PutOption) error {
	return c.putOne(ctx, &puts, Object{key, parts}, opts)
}

// PutBatch stores several objects with one call to the master before and one after the data, which is moved in
// parallel. The errors belong to the objects, in their order; nil means stored.
func (c *Client) PutBatch(ctx context.Context, objects []Object, opts ...PutOption) []error {
	return c.putAll(ctx, &puts, objects, opts, true)
}

// Upsert stores value under key and replaces an object that is there. The old object is gone from the start
// of the upsert on: if it fails, the key has no object. A value of the same size is written over the old
// one, which readers can notice by checksums only.
func (c *Client) Upsert(ctx context.Context, key string, value []byte, opts ...PutOption) error {
	return c.putOne(ctx, &upserts, Object{key, [][]byte{value}}, opts)
}

// UpsertParts is Upsert for a value that lies in several pieces of memory.
func (c *Client) UpsertParts(ctx context.Context, key string, parts [][]byte, opts ...PutOption) error {
	return c.putOne(ctx, &upserts, Object{key, parts}, opts)
}

// UpsertBatch is PutBatch that replaces.
func (c *Client) UpsertBatch(ctx context.Context, objects []Object, opts ...PutOption) []error {
	return c.putAll(ctx, &upserts, objects, opts, true)
}

func (c *Client) putOne(ctx context.Context, v *putVerb, o Object, opts []PutOption) error {
	return c.putAll(ctx, v, []Object{o}, opts, false)[0]
}

// writing is one object being put.
type writing struct {
	Object
	index    int // in the batch
	size     uint64
	sum      wire.Opt[uint64]
	replicas []wire.Replica
	disk     bool // the master wants a copy on a shared file system, which this client does not write
	started  bool // the master holds space for it, or may do so

	mu  sync.Mutex
	err error
}

func (w *writing) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

// putAll puts objects; batch tells whether to use the batch functions.
func (c *Client) putAll(ctx context.Context, v *putVerb, objects []Object, opts []PutOption, batch bool) []error {
	begin := time.Now()
	spec := c.spec(opts, len(objects))
	p := &putting{c: c, v: v, spec: spec, batch: batch}
	all := make([]*writing, len(objects))
	room := make([]writing, len(objects))
	bytes := uint64(0)
	for i, o := range objects {
		w := &room[i]
		w.Object, w.index = o, i
		all[i] = w
		for _, part := range o.Parts {
			w.size += uint64(len(part))
		}
		bytes += w.size * spec.cfg.Replicas
		switch {
		case c.engine == nil:
			w.err = errNoEngine
		case o.Key == "":
			w.err = fmt.Errorf("%w: the key is empty", ErrInvalid)
		case w.size == 0:
			w.err = fmt.Errorf("%w: the value is empty", ErrInvalid)
		case spec.groups != nil && len(spec.groups) != len(objects):
			w.err = fmt.Errorf("%w: %d group ids for %d objects", ErrInvalid, len(spec.groups), len(objects))
		}
	}
	p.run(ctx, all)
	errs := make([]error, len(all))
	var first error
	for i, w := range all {
		if w.err == nil {
			c.m.done(v.name, nil)
			continue
		}
		if spec.existsOK && errors.Is(w.err, wire.ErrObjectAlreadyExists) {
			c.m.done(v.name, fail(v.name, w.Key, ErrExists))
			continue
		}
		errs[i] = fail(v.name, w.Key, w.err)
		c.m.done(v.name, errs[i])
		if first == nil {
			first = errs[i]
		}
	}
	c.m.call(v.name, bytes, begin, first)
	return errs
}

// putting is one put call.
type putting struct {
	c     *Client
	v     *putVerb
	spec  *putSpec
	batch bool
}

func (p *putting) run(ctx context.Context, all []*writing) {
	p.start(ctx, good(all))
	if p.spec.whole && p.failed(all) {
		p.revoke(ctx, p.abort(all))
		return
	}
	open := good(all)
	p.c.write(ctx, open, p.spec.progress)
	if ctx.Err() != nil {
		for _, w := range open {
			w.fail(fmt.Errorf("%w: %w", ErrTransfer, context.Cause(ctx)))
		}
	}
	if p.spec.whole && p.failed(all) {
		p.revoke(ctx, p.abort(all))
		return
	}
	var bad []*writing
	for _, w := range open {
		if w.err != nil {
			bad = append(bad, w)
		}
	}
	if open = good(open); len(open) > 0 {
		bad = append(bad, p.end(ctx, open)...)
	}
	p.revoke(ctx, bad)
}

// good are those without an error.
func good(all []*writing) []*writing {
	ok := make([]*writing, 0, len(all))
	for _, w := range all {
		if w.err == nil {
			ok = append(ok, w)
		}
	}
	return ok
}

// failed tells whether an object of an all-or-nothing batch cannot be put.
func (p *putting) failed(all []*writing) bool {
	for _, w := range all {
		if w.err != nil && !(p.spec.existsOK && errors.Is(w.err, wire.ErrObjectAlreadyExists)) {
			return true
		}
	}
	return false
}

// abort gives up everything and returns what the master must forget.
func (p *putting) abort(all []*writing) (started []*writing) {
	for _, w := range all {
		w.fail(ErrAborted)
		if w.started {
			started = append(started, w)
		}
	}
	return started
}

// spacePause is the time between two attempts to get space: the master's eviction looks every 10 ms.
const (
	spacePauseMin = 20 * time.Millisecond
	spacePauseMax = 500 * time.Millisecond
)

// start gets replicas for the objects from the master.
func (p *putting) start(ctx context.Context, ws []*writing) {
	var deadline time.Time
	if p.spec.wait > 0 {
		deadline = time.Now().Add(p.spec.wait)
	}
	for pause := spacePauseMin; len(ws) > 0; pause = min(2*pause, spacePauseMax) {
		p.startOnce(ctx, ws)
		var full []*writing
		for _, w := range ws {
			if errors.Is(w.err, wire.ErrNoAvailableHandle) {
				full = append(full, w)
			}
		}
		if len(full) == 0 || time.Now().Add(pause).After(deadline) {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		for _, w := range full {
			w.err = nil
		}
		ws = full
	}
}

func (p *putting) startOnce(ctx context.Context, ws []*writing) {
	if err := p.c.revoking.wait(ctx, ws, p.c.opt.RPCTimeout); err != nil {
		for _, w := range ws {
			w.err = err
		}
		return
	}
	results, err := p.v.callStart(ctx, p, ws)
	if err == nil && len(results) != len(ws) {
		err = fmt.Errorf("%w: %d results for %d objects", ErrUnavailable, len(results), len(ws))
	}
	if err != nil {
		for _, w := range ws {
			w.err = err
		}
		if !errors.Is(err, rpc.ErrDial) { // it may have been served
			p.revokeLater(ctx, ws)
		}
		return
	}
	for i, w := range ws {
		r := &results[i]
		if r.Code != wire.OK {
			w.err = r.Code
			continue
		}
		w.started = true
		for _, rep := range r.Value {
			switch {
			case rep.Kind == wire.KindDisk:
				w.disk = true
			case rep.Kind != wire.KindMemory && rep.Kind != wire.KindNoF:
			case rep.Size != w.size:
				w.err = fmt.Errorf("%w: the master gave %d bytes for %d", ErrTransfer, rep.Size, w.size)
			default:
				w.replicas = append(w.replicas, rep)
			}
		}
		if len(w.replicas) == 0 && w.err == nil {
			w.err = fmt.Errorf("%w: the master placed no replica in memory", ErrUnsupported)
		}
		if w.err != nil {
			p.revokeLater(ctx, []*writing{w})
		}
	}
}

// end makes objects visible and returns those for which that failed, which are to be revoked.
func (p *putting) end(ctx context.Context, ws []*writing) (bad []*writing) {
	results, err := p.v.callEnd(ctx, p, ws)
	if err == nil && len(results) != len(ws) {
		err = fmt.Errorf("%w: %d results for %d objects", ErrUnavailable, len(results), len(ws))
	}
	if err != nil {
		for _, w := range ws {
			w.err = fmt.Errorf("the data is written, but not confirmed: %w", err)
		}
		p.revokeLater(ctx, ws) // has no effect on what was ended after all
		return nil
	}
	var disks []*writing
	for i, w := range ws {
		switch code := results[i].Code; {
		case code == wire.ErrObjectNotFound || code == wire.ErrIllegalClient || code == wire.ErrInvalidWrite:
			w.err = fmt.Errorf("%w: the master gave up this put meanwhile (it took too long, or the master was restarted): %w", ErrUnavailable, code)
		case code != wire.OK:
			w.err = code
			bad = append(bad, w)
		case w.disk:
			disks = append(disks, w)
		}
	}
	if len(disks) > 0 {
		p.callRevoke(ctx, disks, wire.ReplicaDisk)
	}
	return bad
}

// revoke lets the master forget objects whose put failed.
func (p *putting) revoke(ctx context.Context, ws []*writing) {
	if len(ws) > 0 {
		p.callRevoke(ctx, ws, wire.ReplicaAll)
	}
}

// revokeLimit bounds the revocation of a put whose own context may have ended.
const revokeLimit = 5 * time.Second

func (p *putting) callRevoke(ctx context.Context, ws []*writing, typ wire.ReplicaType) {
	ctx, cancel := detached(ctx, min(revokeLimit, p.c.opt.RPCTimeout))
	defer cancel()
	if _, err := p.v.callRevoke(ctx, p, ws, typ); err != nil {
		p.giveUp(ws, err)
	}
}

func (p *putting) giveUp(ws []*writing, err error) {
	p.c.log.Warn("a failed put could not be revoked; the master discards it by itself", "objects", len(ws), "key", ws[0].Key, "err", err)
}

// How long, and how often, a put whose outcome is unknown is revoked while the master does not answer. Later the
// master has discarded it by itself.
const (
	revokeWithin = 20 * time.Second
	revokePause  = 200 * time.Millisecond
	// The request to put may arrive after the one to revoke, on another connection. So "there is nothing to
	// revoke" is asked for this often.
	revokeRounds = 4
)

// revokeLater revokes after a call whose outcome is unknown: the master may be stopped for a while, which the
// caller must not wait for. Puts of the same keys by this client wait until it is over, because the master
// could not tell them from the one that is revoked.
func (p *putting) revokeLater(ctx context.Context, ws []*writing) {
	c := p.c
	ws = slices.Clone(ws)
	over, ok := c.revoking.add(ws)
	if !ok {
		return // closed
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeWithin)
	stop := context.AfterFunc(c.quit, cancel)
	c.bg.Go(func() {
		defer c.revoking.remove(ws, over)
		defer cancel()
		defer stop()
		for open, rounds := ws, 0; ; {
			results, err := p.v.callRevoke(ctx, p, open, wire.ReplicaAll)
			if err == nil && len(results) == len(open) {
				if open = unrevoked(open, results); len(open) == 0 {
					return
				}
				if rounds++; rounds == revokeRounds {
					return
				}
			}
			select {
			case <-time.After(revokePause):
			case <-ctx.Done():
				if rounds == 0 {
					p.giveUp(open, err)
				}
				return
			}
		}
	})
}

// unrevoked are the objects of which the master knew nothing.
func unrevoked(ws []*writing, results []endResult) []*writing {
	var open []*writing
	for i, w := range ws {
		if results[i].Code == wire.ErrObjectNotFound {
			open = append(open, w)
		}
	}
	return open
}

// revocations are the keys whose put is being revoked in the background.
type revocations struct {
	mu     sync.Mutex
	keys   map[string]chan struct{}
	closed bool
}

func (r *revocations) add(ws []*writing) (over chan struct{}, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false
	}
	if r.keys == nil {
		r.keys = map[string]chan struct{}{}
	}
	over = make(chan struct{})
	for _, w := range ws {
		r.keys[w.Key] = over
	}
	return over, true
}

func (r *revocations) remove(ws []*writing, over chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range ws {
		if r.keys[w.Key] == over {
			delete(r.keys, w.Key)
		}
	}
	close(over)
}

func (r *revocations) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// wait waits until none of the keys is being revoked, as long as a call to the master may take.
func (r *revocations) wait(ctx context.Context, ws []*writing, limit time.Duration) error {
	var late <-chan time.Time
	for {
		var over chan struct{}
		r.mu.Lock()
		if len(r.keys) > 0 {
			for _, w := range ws {
				if over = r.keys[w.Key]; over != nil {
					break
				}
			}
		}
		r.mu.Unlock()
		if over == nil {
			return nil
		}
		if late == nil {
			late = time.After(limit)
		}
		select {
		case <-over:
		case <-late:
			return fmt.Errorf("%w: an earlier put of this key has an unknown outcome and is still being revoked", ErrUnavailable)
		case <-ctx.Done():
			return fmt.Errorf("%w: an earlier put of this key is still being revoked: %w", ErrUnavailable, context.Cause(ctx))
		}
	}
}
