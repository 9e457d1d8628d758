package transfer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/core/logx"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/transports"
)

// NamedTransport is a transport with the name it has in logs and errors.
type NamedTransport struct {
	Name      string
	Transport transports.Transport
	// Optional: a failure to start is logged and the engine goes on without this transport.
	Optional bool
}

// Options are what an Engine is made of.
type Options struct {
	Config

	// LocalName is upstream's local_hostname. With a metadata service it is the segment's name, any text
	// that does not begin with '/'. In P2P mode only its host part counts, and the name becomes
	// host:port with the port of the handshake daemon.
	LocalName string
	// PortInName makes the segment's name in the metadata service LocalName's host and the port of the handshake
	// daemon, host:port. So it is unique on the host, and peers in P2P mode can open it too.
	PortInName bool
	// BindAddress is the address of the listeners; "" means all, or the loopback address when the
	// advertised host is one.
	BindAddress string
	// AdvertiseHost is the host that peers connect to, without port or brackets (upstream's
	// MC_TCP_BIND_ADDRESS). "" means: the host of LocalName when that is an IP address or in P2P mode, else
	// BindAddress, else the first address of an interface that is not loopback. In P2P mode the host of
	// LocalName goes first.
	AdvertiseHost string

	// Protocol is the protocol of the published document, "tcp" or "rdma"; "" leaves it to the first transport. Peers in
	// P2P mode get the document that they understand.
	Protocol string

	// Metadata is the metadata service; nil means P2P mode (metadata_server P2PHANDSHAKE). The engine does
	// not close it.
	Metadata metadata.Backend
	// MetadataRaw leaves out the newline after each value, as upstream does over http.
	MetadataRaw bool

	// Transports in order of preference: a peer is reached over the first one that can. The engine starts
	// and closes them.
	Transports []NamedTransport

	// Log is where the engine logs; nil for nowhere.
	Log *slog.Logger
	// Metrics is where it registers its collectors; nil for nowhere.
	Metrics prometheus.Registerer
	// Now is the clock of document timestamps; nil for time.Now.
	Now func() time.Time
}

// state of the engine.
const (
	stateNew int32 = iota
	stateStarting
	stateRunning
	stateClosing
	stateClosed
)

// Engine is a Transfer Engine: it publishes registered memory as a segment and moves bytes between its
// own memory and other segments. All methods may be called concurrently.
//
// Life: New → (Register …) → Start → running → Close. Register, RegisterBatch and Unregister are legal
// until Close; everything else only while running.
type Engine struct {
	opt  Options
	log  *slog.Logger
	warn *logx.Limiter
	m    *metrics

	id      transports.Identity // complete after Start's listen
	at      string              // host:port of the handshake daemon, set with id
	bind    string
	index   segment.Index
	regs    regions
	segs    segments
	spare   spares
	waits   waits
	watches transports.Watches // over ctx, of all open batches
	inbox   inbox
	quar    quarantine
	daemons daemons

	trans  atomic.Pointer[[]NamedTransport] // see tps
	daemon *handshake.Server
	client handshake.Client
	st     *storage // nil in P2P mode
	keeper *keeper  // set by Start in storage mode
	local  *Segment

	state  atomic.Int32
	ready  chan struct{} // closed when running or when Start failed
	ctx    context.Context
	cancel context.CancelCauseFunc
	bg     group
	open   atomic.Int64 // batches not yet complete
	idle   chan struct{}
	closed chan struct{}
	stop   sync.Once
}

