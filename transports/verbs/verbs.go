package verbs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/logx"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/verbs/device"
	"github.com/mooncake-agent/mooncake/transports/verbs/ibv"
)

func init() {
	module.Define(transports.Kind, "verbs", "RDMA over InfiniBand verbs; speaks with unmodified Mooncake engines", defaultConfig(), New,
		module.Alias("rdma"), module.Probe(probe))
}

var _ transports.Transport = (*Transport)(nil)

// probe tells whether this machine has the library.
func probe() error {
	if _, err := ibv.New(); err != nil {
		return fmt.Errorf("%w: %w", err, module.ErrSkip)
	}
	return nil
}

// Transport implements [transports.Transport] over RDMA devices.
type Transport struct {
	cfg      Config
	m        *metrics
	log      *slog.Logger
	logs     *logx.Limiter
	epoch    time.Time
	provider device.Provider
	sys      fs.FS // the machine's file system
	affinity affinity
	servers  servers
	regs     registry

	// Set by Start.
	host   transports.Host
	server string // of our NIC paths
	nics   []*nic
	matrix matrix

	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // for the janitor
	drains sync.WaitGroup
	wg     sync.WaitGroup

	mu      sync.Mutex
	started bool
	closed  bool
	peers   map[*Peer]struct{}
	closing sync.Once
	err     error // of Close
}

// New returns a transport that is not started. It has no side effects but the metrics' registration. The error wraps
// module.ErrSkip where there is no libibverbs.
func New(_ context.Context, env module.Env, cfg Config) (transports.Transport, error) {
	p, err := ibv.New()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, module.ErrSkip)
	}
	t, err := newTransport(env, cfg, p, os.DirFS("/"))
	if err != nil {
		return nil, err
	}
	return t, nil
}

func newTransport(env module.Env, cfg Config, p device.Provider, sys fs.FS) (*Transport, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a, err := parseAffinity(cfg.PeerAffinity)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(env.Metrics, env.Name)
	if err != nil {
		return nil, err
	}
	t := &Transport{cfg: cfg, m: m, log: env.Log, logs: logx.Every(10 * time.Second), epoch: time.Now(), provider: p, sys: sys, affinity: a,
		wake: make(chan struct{}, 1), peers: map[*Peer]struct{}{}}
	t.servers.first = cfg.ConnectPause
	t.regs.t = t
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t, nil
}

// now is the time since New.
func (t *Transport) now() time.Duration { return time.Since(t.epoch) }

// spawn runs f in a goroutine that Close waits for; false after Close.
func (t *Transport) spawn(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.wg.Go(f)
	return true
}

func (t *Transport) isStarted() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.started
}

func (t *Transport) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

// Start implements transports.Transport. It opens the devices, and fails when there is none that could be used.
func (t *Transport) Start(ctx context.Context, h transports.Host) (err error) {
	t.regs.mu.Lock()
	defer t.regs.mu.Unlock()
	t.mu.Lock()
	closed, started := t.closed, t.started
	t.mu.Unlock()
	if closed {
		return fmt.Errorf("verbs: start: %w", transports.ErrClosed)
	}
	if started {
		return errors.New("verbs: started twice")
	}
	t.host, t.server = h, serverName(h.Identity().Segment, t.cfg.BindAddress)
	names, err := t.chooseDevices()
	if err != nil {
		return err
	}
	if err := t.openDevices(names); err != nil {
		return err
	}
	if err := t.regs.pinAll(ctx); err != nil {
		return errors.Join(err, t.shutDevices())
	}
	t.mu.Lock()
	t.started = true
	t.mu.Unlock()
	for _, n := range t.nics {
		n.serve()
		g := n.address()
		t.log.Info("device is in use", "device", n.name, "port", t.cfg.Port, "gid_index", g.Index, "gid", g.GID.String(), "type", g.Type.String(), "mtu", n.pathMTU().Bytes())
	}
	h.OnSignal(typeConnection, func(ctx context.Context, _ net.Addr, req []byte) []byte { return t.onConnection(ctx, req) })
	t.wg.Go(t.janitor)
	return nil
}

// serverName is the first part of our NIC paths.
func serverName(segment, host string) string {
	if host == "" {
		return segment
	}
	_, port, err := net.SplitHostPort(segment)
	if err != nil {
		port = "12001" // upstream's default
	}
	return net.JoinHostPort(host, port)
}

