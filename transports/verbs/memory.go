package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

// registry holds the registered regions. mu is held for writing while a device is opened again, so that no region
// misses it, and for reading while a region is registered.
type registry struct {
	t  *Transport
	mu sync.RWMutex

	list struct {
		sync.RWMutex
		regs []*registration // sorted by addr
	}
}

// registration is one region on all devices.
type registration struct {
	t         *Transport
	addr, end uint64
	mem       []byte
	access    transports.Access
	location  string
	size      uint64 // of a chunk; the last may be smaller
	chunks    []chunk

	refs    atomic.Int64 // ops that use it as local memory
	closing atomic.Bool
	quiet   chan struct{} // holds a token when refs fell to 0 while closing
	once    sync.Mutex    // one Close at a time
	gone    bool          // guarded by once: nothing is registered any more
}

// chunk is a piece of a region that is no larger than the devices allow, with its registration on each.
type chunk struct {
	addr, len uint64
	on        []atomic.Pointer[handle] // by nic.index; nil where it is not registered
}

type handle struct{ m device.Memory }

// key returns the chunk's local key on a device.
func (c *chunk) key(n *nic) (uint32, bool) {
	h := c.on[n.index].Load()
	if h == nil {
		return 0, false
	}
	return h.m.LKey(), true
}

// chunkOf returns the chunk that holds addr.
func (r *registration) chunkOf(addr uint64) *chunk { return &r.chunks[(addr-r.addr)/r.size] }

func searchRegs(regs []*registration, addr uint64) (int, bool) {
	return slices.BinarySearchFunc(regs, addr, func(r *registration, a uint64) int {
		switch {
		case r.addr < a:
			return -1
		case r.addr > a:
			return 1
		}
		return 0
	})
}

func (g *registry) insert(r *registration) error {
	g.list.Lock()
	defer g.list.Unlock()
	regs := g.list.regs
	i, same := searchRegs(regs, r.addr)
	if same || (i > 0 && regs[i-1].end > r.addr) || (i < len(regs) && regs[i].addr < r.end) {
		return fmt.Errorf("verbs: region [%#x, %#x) overlaps a registered one", r.addr, r.end)
	}
	g.list.regs = slices.Insert(regs, i, r)
	return nil
}

func (g *registry) remove(r *registration) {
	g.list.Lock()
	defer g.list.Unlock()
	if i, ok := searchRegs(g.list.regs, r.addr); ok && g.list.regs[i] == r {
		g.list.regs = slices.Delete(g.list.regs, i, i+1)
	}
}

// all returns the registrations in order of their addresses.
func (g *registry) all() []*registration {
	g.list.RLock()
	defer g.list.RUnlock()
	return slices.Clone(g.list.regs)
}

// find returns the registration that holds addr, or nil.
func (g *registry) find(addr uint64) *registration {
	g.list.RLock()
	defer g.list.RUnlock()
	i, same := searchRegs(g.list.regs, addr)
	if !same {
		i--
	}
	if i < 0 || addr >= g.list.regs[i].end {
		return nil
	}
	return g.list.regs[i]
}

// acquire returns the registration that contains [addr, addr+n), counted as in use, or nil. closing tells that there
// is one whose end has begun.
func (g *registry) acquire(addr, n uint64) (r *registration, closing bool) {
	g.list.RLock()
	defer g.list.RUnlock()
	i, same := searchRegs(g.list.regs, addr)
	if !same {
		i--
	}
	if i < 0 {
		return nil, false
	}
	r = g.list.regs[i]
	if addr > r.end || n > r.end-addr {
		return nil, false
	}
	if r.closing.Load() { // changes only under the write lock
		return nil, true
	}
	r.refs.Add(1)
	return r, false
}

func (r *registration) release() {
	if r.refs.Add(-1) == 0 && r.closing.Load() {
		r.wakeOne()
	}
}

func (r *registration) wakeOne() {
	select {
	case r.quiet <- struct{}{}:
	default:
	}
}

// Register implements transports.Transport. Any memory can be registered that the kernel can pin. Before Start the
// devices are not known; Start registers then.
func (t *Transport) Register(ctx context.Context, r transports.Region) (transports.Registration, error) {
	reg := &registration{t: t, addr: r.Addr(), end: r.Addr() + r.Len(), mem: r.Bytes(), access: r.Access(), location: r.Location(), quiet: make(chan struct{}, 1)}
	if reg.addr == 0 || reg.end <= reg.addr {
		return nil, fmt.Errorf("verbs: region of %d bytes at %#x is no range of memory", r.Len(), r.Addr())
	}
	t.regs.mu.RLock()
	defer t.regs.mu.RUnlock()
	if t.isClosed() {
		return nil, fmt.Errorf("verbs: register: %w", transports.ErrClosed)
	}
	if t.isStarted() {
		if err := reg.pin(ctx, t.nics); err != nil {
			return nil, err
		}
	}
	if err := t.regs.insert(reg); err != nil {
		return nil, errors.Join(err, reg.unpin())
	}
	return reg, nil
}

// cut divides the region into chunks.
func (r *registration) cut(nics []*nic) {
	if r.location == "" || r.location == anywhere {
		r.location = locate(r.mem)
	}
	r.size = chunkSize(uint64(r.t.cfg.MaxMRSize), nics)
	for at := r.addr; at < r.end; {
		n := min(r.size, r.end-at)
		r.chunks = append(r.chunks, chunk{addr: at, len: n, on: make([]atomic.Pointer[handle], len(nics))})
		at += n
	}
}