// New checks the options and returns an engine that is not started. It has no side effects but the
// registration of metrics.
func New(o Options) (*Engine, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("transfer: %w: %w", ErrInvalid, err)
	}
	for _, t := range o.Transports {
		if t.Transport == nil {
			return nil, fmt.Errorf("transfer: %w: transport %q is nil", ErrInvalid, t.Name)
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = prometheus.NewRegistry()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	e := &Engine{opt: o, log: o.Log, warn: logx.Every(10 * time.Second),
		ready: make(chan struct{}), idle: make(chan struct{}, 1), closed: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	e.trans.Store(&o.Transports)
	e.id.Instance = uuid.NewString()
	e.id.HostID = hostID()
	if err := e.chooseAddresses(); err != nil {
		return nil, fmt.Errorf("transfer: %w", err)
	}
	e.client = handshake.Client{ConnectTimeout: o.ConnectTimeout, ReplyTimeout: o.HandshakeTimeout, MaxLength: o.HandshakeMaxLength}
	e.inbox = inbox{limit: o.NotifyQueue, signal: make(chan struct{}, 1)}
	e.regs.byAddr = map[uint64]*registered{}
	e.segs.byName = map[string]*Segment{}
	if o.Metadata != nil {
		e.st = newStorage(o.Metadata, o.ClusterID, !o.MetadataRaw)
	}
	var err error
	if e.m, err = newMetrics(o.Metrics, e); err != nil {
		return nil, fmt.Errorf("transfer: metrics: %w", err)
	}
	hm, err := handshake.NewMetrics(o.Metrics)
	if err != nil {
		return nil, fmt.Errorf("transfer: metrics: %w", err)
	}
	e.daemon = handshake.NewServer(handshake.ServerConfig{MaxLength: o.HandshakeMaxLength, Log: e.log, Metrics: hm})
	e.daemon.Handle(handshake.TypeMetadata, func(_ context.Context, _ net.Addr, req []byte) []byte { return e.answerMetadata(req) })
	e.daemon.HandleNotify(func(_ net.Addr, m handshake.Message) { e.received(m) })
	return e, nil
}

// chooseAddresses settles the advertised host, the bind address and, with a metadata service, the name.
func (e *Engine) chooseAddresses() error {
	o := &e.opt
	host, _, _, err := handshake.SplitName(o.LocalName)
	if o.Metadata == nil {
		if err != nil {
			return fmt.Errorf("%w: local_hostname: %w", ErrInvalid, err)
		}
		if host == "" {
			host = o.AdvertiseHost
		}
	} else {
		if o.LocalName == "" || o.LocalName[0] == '/' {
			return fmt.Errorf("%w: local_hostname %q: a segment name is not empty and does not begin with '/'", ErrInvalid, o.LocalName)
		}
		e.id.Segment = o.LocalName
		switch {
		case o.AdvertiseHost != "":
			host = o.AdvertiseHost
		case err == nil && isUsableIP(host):
		case isUsableIP(o.BindAddress):
			host = o.BindAddress
		case strings.EqualFold(host, "localhost"):
		default:
			host = ""
		}
	}
	if host == "" {
		if host, err = firstAddress(); err != nil {
			return err
		}
	}
	e.id.Host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	e.bind = o.BindAddress
	if e.bind == "" && isLoopback(e.id.Host) {
		e.bind = e.id.Host
	}
	return nil
}

// Start opens the listeners, starts the transports and publishes the segment, in this order. With a
// metadata service that does not answer it waits up to metadata_start_timeout, or until ctx ends. An
// error that wraps ErrNameTaken names a living engine that holds the name; the entries of a dead one are
// replaced. After an error the engine is closed.
func (e *Engine) Start(ctx context.Context) error {
	if !e.state.CompareAndSwap(stateNew, stateStarting) {
		return fmt.Errorf("transfer: start: %w", ErrState)
	}
	err := e.start(ctx)
	if err == nil {
		e.state.Store(stateRunning)
		close(e.ready)
		e.checkDocumentSize()
		e.log.Info("transfer engine is ready", "segment", e.id.Segment, "host", e.id.Host, "instance", e.id.Instance)
		return nil
	}
	e.state.Store(stateClosing)
	close(e.ready)
	quit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	e.stop.Do(func() { e.shutdown(quit) })
	return fmt.Errorf("transfer: start %s: %w", e.opt.LocalName, err)
}

func (e *Engine) start(ctx context.Context) error {
	ln, err := handshake.Listen(ctx, e.bind, e.opt.ports())
	if err != nil {
		return fmt.Errorf("handshake daemon: %w", err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	e.at = handshake.JoinName(e.id.Host, port)
	switch host, _, _, err := handshake.SplitName(e.opt.LocalName); {
	case e.st == nil:
		e.id.Segment = e.at
	case e.opt.PortInName && err == nil:
		e.id.Segment = handshake.JoinName(host, port)
	}
	e.local = &Segment{e: e, name: e.id.Segment, own: true}
	var running []NamedTransport
	for _, t := range e.tps() {
		if err := t.Transport.Start(ctx, host{e}); err != nil {
			if !t.Optional || ctx.Err() != nil {
				ln.Close()
				return fmt.Errorf("transport %s: %w", t.Name, err)
			}
			e.log.Warn("transport cannot run here and is left out", "transport", t.Name, "err", err)
			t.Transport.Close()
			continue
		}
		running = append(running, t)
	}
	e.trans.Store(&running)
	e.regs.keepTransports(running)
	e.bg.Go(func() {
		if err := e.daemon.Serve(ln); err != nil {
			e.log.Error("handshake daemon ended", "err", err)
		}
	})
	if e.st != nil {
		k := newKeeper(e, port)
		if err := k.start(ctx); err != nil {
			return err
		}
		e.keeper = k
	}
	if e.opt.DescriptorRefresh > 0 {
		e.bg.Go(e.refreshLoop)
	}
	return nil
}

// Close withdraws the segment from the metadata service, lets this engine's own transfers finish until
// ctx ends and cancels the rest, then closes the transports and the listeners. When it returns, registered
// memory is not touched any more and may be unmapped. Further calls wait for the first one.
func (e *Engine) Close(ctx context.Context) error {
	for {
		s := e.state.Load()
		if s == stateStarting { // it runs to its end first
			select {
			case <-e.ready:
				continue
			case <-ctx.Done():
				return fmt.Errorf("transfer: close: start still runs: %w", ctx.Err())
			}
		}
		if s >= stateClosing || e.state.CompareAndSwap(s, stateClosing) {
			break
		}
	}
	var err error
	e.stop.Do(func() { err = e.shutdown(ctx) })
	<-e.closed
	return err
}

func (e *Engine) shutdown(ctx context.Context) error {
	defer close(e.closed)
	var errs []error
	if e.keeper != nil {
		errs = append(errs, e.keeper.stop(ctx))
	}
	drained := e.drain(ctx)
	e.cancel(fmt.Errorf("%w: the engine was closed", ErrCanceled))
	e.watches.End()
	if !drained {
		e.drain(contextAfter(abandonAfter + time.Second))
	}
	for b := e.spare.get(); b != nil; b = e.spare.get() {
		b.discard() // lets go of its submitter's context
	}
	e.segs.closeAll()
	for _, t := range slices.Backward(e.tps()) {
		if err := t.Transport.Close(); err != nil {
			errs = append(errs, fmt.Errorf("transport %s: %w", t.Name, err))
		}
	}
	e.daemon.Close()
	e.bg.Wait()
	e.state.Store(stateClosed)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("transfer: close: %w", err)
	}
	return nil
}

// enter counts a batch in unless the engine does not run.
func (e *Engine) enter() error {
	e.open.Add(1)
	if err := e.running(); err != nil {
		e.leave()
		return err
	}
	return nil
}

func (e *Engine) leave() {
	if e.open.Add(-1) == 0 {
		signal(e.idle)
	}
}

// group runs goroutines until Wait, and not after it.
type group struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// Go returns false when it is too late.
func (g *group) Go(f func()) bool {
	return g.start(func() {
		defer g.wg.Done()
		f()
	})
}

// start is Go, without an allocation, for a function that calls g.wg.Done at its end.
func (g *group) start(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.wg.Add(1)
	go f()
	return true
}

func (g *group) Wait() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.wg.Wait()
}

// drain waits until no batch is open.
func (e *Engine) drain(ctx context.Context) bool {
	for e.open.Load() > 0 {
		select {
		case <-e.idle:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// contextAfter is a context that ends after d; its timer needs no owner.
func contextAfter(d time.Duration) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(d, cancel)
	return ctx
}

// tps are the transports in use, in order of preference.
func (e *Engine) tps() []NamedTransport { return *e.trans.Load() }

// running reports ErrState unless the engine runs.
func (e *Engine) running() error {
	if e.state.Load() != stateRunning {
		return fmt.Errorf("transfer: %w", ErrState)
	}
	return nil
}

// Name is the segment's name: what peers open. In P2P mode it is known after Start.
func (e *Engine) Name() string { return e.id.Segment }

// Address is where the handshake daemon listens, host:port; complete after Start. Peers in P2P mode
// open the segment under this name whatever the mode of this engine.
func (e *Engine) Address() string { return e.at }

// Identity tells who this engine is; complete after Start.
func (e *Engine) Identity() transports.Identity { return e.id }

// Descriptor returns a copy of the segment's current descriptor. Legal after Start.
func (e *Engine) Descriptor() *transports.Descriptor { return e.descriptor(nil) }

// Health is nil while the engine runs and its entries in the metadata service are in order, else the
// reason.
func (e *Engine) Health() error {
	if err := e.running(); err != nil {
		return err
	}
	if e.keeper != nil {
		return e.keeper.health()
	}
	return nil
}

// host is what transports get.
type host struct{ e *Engine }

var (
	_ transports.Host        = host{}
	_ transports.Republisher = host{}
)

func (h host) Find(addr, n uint64) (transports.Ref, error) { return h.e.index.Find(addr, n) }

func (h host) Signal(ctx context.Context, peer string, typ byte, req []byte) ([]byte, error) {
	return h.e.signal(ctx, peer, typ, req)
}

func (h host) OnSignal(typ byte, f transports.SignalFunc) {
	if h.e.state.Load() != stateStarting {
		panic("transfer: OnSignal is legal only during Start")
	}
	h.e.daemon.Handle(typ, f)
}

func (h host) Identity() transports.Identity { return h.e.id }

// Republish implements transports.Republisher. In P2P mode every peer that asks gets a new document.
func (h host) Republish() {
	if h.e.state.Load() == stateRunning && h.e.keeper != nil {
		h.e.keeper.touch()
	}
}

func (h host) Listen(ctx context.Context, ports units.PortRange) (net.Listener, error) {
	if ports.IsZero() {
		ports = h.e.opt.ports()
	}
	return handshake.Listen(ctx, h.e.bind, ports)
}

// hostID identifies the booted machine.
func hostID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