// chooseDevices returns the names of the devices to be used.
func (t *Transport) chooseDevices() ([]string, error) {
	all, err := t.provider.Devices()
	if err != nil {
		return nil, fmt.Errorf("verbs: list of devices: %w", err)
	}
	if len(all) == 0 {
		return nil, errors.New("verbs: this machine has no RDMA devices")
	}
	if len(t.cfg.Devices) == 0 {
		return all, nil
	}
	var names []string
	for _, want := range t.cfg.Devices {
		switch {
		case !slices.Contains(all, want):
			t.log.Warn("no such RDMA device", "device", want, "there_is", all)
		case !slices.Contains(names, want):
			names = append(names, want)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("verbs: devices: none of %q is on this machine, which has %q", t.cfg.Devices, all)
	}
	return names, nil
}

// openDevices fills nics and matrix. Devices that cannot be opened are left out; those whose port is down may come
// up later, but one must be usable now.
func (t *Transport) openDevices(names []string) error {
	var errs []error
	usable := 0
	for _, name := range names {
		n := newNIC(t, len(t.nics), name)
		if err := n.open(); err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", name, err))
			t.log.Warn("device is left out", "device", name, "err", err)
			continue
		}
		t.nics = append(t.nics, n)
		n.refresh()
		if err := n.usable(); err != nil {
			errs = append(errs, err)
			t.log.Warn("device cannot be used yet", "device", name, "err", err)
			continue
		}
		usable++
	}
	if usable == 0 {
		return errors.Join(fmt.Errorf("verbs: no device can be used: %w", errors.Join(errs...)), t.shutDevices())
	}
	var used []string
	for _, n := range t.nics {
		used = append(used, n.name)
	}
	if t.cfg.TopologyFile != "" {
		m, err := readTopology(t.cfg.TopologyFile)
		if err == nil && len(m.keep(used)) == 0 {
			err = fmt.Errorf("topology_file: %s names none of the devices in use: %q", t.cfg.TopologyFile, used)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("verbs: %w", err), t.shutDevices())
		}
		t.matrix = m.keep(used)
		return nil
	}
	t.matrix = discover(t.sys, used)
	return nil
}

func (t *Transport) shutDevices() error {
	var errs []error
	for _, n := range t.nics {
		errs = append(errs, n.shut())
	}
	return errors.Join(errs...)
}

// byPath returns our device of that NIC path, or nil.
func (t *Transport) byPath(path string) *nic {
	for _, n := range t.nics {
		if n.path == path {
			return n
		}
	}
	return nil
}

// Describe implements transports.Transport. A document that is to have another protocol is left as it is. With rdma, it
// gets the devices that are open, with each region's keys; a region larger than the devices allow becomes several
// buffers, and the name of each buffer is the memory's location.
func (t *Transport) Describe(d *transports.Descriptor) {
	if !t.isStarted() || d.Protocol != "" && !isRDMA(d) {
		return
	}
	var open []*nic
	for _, n := range t.nics {
		n.mu.RLock()
		if n.dev != nil && !n.gid.GID.IsZero() {
			open = append(open, n)
		}
		n.mu.RUnlock()
	}
	buffers, ok := t.describeBuffers(d.Buffers, open)
	if len(open) == 0 || !ok {
		return
	}
	if d.Protocol == "" {
		d.Protocol = "rdma"
	}
	d.Buffers = buffers
	d.Devices = make([]transports.Device, len(open))
	names := make([]string, len(open))
	for i, n := range open {
		n.mu.RLock()
		d.Devices[i] = transports.Device{Name: n.name, LID: n.port.LID, GID: n.gid.GID.String()}
		n.mu.RUnlock()
		names[i] = n.name
	}
	d.PriorityMatrix = t.matrix.keep(names).encode()
	if t.server != d.Name {
		d.RDMAServerName = t.server
	}
}

// describeBuffers is false when a region is missing on a device that is just being opened or lost.
func (t *Transport) describeBuffers(in []transports.Buffer, open []*nic) ([]transports.Buffer, bool) {
	out := make([]transports.Buffer, 0, len(in))
	for i := range in {
		b := &in[i]
		r := t.regs.find(b.Addr)
		if r == nil || len(r.chunks) == 0 { // memory of another transport: no keys
			e := *b
			e.RKey, e.LKey = []uint32{}, []uint32{}
			out = append(out, e)
			continue
		}
		for c := range r.chunks {
			k := &r.chunks[c]
			if k.addr < b.Addr || k.addr >= b.Addr+b.Length {
				continue
			}
			e := transports.Buffer{Name: r.location, Addr: k.addr, Length: k.len}
			for _, n := range open {
				h := k.on[n.index].Load()
				if h == nil {
					return nil, false
				}
				e.LKey, e.RKey = append(e.LKey, h.m.LKey()), append(e.RKey, h.m.RKey())
			}
			out = append(out, e)
		}
	}
	return out, true
}

