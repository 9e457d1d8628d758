package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/logx"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/transports"
)

func init() {
	module.Define(transports.Kind, "shm", "shared memory between processes of one host and user", defaultConfig(), New)
}

// pathType is our entry in the descriptor's extension key, and these are its attributes.
const (
	pathType   = "shm"
	attrSocket = "socket"
	attrHost   = "host"
	attrNetNS  = "netns"
)

// Transport implements [transports.Transport] over memory that both sides map.
type Transport struct {
	cfg   Config
	log   func(msg string, args ...any)
	logs  *logx.Limiter
	m     *metrics
	uid   int // of peers that are trusted
	regs  registry
	pool  pool
	netNS string

	mu      sync.Mutex
	host    transports.Host // set by Start
	owner   *owner          // set by Start
	closed  bool
	peers   map[*Peer]struct{}
	closing sync.Once
	err     error // of Close
}

var _ transports.Transport = (*Transport)(nil)

// New returns a transport that is not started. It has no side effects but the metrics' registration.
func New(_ context.Context, env module.Env, cfg Config) (transports.Transport, error) {
	t, err := newTransport(env, cfg)
	if err != nil {
		return nil, err
	}
	return t, nil
}

func newTransport(env module.Env, cfg Config) (*Transport, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(env.Metrics, env.Name)
	if err != nil {
		return nil, err
	}
	return &Transport{cfg: cfg, m: m, log: env.Log.Warn, logs: logx.Every(10 * time.Second), uid: os.Geteuid(), netNS: netNamespace(),
		pool: pool{limit: cfg.copiers()}, peers: map[*Peer]struct{}{}}, nil
}

// warn logs msg, a constant, at most every 10 s.
func (t *Transport) warn(msg string, err error) {
	if n, ok := t.logs.Allow(msg); ok {
		t.log(msg, "err", err, "not_shown_before", n)
	}
}

// Start implements transports.Transport.
func (t *Transport) Start(_ context.Context, h transports.Host) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return fmt.Errorf("shm: start: %w", transports.ErrClosed)
	}
	if t.owner != nil {
		return errors.New("shm: started twice")
	}
	t.host = h // before the first peer is served
	o, err := newOwner(t, t.uid)
	if err != nil {
		return fmt.Errorf("shm: %w", err)
	}
	t.owner = o
	return nil
}

func (t *Transport) served() []*served {
	t.mu.Lock()
	o := t.owner
	t.mu.Unlock()
	if o == nil {
		return nil
	}
	return o.all()
}

// Register implements transports.Transport. It takes memfds that are sealed against shrinking, as those of
// core/segment are; other memory is not shareable.
func (t *Transport) Register(_ context.Context, r transports.Region) (transports.Registration, error) {
	reg := &registration{t: t, addr: r.Addr(), end: r.Addr() + r.Len(), access: r.Access()}
	if reg.addr == 0 || reg.end <= reg.addr {
		return nil, fmt.Errorf("shm: region of %d bytes at %#x is no range of memory", r.Len(), r.Addr())
	}
	t.mu.Lock()
	closed := t.closed
	t.mu.Unlock()
	if closed {
		return nil, fmt.Errorf("shm: register: %w", transports.ErrClosed)
	}
	fd, off, ok := r.FD()
	why := errors.New("it has no file descriptor")
	if ok {
		var f memfd
		if f, why = inspect(fd); why == nil && (off < 0 || uint64(off) > f.size || r.Len() > f.size-uint64(off)) {
			why = fmt.Errorf("it is not inside the %d bytes of its memfd", f.size)
		}
	}
	if why != nil {
		t.regs.shun(reg.addr, reg.end)
		return nil, fmt.Errorf("shm: region at %#x: %w: %w", reg.addr, why, transports.ErrNotShareable)
	}
	reg.fd, reg.off = fd, uint64(off)
	if err := t.regs.add(reg); err != nil {
		return nil, err
	}
	return reg, nil
}

