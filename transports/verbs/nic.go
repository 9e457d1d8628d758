package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/internal/rdmasys"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

// nic is one device of this node. It exists from Start to Close; the device behind it may be lost and opened again.
type nic struct {
	t     *Transport
	index int // in Transport.nics, in documents and in the keys of chunks
	name  string
	path  string // "<server>@<name>": how peers name it

	store  store
	rails  railTable
	bytes  atomic.Int64 // payload of slices on their way through this device
	nextQP atomic.Uint32

	mu      sync.RWMutex
	dev     device.Device // nil while lost
	limits  device.Limits
	port    device.Port
	gid     device.GIDEntry
	ranked  []device.GIDEntry // what else could be used, the best first
	regrets int               // GIDs given up
	queues  []*queue
	down    error // why it is not used, nil while it is
	lost    bool  // the device is being opened again
	alive   int   // endpoints whose queue pairs are not destroyed
	quiet   *sync.Cond
}

func newNIC(t *Transport, index int, name string) *nic {
	n := &nic{t: t, index: index, name: name, path: nicPath(t.server, name), down: errors.New("it is not opened")}
	n.quiet = sync.NewCond(&n.mu)
	n.store.init(n)
	n.rails.n = n
	return n
}

// open opens the device and makes its completion queues. n.mu is not held.
func (n *nic) open() (err error) {
	dev, err := n.t.provider.Open(n.name)
	if err != nil {
		return err
	}
	var queues []*queue
	defer func() {
		if err != nil {
			for _, q := range queues {
				q.cq.Close()
			}
			dev.Close()
		}
	}()
	l := dev.Limits()
	if n.t.cfg.Port > l.Ports {
		return fmt.Errorf("device %s has %d ports, and port %d is configured", n.name, l.Ports, n.t.cfg.Port)
	}
	depth := n.t.cfg.MaxCQE
	if l.MaxCQE > 0 {
		depth = min(depth, l.MaxCQE)
	}
	for range n.t.cfg.CQs {
		cq, err := dev.NewCQ(depth)
		if err != nil {
			return fmt.Errorf("completion queue of %d entries: %w", depth, err)
		}
		queues = append(queues, newQueue(n, cq, depth))
	}
	n.mu.Lock()
	n.dev, n.limits, n.queues = dev, l, queues
	n.mu.Unlock()
	limit := n.t.cfg.MaxEndpoints
	if l.MaxQP > 0 {
		limit = min(limit, max(l.MaxQP/n.t.cfg.QPs, 1))
	}
	n.store.limit(limit)
	return nil
}

// serve starts the goroutines of an opened device.
func (n *nic) serve() {
	n.mu.RLock()
	dev, queues := n.dev, n.queues
	n.mu.RUnlock()
	for _, q := range queues {
		q.wg.Go(q.run)
	}
	n.t.wg.Go(func() { n.watch(dev) })
}