// Reach implements transports.Transport.
func (t *Transport) Reach(d *transports.Descriptor) error {
	none := func(why string) error {
		return fmt.Errorf("verbs: segment %q: %s: %w", d.Name, why, transports.ErrUnreachable)
	}
	switch {
	case !isRDMA(d):
		return none(fmt.Sprintf("its protocol is %q", d.Protocol))
	case len(d.Devices) == 0:
		return none("it names no devices")
	case d.Name == "" && d.RDMAServerName == "":
		return none("it has no name")
	case !t.isStarted():
		return none("the transport is not started")
	}
	return nil
}

// Dial implements transports.Transport. Queue pairs are connected when the first op needs them.
func (t *Transport) Dial(_ context.Context, d *transports.Descriptor) (transports.Peer, error) {
	t.mu.Lock()
	ready := t.started && !t.closed
	t.mu.Unlock()
	if !ready {
		return nil, fmt.Errorf("verbs: dial segment %q: transport is not started or was closed: %w", d.Name, transports.ErrClosed)
	}
	if err := t.Reach(d); err != nil {
		return nil, err
	}
	r, err := newRemote(d)
	if err != nil {
		return nil, err
	}
	p := newPeer(t, r)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("verbs: dial segment %q: %w", d.Name, transports.ErrClosed)
	}
	t.peers[p] = struct{}{}
	return p, nil
}

func (t *Transport) forget(p *Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.peers, p)
}

func (t *Transport) eachPeer(f func(*Peer)) {
	t.mu.Lock()
	all := make([]*Peer, 0, len(t.peers))
	for p := range t.peers {
		all = append(all, p)
	}
	t.mu.Unlock()
	for _, p := range all {
		f(p)
	}
}

// republish tells the engine that Describe would answer differently now.
func (t *Transport) republish() {
	if h, ok := t.host.(transports.Republisher); ok {
		h.Republish()
	}
}

// Close implements transports.Transport.
func (t *Transport) Close() error {
	t.closing.Do(func() {
		t.cancel() // no new connections, no device is opened again
		t.mu.Lock()
		t.closed = true
		t.mu.Unlock()
		t.regs.mu.Lock() // a registration or a Start under way ends first
		nics := t.nics
		t.regs.mu.Unlock()
		t.eachPeer(func(p *Peer) { p.stop(errTransportClosed) })
		t.settle()
		for _, n := range nics {
			n.mu.Lock()
			n.down = errors.New("the transport is closed")
			n.mu.Unlock()
			n.store.failAll(errTransportClosed)
		}
		t.eachPeer(func(p *Peer) { p.Close() })
		t.wg.Wait()
		t.drains.Wait()
		t.err = t.shutDevices()
	})
	return t.err
}

// settle gives posted work a moment to end by itself, which costs a device less than a queue pair that fails.
func (t *Transport) settle() {
	limit := time.NewTimer(abortLimit)
	defer limit.Stop()
	over := false
	t.eachPeer(func(p *Peer) { over = over || !p.await(limit) })
}

// wakeJanitor has it look at parked slices sooner.
func (t *Transport) wakeJanitor() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// janitorTick is how often the janitor comes by.
const janitorTick = 100 * time.Millisecond

// janitor watches over deadlines, by sampling: the data path sets no timers.
func (t *Transport) janitor() {
	timer := time.NewTimer(janitorTick)
	defer timer.Stop()
	var swept time.Time
	for {
		next := janitorTick
		select {
		case <-t.ctx.Done():
			return
		case <-timer.C:
		case <-t.wake:
		}
		now := time.Now()
		t.eachPeer(func(p *Peer) {
			if at := p.unpark(now); !at.IsZero() {
				next = min(next, max(time.Until(at), time.Millisecond))
			}
			p.overdue(t.now())
		})
		if now.Sub(swept) >= janitorTick {
			swept = now
			for _, n := range t.nics {
				n.sweep(t.now())
				n.rails.sweep(now)
			}
			t.servers.sweep(now)
		}
		timer.Reset(next)
	}
}

// sweep looks after the connections of a device.
func (n *nic) sweep(now time.Duration) {
	for _, e := range n.store.all() {
		e.mu.Lock()
		waits := e.state == epWaiting && now-e.since > readyTimeout
		hangs := e.posted > 0 && now-e.progress > n.t.cfg.sliceTimeout()
		idle := e.state == epReady && e.posted == 0 && e.head == nil && !e.loop &&
			n.t.cfg.ProbeInterval > 0 && now-time.Duration(e.lastUse.Load()) > n.t.cfg.ProbeInterval
		e.mu.Unlock()
		switch {
		case waits:
			e.fail(fmt.Errorf("verbs: %s has connected and did not say that it is ready: %w", e.path, errReplaced))
		case hangs:
			e.failRail(fmt.Errorf("verbs: device %s: no completion of work for %s within %v: %w", n.name, e.path, n.t.cfg.sliceTimeout(), transports.ErrTimeout))
		case idle:
			e.probe()
		}
	}
}