// Describe implements transports.Transport.
func (t *Transport) Describe(d *transports.Descriptor) {
	t.mu.Lock()
	o, h := t.owner, t.host
	t.mu.Unlock()
	if o == nil {
		return
	}
	id := h.Identity()
	p := transports.Path{Type: pathType, Attr: map[string]string{attrSocket: o.name(), attrHost: id.HostID}}
	if t.cfg.SocketDir == "" {
		p.Attr[attrNetNS] = t.netNS
	}
	if d.Agent == nil {
		d.Agent = &transports.AgentExt{V: 1, Instance: id.Instance}
	}
	if i := slices.IndexFunc(d.Agent.Paths, isShm); i >= 0 {
		d.Agent.Paths[i] = p
		return
	}
	d.Agent.Paths = append(d.Agent.Paths, p)
}

func isShm(p transports.Path) bool { return p.Type == pathType }

// target finds the path in a descriptor. That the host is the same is only what the peer says: the proof
// comes with the connection.
func (t *Transport) target(d *transports.Descriptor) (target, error) {
	none := func(why string) (target, error) {
		return target{}, fmt.Errorf("shm: segment %q: %s: %w", d.Name, why, transports.ErrUnreachable)
	}
	t.mu.Lock()
	h := t.host
	t.mu.Unlock()
	if d.Agent == nil || !slices.ContainsFunc(d.Agent.Paths, isShm) {
		return none("it offers no shared memory")
	}
	attr := d.Agent.Paths[slices.IndexFunc(d.Agent.Paths, isShm)].Attr
	switch {
	case h == nil:
		return none("the transport is not started")
	case h.Identity().HostID == "":
		return none("this host has no boot id")
	case attr[attrHost] != h.Identity().HostID:
		return none("it is on another host")
	case attr[attrSocket] == "" || d.Agent.Instance == "":
		return none("it names no socket")
	case attr[attrSocket][0] == '@' && attr[attrNetNS] != t.netNS:
		return none("its socket is in another network namespace; use socket_dir for both")
	}
	return target{socket: attr[attrSocket], instance: d.Agent.Instance, segment: d.Name}, nil
}

// Reach implements transports.Transport.
func (t *Transport) Reach(d *transports.Descriptor) error {
	_, err := t.target(d)
	return err
}

// Dial implements transports.Transport. It connects and proves that the peer is on this host.
func (t *Transport) Dial(ctx context.Context, d *transports.Descriptor) (transports.Peer, error) {
	t.mu.Lock()
	ready := t.owner != nil && !t.closed
	t.mu.Unlock()
	if !ready {
		return nil, fmt.Errorf("shm: dial segment %q: transport is not started or was closed: %w", d.Name, transports.ErrClosed)
	}
	to, err := t.target(d)
	if err != nil {
		return nil, err
	}
	p := &Peer{t: t, to: to}
	l, err := t.connect(ctx, p, to)
	if err != nil {
		return nil, err
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	t.mu.Lock()
	closed := t.closed
	if !closed {
		t.peers[p] = struct{}{}
	}
	t.mu.Unlock()
	p.mu.Lock()
	p.adopt(l)
	p.mu.Unlock()
	if closed {
		p.Close()
		return nil, fmt.Errorf("shm: dial segment %q: %w", d.Name, transports.ErrClosed)
	}
	return p, nil
}

func (t *Transport) forget(p *Peer) {
	t.mu.Lock()
	delete(t.peers, p)
	t.mu.Unlock()
}

// Close implements transports.Transport. Peers that have this node's memory mapped are given drain_timeout to let
// go of it; an error that wraps ErrUnquiet names one that did not.
func (t *Transport) Close() error {
	t.closing.Do(func() {
		t.mu.Lock()
		t.closed = true
		o := t.owner
		peers := make([]*Peer, 0, len(t.peers))
		for p := range t.peers {
			peers = append(peers, p)
		}
		t.mu.Unlock()
		for _, p := range peers {
			p.Close()
		}
		if o != nil {
			t.err = o.close()
		}
		t.pool.wg.Wait()
	})
	return t.err
}