// chunkSize is the largest memory region that all devices allow, in whole pages.
func chunkSize(limit uint64, nics []*nic) uint64 {
	for _, n := range nics {
		n.mu.RLock()
		if m := n.limits.MaxMRSize; m > 0 {
			limit = min(limit, m)
		}
		n.mu.RUnlock()
	}
	const page = 2 << 20
	if limit > page {
		return limit &^ (page - 1)
	}
	return max(limit&^4095, 4096)
}

// pin registers the region on all devices that are open, all or none.
func (r *registration) pin(ctx context.Context, nics []*nic) error {
	r.cut(nics)
	g, gctx := errgroup.WithContext(ctx)
	switch p := r.t.cfg.ParallelRegistration; {
	case p == 0 || p < 0 && len(nics) < 2:
		g.SetLimit(1)
	case r.t.cfg.ConcurrentRegistering > 0:
		g.SetLimit(r.t.cfg.ConcurrentRegistering)
	}
	for _, n := range nics {
		g.Go(func() error { return r.pinOn(gctx, n) })
	}
	if err := g.Wait(); err != nil {
		return errors.Join(err, r.unpin())
	}
	return nil
}

// pinOn registers the region on one device.
func (r *registration) pinOn(ctx context.Context, n *nic) error {
	n.mu.RLock()
	dev, limits := n.dev, n.limits
	n.mu.RUnlock()
	if dev == nil {
		return nil
	}
	access := device.AccessLocalWrite
	if r.access&transports.RemoteRead != 0 {
		access |= device.AccessRemoteRead
	}
	if r.access&transports.RemoteWrite != 0 {
		access |= device.AccessRemoteWrite
	}
	if r.t.cfg.RelaxedOrdering != 0 && limits.RelaxedOrdering {
		access |= device.AccessRelaxedOrdering
	}
	for i := range r.chunks {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("verbs: register on %s: %w", n.name, err)
		}
		c := &r.chunks[i]
		off := c.addr - r.addr
		m, err := dev.RegisterMemory(r.mem[off:off+c.len:off+c.len], c.addr, access)
		if err != nil {
			return fmt.Errorf("verbs: device %s cannot register %s at %#x (piece %d of %d; the device allows %s in one piece and %d pieces; see ulimit -l and max_mr_size): %w",
				n.name, units.Size(c.len), c.addr, i+1, len(r.chunks), units.Size(limits.MaxMRSize), limits.MaxMR, err)
		}
		c.on[n.index].Store(&handle{m})
		r.t.m.regions.Inc()
	}
	return nil
}

// unpin ends the registrations on all devices.
func (r *registration) unpin() error {
	var errs []error
	for _, n := range r.t.nics {
		errs = append(errs, r.unpinOn(n))
	}
	return errors.Join(errs...)
}

func (r *registration) unpinOn(n *nic) error {
	var errs []error
	for i := range r.chunks {
		c := &r.chunks[i]
		h := c.on[n.index].Load()
		if h == nil {
			continue
		}
		if err := h.m.Close(); err != nil {
			errs = append(errs, fmt.Errorf("verbs: device %s keeps [%#x, %#x): %w", n.name, c.addr, c.addr+c.len, err))
			continue
		}
		c.on[n.index].Store(nil)
		r.t.m.regions.Dec()
	}
	return errors.Join(errs...)
}

// pinAll registers everything that was registered before Start.
func (g *registry) pinAll(ctx context.Context) error {
	for _, r := range g.all() {
		if err := r.pin(ctx, g.t.nics); err != nil {
			return err
		}
	}
	return nil
}

// addDevice registers everything on a device that was opened again. mu is held for writing.
func (g *registry) addDevice(ctx context.Context, n *nic) error {
	for _, r := range g.all() {
		if err := r.pinOn(ctx, n); err != nil {
			return errors.Join(err, g.dropDevice(n))
		}
	}
	return nil
}

// dropDevice ends all registrations on a device.
func (g *registry) dropDevice(n *nic) error {
	var errs []error
	for _, r := range g.all() {
		r.once.Lock()
		if !r.gone {
			errs = append(errs, r.unpinOn(n))
		}
		r.once.Unlock()
	}
	return errors.Join(errs...)
}

// Close implements transports.Registration. Ops that have not begun end with ErrClosed; those under way are waited for.
// When ctx ends before, their connections are made to fail, which takes the memory back from the devices.
func (r *registration) Close(ctx context.Context) error {
	r.once.Lock()
	defer r.once.Unlock()
	if r.gone {
		return nil
	}
	g := &r.t.regs
	g.list.Lock()
	r.closing.Store(true)
	g.list.Unlock()
	r.t.eachPeer(func(p *Peer) { p.dropLocal(r, errLocalGone) })
	if !r.wait(ctx.Done()) {
		r.t.eachPeer(func(p *Peer) { p.cutOff(func(o *op) bool { return o.reg == r }, errLocalGone) })
		grace := make(chan struct{})
		stop := time.AfterFunc(drainTimeout+time.Second, func() { close(grace) })
		defer stop.Stop()
		if !r.wait(grace) {
			return fmt.Errorf("verbs: region [%#x, %#x) has %d users left: %w: %w", r.addr, r.end, r.refs.Load(), transports.ErrUnquiet, context.Cause(ctx))
		}
	}
	if err := r.unpin(); err != nil {
		return fmt.Errorf("%w: %w", transports.ErrUnquiet, err)
	}
	r.gone = true
	g.remove(r)
	return nil
}

var errLocalGone = fmt.Errorf("verbs: local region is being unregistered: %w", transports.ErrClosed)

// wait is true when nothing uses the region, false when end was closed first.
func (r *registration) wait(end <-chan struct{}) bool {
	for r.refs.Load() != 0 {
		select {
		case <-r.quiet:
		case <-end:
			return r.refs.Load() == 0
		}
	}
	return true
}