// refresh asks for the state of the port and the GID table, and decides whether the device can be used.
func (n *nic) refresh() (changed bool) {
	n.mu.RLock()
	dev, was, gid := n.dev, n.down, n.gid
	n.mu.RUnlock()
	if dev == nil {
		return false
	}
	port, err := dev.Port(n.t.cfg.Port)
	var ranked []device.GIDEntry
	switch {
	case err != nil:
		err = fmt.Errorf("its port %d cannot be asked: %w", n.t.cfg.Port, err)
	case port.State != device.PortActive:
		err = fmt.Errorf("its port %d is not active", n.t.cfg.Port)
	default:
		var all []device.GIDEntry
		if all, err = dev.GIDs(n.t.cfg.Port); err == nil {
			ranked, err = rankGIDs(all, n.t.cfg.GIDIndex)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dev != dev {
		return false
	}
	n.down = err
	if err == nil {
		n.port, n.ranked = port, ranked
		if !containsGID(ranked, gid) { // else stay with what is published
			n.gid, n.regrets = ranked[0], 0
		}
	}
	n.t.m.deviceUp.WithLabelValues(n.name).Set(boolFloat(err == nil))
	return (was == nil) != (err == nil) || n.gid != gid
}

func boolFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func containsGID(list []device.GIDEntry, g device.GIDEntry) bool {
	for _, e := range list {
		if e == g {
			return true
		}
	}
	return false
}

// rankGIDs orders the entries that can be used, the best first; with a pinned index it is that one.
func rankGIDs(all []device.GIDEntry, pinned int) ([]device.GIDEntry, error) {
	gids := make([]rdmasys.GID, len(all))
	for i, e := range all {
		gids[i] = rdmasys.GID{Index: e.Index, Addr: netip.AddrFrom16(e.GID), Type: gidType(e.Type), NetDev: e.NetDev}
	}
	entry := func(index int) device.GIDEntry {
		for _, e := range all {
			if e.Index == index {
				return e
			}
		}
		return device.GIDEntry{}
	}
	best, err := rdmasys.Choose(gids, pinned)
	if err != nil {
		return nil, err
	}
	if pinned >= 0 {
		return []device.GIDEntry{entry(best.Index)}, nil
	}
	var out []device.GIDEntry
	for _, c := range rdmasys.Rank(gids) {
		out = append(out, entry(c.Index))
	}
	return out, nil
}

func gidType(t device.GIDType) rdmasys.GIDType {
	switch t {
	case device.GIDInfiniBand:
		return rdmasys.IB
	case device.GIDRoCEv1:
		return rdmasys.RoCEv1
	case device.GIDRoCEv2:
		return rdmasys.RoCEv2
	}
	return rdmasys.UnknownGID
}

// regretGID takes the next best GID after a peer could not be reached from bad. It is false when there is none
// or enough were tried.
func (n *nic) regretGID(bad device.GIDEntry) bool {
	n.mu.Lock()
	if n.gid != bad { // somebody else was faster
		n.mu.Unlock()
		return true
	}
	if n.t.cfg.GIDIndex >= 0 || n.regrets >= n.t.cfg.GIDRetries {
		n.mu.Unlock()
		return false
	}
	for i, g := range n.ranked {
		if g == bad && i+1 < len(n.ranked) {
			n.gid = n.ranked[i+1]
			n.regrets++
			gid := n.gid
			n.mu.Unlock()
			n.t.log.Warn("a peer cannot be reached from this GID, the next one is used", "device", n.name, "gid", bad.GID.String(), "next", gid.GID.String(), "index", gid.Index)
			n.t.republish()
			return true
		}
	}
	n.mu.Unlock()
	return false
}

// usable is nil when new work may go through the device.
func (n *nic) usable() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.down != nil {
		return fmt.Errorf("device %s: %w", n.name, n.down)
	}
	return nil
}

// watch handles the device's events until it is closed.
func (n *nic) watch(dev device.Device) {
	for {
		e, err := dev.Event(n.t.ctx)
		if err != nil {
			if n.t.ctx.Err() == nil && !errors.Is(err, device.ErrClosed) {
				n.lose(dev, fmt.Errorf("its events cannot be read: %w", err))
			}
			return
		}
		n.t.m.deviceEvents.WithLabelValues(n.name, eventName(e.Kind)).Inc()
		switch e.Kind {
		case device.EventDeviceFatal:
			n.lose(dev, errors.New("it reported a fatal error"))
			return
		case device.EventQPFatal, device.EventQPRequestError, device.EventQPAccessError:
			n.store.failQP(e.QP, fmt.Errorf("device %s: event %s on queue pair %d", n.name, eventName(e.Kind), e.QP))
		case device.EventCQError:
			n.lose(dev, errors.New("a completion queue failed"))
			return
		case device.EventPortError, device.EventPortActive, device.EventLIDChange, device.EventGIDChange, device.EventPKeyChange, device.EventClientReregister:
			n.portEvent(e)
		}
	}
}

func (n *nic) portEvent(e device.Event) {
	if e.Port != 0 && e.Port != n.t.cfg.Port {
		return
	}
	was := n.usable()
	changed := n.refresh()
	now := n.usable()
	switch {
	case now != nil && was == nil:
		n.t.log.Warn("device is not used for now", "device", n.name, "event", eventName(e.Kind), "err", now)
		n.store.failAll(fmt.Errorf("%w: %w", now, transports.ErrInterrupted))
	case now == nil && was != nil:
		n.t.log.Info("device is used again", "device", n.name, "event", eventName(e.Kind))
		n.rails.forgive()
	case changed: // connections carry the old address
		n.t.log.Info("address of a device has changed", "device", n.name, "gid", n.address().GID.String())
		n.store.failAll(fmt.Errorf("device %s: its address has changed: %w", n.name, transports.ErrInterrupted))
	}
	if changed {
		n.t.republish()
	}
}

func (n *nic) address() device.GIDEntry {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.gid
}

// lose gives the device up and has it opened again.
func (n *nic) lose(dev device.Device, why error) {
	n.mu.Lock()
	if n.dev != dev || n.lost {
		n.mu.Unlock()
		return
	}
	n.lost, n.down = true, why
	n.mu.Unlock()
	n.t.m.deviceUp.WithLabelValues(n.name).Set(0)
	if !n.t.spawn(func() { n.replace(dev, why) }) {
		return
	}
	n.t.log.Error("device is lost; it will be opened again", "device", n.name, "err", why)
}

// replace closes the lost device and opens it again, trying until that works or the transport ends.
func (n *nic) replace(dev device.Device, why error) {
	n.store.failAll(fmt.Errorf("device %s: %w: %w", n.name, why, transports.ErrInterrupted))
	n.shut()
	n.t.republish()
	pause := n.t.cfg.ReopenPause
	for {
		select {
		case <-n.t.ctx.Done():
			return
		case <-time.After(pause):
		}
		err := n.reopen()
		if err == nil {
			return
		}
		if c, ok := n.t.logs.Allow("reopen " + n.name); ok {
			n.t.log.Warn("device cannot be opened again yet", "device", n.name, "err", err, "not_shown_before", c)
		}
		pause = min(2*pause, max(time.Minute, n.t.cfg.ReopenPause))
	}
}

// shut waits for the end of all connections and closes everything of the device.
func (n *nic) shut() (err error) {
	n.waitDrained()
	n.mu.Lock()
	dev, queues := n.dev, n.queues
	n.dev, n.queues = nil, nil
	n.mu.Unlock()
	if dev == nil {
		return nil
	}
	var errs []error
	for _, q := range queues {
		errs = append(errs, q.close())
	}
	errs = append(errs, n.t.regs.dropDevice(n), dev.Close())
	return errors.Join(errs...)
}

func (n *nic) waitDrained() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.alive > 0 {
		n.quiet.Wait()
	}
}

