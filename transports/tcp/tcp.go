package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/transports"
)

func init() {
	module.Define(transports.Kind, "tcp", "plain TCP sockets; speaks with unmodified Mooncake engines", defaultConfig(), New)
}

var _ transports.Transport = (*Transport)(nil)

// Transport implements [transports.Transport] over TCP sockets.
type Transport struct {
	cfg     Config
	m       *metrics
	logs    *logLimit
	epoch   time.Time
	host    transports.Host // set by Start
	srv     *server         // set by Start
	regions registry
	pauses  pauses

	mu      sync.Mutex
	started bool
	closed  bool
	peers   map[*Peer]struct{}
	quit    chan struct{}
	wg      sync.WaitGroup
}

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
	t := &Transport{cfg: cfg, m: m, logs: newLogLimit(env.Log), epoch: time.Now(), peers: map[*Peer]struct{}{}, quit: make(chan struct{})}
	t.pauses.longest = cfg.ReconnectPause
	return t, nil
}

// now is the time since New: what deadlines and idle times are measured on.
func (t *Transport) now() time.Duration { return time.Since(t.epoch) }

// Start implements transports.Transport.
func (t *Transport) Start(ctx context.Context, h transports.Host) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return fmt.Errorf("tcp: start: %w", transports.ErrClosed)
	}
	if t.started {
		return errors.New("tcp: started twice")
	}
	ln, err := h.Listen(ctx, t.cfg.PortRange)
	if err != nil {
		return fmt.Errorf("tcp: listen for data: %w", err)
	}
	t.host, t.started = h, true
	t.srv = newServer(t, ln)
	t.wg.Go(t.janitor)
	return nil
}

// Register implements transports.Transport. TCP takes any memory.
func (t *Transport) Register(_ context.Context, r transports.Region) (transports.Registration, error) {
	reg := &registration{t: t, addr: r.Addr(), end: r.Addr() + r.Len(), quiet: make(chan struct{}, 1)}
	if reg.addr == 0 || reg.end <= reg.addr {
		return nil, fmt.Errorf("tcp: region of %d bytes at %#x is no range of memory", r.Len(), r.Addr())
	}
	t.mu.Lock()
	closed := t.closed
	t.mu.Unlock()
	if closed {
		return nil, fmt.Errorf("tcp: register: %w", transports.ErrClosed)
	}
	if err := t.regions.add(reg); err != nil {
		return nil, err
	}
	return reg, nil
}

// Describe implements transports.Transport. In a document whose protocol is another one, the path goes
// into the extension key, which engines of other makes ignore.
func (t *Transport) Describe(d *transports.Descriptor) {
	t.mu.Lock()
	srv := t.srv
	t.mu.Unlock()
	if srv == nil {
		return
	}
	id := t.host.Identity()
	if d.Protocol == "" {
		d.Protocol = "tcp"
	}
	if d.Protocol == "tcp" || slices.Contains(d.Protocols, "tcp") {
		d.TCPDataHost, d.TCPDataPort, d.TCPProtoVersion = id.Host, srv.port(), 2
		return
	}
	if d.Agent == nil {
		d.Agent = &transports.AgentExt{V: 1, Instance: id.Instance}
	}
	p := transports.Path{Type: "tcp", Host: id.Host, Port: srv.port()}
	if i := slices.IndexFunc(d.Agent.Paths, isTCP); i >= 0 {
		d.Agent.Paths[i] = p
		return
	}
	d.Agent.Paths = append(d.Agent.Paths, p)
}

func isTCP(p transports.Path) bool { return p.Type == "tcp" }

// target is where and how a peer's data is reached.
type target struct {
	addr string // host:port
	v2   bool
}

func (t *Transport) target(d *transports.Descriptor) (target, error) {
	none := func(why string) (target, error) {
		return target{}, fmt.Errorf("tcp: segment %q: %s: %w", d.Name, why, transports.ErrUnreachable)
	}
	var host string
	var port int
	v2 := true
	if d.Protocol == "tcp" || slices.Contains(d.Protocols, "tcp") {
		host, port, v2 = d.TCPDataHost, d.TCPDataPort, d.TCPProtoVersion >= 2
	} else {
		if d.Agent == nil || !slices.ContainsFunc(d.Agent.Paths, isTCP) {
			return none(fmt.Sprintf("its protocol is %q and it offers no tcp path", d.Protocol))
		}
		p := d.Agent.Paths[slices.IndexFunc(d.Agent.Paths, isTCP)]
		host, port = p.Host, p.Port
	}
	if host == "" {
		host = d.DialHost
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "" {
		return none("it names no host for data")
	}
	if port < 1 || port > 65535 {
		return none(fmt.Sprintf("its data port is %d", port))
	}
	return target{addr: net.JoinHostPort(host, strconv.Itoa(port)), v2: v2 && t.cfg.Proto != "1"}, nil
}

// Reach implements transports.Transport.
func (t *Transport) Reach(d *transports.Descriptor) error {
	_, err := t.target(d)
	return err
}

// Dial implements transports.Transport. Connections are made when the first op needs one.
func (t *Transport) Dial(_ context.Context, d *transports.Descriptor) (transports.Peer, error) {
	to, err := t.target(d)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || !t.started {
		return nil, fmt.Errorf("tcp: dial %s: transport is not started or was closed: %w", to.addr, transports.ErrClosed)
	}
	p := newPeer(t, to)
	t.peers[p] = struct{}{}
	return p, nil
}

func (t *Transport) forget(p *Peer) {
	t.mu.Lock()
	delete(t.peers, p)
	t.mu.Unlock()
}

func (t *Transport) allPeers() []*Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*Peer, 0, len(t.peers))
	for p := range t.peers {
		all = append(all, p)
	}
	return all
}

// Close implements transports.Transport.
func (t *Transport) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		t.wg.Wait()
		return nil
	}
	t.closed = true
	srv := t.srv
	close(t.quit)
	t.mu.Unlock()
	for _, p := range t.allPeers() {
		p.Close()
	}
	if srv != nil {
		srv.close()
	}
	t.wg.Wait()
	return nil
}

// dropUsers ends everything that uses r.
func (t *Transport) dropUsers(r *registration) {
	t.mu.Lock()
	srv := t.srv
	t.mu.Unlock()
	if srv != nil {
		srv.dropUsers(r)
	}
	for _, p := range t.allPeers() {
		p.dropUsers(r)
	}
}

// janitor watches over deadlines by sampling progress counters: the data path sets no timers.
func (t *Transport) janitor() {
	shortest := min(t.cfg.ProgressTimeout, t.cfg.StatusTimeout, t.cfg.IdleTimeout, t.cfg.StallTimeout)
	tick := time.NewTicker(min(max(shortest/10, 5*time.Millisecond), time.Second))
	defer tick.Stop()
	for {
		select {
		case <-t.quit:
			return
		case <-tick.C:
		}
		now := t.now()
		t.srv.sweep(now)
		for _, p := range t.allPeers() {
			p.sweep(now)
		}
		t.pauses.sweep(now)
	}
}