func (n *nic) reopen() error {
	n.t.regs.mu.Lock() // no registration may miss the new device
	defer n.t.regs.mu.Unlock()
	if n.t.ctx.Err() != nil {
		return n.t.ctx.Err()
	}
	if err := n.open(); err != nil {
		return err
	}
	if err := n.t.regs.addDevice(n.t.ctx, n); err != nil {
		n.mu.Lock()
		dev, queues := n.dev, n.queues
		n.dev, n.queues = nil, nil
		n.mu.Unlock()
		for _, q := range queues {
			q.cq.Close()
		}
		return errors.Join(err, dev.Close())
	}
	n.mu.Lock()
	n.lost = false
	n.mu.Unlock()
	n.rails.forgive()
	n.refresh()
	n.serve()
	n.t.log.Info("device was opened again", "device", n.name, "usable", n.usable() == nil)
	n.t.republish()
	return nil
}

// pollBatch is how many completions are taken at once.
const pollBatch = 64

// queue is one completion queue with its poller.
type queue struct {
	n     *nic
	cq    device.CQ
	depth int64
	wg    sync.WaitGroup
	end   context.Context
	stop  context.CancelFunc

	used atomic.Int64 // entries reserved for posted work
	poll sync.Mutex   // one poller at a time

	mu      sync.Mutex
	qps     map[uint32]*qpair // by id
	waiting []*endpoint       // that want entries
}

func newQueue(n *nic, cq device.CQ, depth int) *queue {
	q := &queue{n: n, cq: cq, depth: int64(depth), qps: map[uint32]*qpair{}}
	q.end, q.stop = context.WithCancel(context.Background())
	return q
}

// reserve takes up to want entries.
func (q *queue) reserve(want int) int {
	for {
		used := q.used.Load()
		n := min(int64(want), q.depth-used)
		if n <= 0 {
			return 0
		}
		if q.used.CompareAndSwap(used, used+n) {
			return int(n)
		}
	}
}

// release gives entries back and lets those continue who wait for some.
func (q *queue) release(n int) {
	q.used.Add(int64(-n))
	q.mu.Lock()
	var next *endpoint
	if len(q.waiting) > 0 {
		next = q.waiting[0]
		q.waiting = q.waiting[1:]
		next.queued.Store(false)
	}
	q.mu.Unlock()
	if next != nil {
		next.kick()
	}
}

// wait puts e on the list of those that want entries.
func (q *queue) wait(e *endpoint) {
	if !e.queued.CompareAndSwap(false, true) {
		return
	}
	q.mu.Lock()
	q.waiting = append(q.waiting, e)
	q.mu.Unlock()
	if q.used.Load() < q.depth { // some came back meanwhile
		q.release(0)
	}
}

func (q *queue) find(id uint32) *qpair {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.qps[id]
}

// take polls once and handles what it finds. It is false when there was nothing, or somebody else polls.
func (q *queue) take() (bool, error) {
	if !q.poll.TryLock() {
		return false, nil
	}
	var wcs [pollBatch]device.Completion
	n, err := q.cq.Poll(wcs[:])
	q.poll.Unlock()
	if err != nil || n == 0 {
		return false, err
	}
	q.handle(wcs[:n])
	return true, nil
}

// handle finishes the slices of completions, those of one queue pair together.
func (q *queue) handle(wcs []device.Completion) {
	for i := 0; i < len(wcs); {
		id := uint32(wcs[i].ID >> 32)
		k := i + 1
		for k < len(wcs) && uint32(wcs[k].ID>>32) == id {
			k++
		}
		if p := q.find(id); p != nil { // else its endpoint gave up waiting for it
			p.completed(wcs[i:k])
		}
		i = k
	}
}

// close ends the poller and the queue. All queue pairs must be gone.
func (q *queue) close() error {
	q.stop()
	q.wg.Wait()
	return q.cq.Close()
}
