package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/master/admin"
	"github.com/mooncake-agent/mooncake/core/master/policies"
	"github.com/mooncake-agent/mooncake/core/master/quotas"
	"github.com/mooncake-agent/mooncake/core/master/record"
	"github.com/mooncake-agent/mooncake/core/master/versions"
	"github.com/mooncake-agent/mooncake/core/metahttp"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/metadata"
)

// Listener is an address to bind and the setting that names it, for messages.
type Listener struct {
	Key  string
	Addr string // host:port; port 0 = any free one
}

// Compat is a listener whose callers all speak one version.
type Compat struct {
	Listener
	Version wire.Version
}

// Config is where and how the master serves.
type Config struct {
	RPC    rpc.ServerConfig
	Listen Listener
	Compat []Compat
	// Admin is the admin HTTP server; an empty address turns it off.
	Admin Listener
	// Metadata is the HTTP metadata server; an empty address turns it off. It needs [Options.Metadata].
	Metadata Listener
	// Record is the recording, see package record; File is begun at the start.
	Record     record.Options
	RecordFile string
	// ModuleDir is the folder from which callers may set policies as WebAssembly modules; "" = none.
	ModuleDir string
	// QuotaFile keeps the tenants' quotas (package quotas); "" = they are forgotten at the end.
	QuotaFile string
	// Report is how often the summary line is logged; 0 = never.
	Report time.Duration
}

// DefaultConfig binds loopback with upstream's ports.
func DefaultConfig() Config {
	return Config{RPC: rpc.DefaultServerConfig(), Listen: Listener{"rpc_port", "127.0.0.1:50051"}, Admin: Listener{"metrics_port", "127.0.0.1:9003"}}
}

// Registry is where metrics are registered and read from; *telemetry.Registry and *prometheus.Registry are.
type Registry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// Options are what a server is made of. Config and Master are required.
type Options struct {
	Config Config
	Master master.Config
	// Policies are the eviction policies by domain, see [master.Options].
	Policies map[string]master.Policy
	// Metadata is what the HTTP metadata server keeps its values in; the server does not close it.
	Metadata metadata.Backend
	// Probe asks whether the holder of a metadata name lives; nil = such names are never replaced.
	Probe   metahttp.Prober
	Log     *slog.Logger
	Metrics Registry
	// Version is the answer of /version.
	Version any
	// Local are further paths of the admin server, as "METHOD /path", for callers on this host only.
	Local map[string]http.Handler
}

// Server is a Store master on the network. Life: New → Start → Close.
type Server struct {
	o       Options
	log     *slog.Logger
	service *master.Service
	callers *versions.Memory
	handler *admin.Handler
	rules   *policies.Manager
	tape    *record.Control
	rpc     *rpc.Server
	http    *http.Server     // nil without admin
	meta    *metahttp.Server // nil without metadata
	extra   []prometheus.Collector
	state   atomic.Pointer[string] // why it does not serve; nil = it serves
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu       sync.Mutex
	started  bool
	closed   bool
	addr     string
	adminAt  string
	compatAt []string
}

// New makes a master that does not listen yet.
func New(o Options) (*Server, error) {
	s := &Server{o: o, log: o.Log}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		s.o.Metrics = prometheus.NewRegistry()
	}
	s.setState("starting")
	var err error
	if s.service, err = master.New(master.Options{Config: o.Master, Log: s.log.With("part", "master"), Policies: o.Policies}); err != nil {
		return nil, err
	}
	var store admin.Store = s.service
	if o.Config.QuotaFile != "" {
		if store, err = quotas.Open(s.service, o.Config.QuotaFile); err != nil {
			return nil, fmt.Errorf("tenant_quota_connector_uri: %w", err)
		}
	}
	s.rules = policies.NewManager(s.service, module.Env{Log: s.log.With("part", "eviction"), Metrics: s.o.Metrics}, o.Config.ModuleDir)
	rec := o.Config.Record
	rec.Log, rec.Capacity = s.log.With("part", "record"), func() uint64 { return uint64(max(0, s.service.Counters().CapacityBytes.Load())) }
	s.tape = record.New(s.service, rec)
	s.callers = versions.New(s.log.With("part", "versions"))
	s.handler = admin.New(admin.Options{Store: store, Callers: s.callers, Metrics: s.o.Metrics, Ready: s.Ready, Version: o.Version,
		Policies: s.rules, Recording: s.tape, Local: o.Local, Log: s.log.With("part", "admin")})
	for _, c := range []prometheus.Collector{s.callers, admin.NewCollector(s.service)} {
		if err := s.o.Metrics.Register(c); err != nil {
			s.unregister()
			return nil, fmt.Errorf("master: metrics: %w", err)
		}
		s.extra = append(s.extra, c)
	}
	s.rpc, err = rpc.NewServer(o.Config.RPC, rpc.Options{Log: s.log.With("part", "rpc"), Metrics: s.o.Metrics, HTTP: s.handler.ReadOnly(),
		OnOpen: s.callers.Opened, OnClose: s.callers.Closed})
	if err != nil {
		s.unregister()
		return nil, err
	}
	Bind(s.rpc, s.callers, s.service)
	return s, nil
}

func (s *Server) unregister() {
	for _, c := range s.extra {
		s.o.Metrics.Unregister(c)
	}
	s.extra = nil
}

// Policies changes the eviction policies of the running master.
func (s *Server) Policies() *policies.Manager { return s.rules }

// Service is the master's state.
func (s *Server) Service() *master.Service { return s.service }

// Handler is the admin HTTP, for a node that serves it on its own server, too.
func (s *Server) Handler() http.Handler { return s.handler }

// Ready answers why the master does not serve, nil when it does.
func (s *Server) Ready() error {
	if why := s.state.Load(); why != nil {
		return errors.New("the master is " + *why)
	}
	return nil
}

func (s *Server) setState(why string) {
	if why == "" {
		s.state.Store(nil)
		return
	}
	s.state.Store(&why)
}

// Start listens on all addresses and serves; if one cannot be had, nothing is left listening. Errors name the
// setting and the address. ctx is for the start only.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.closed {
		return errors.New("master: started twice or after close")
	}
	c := &s.o.Config
	var open []net.Listener
	undo := func(err error) error {
		for _, ln := range open {
			ln.Close()
		}
		return err
	}
	listen := func(l Listener) (net.Listener, error) {
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", l.Addr)
		if err != nil {
			return nil, inUse(l, err)
		}
		open = append(open, ln)
		return ln, nil
	}
	var adminLn net.Listener
	var err error
	if c.Admin.Addr != "" { // first, as upstream
		if adminLn, err = listen(c.Admin); err != nil {
			return undo(err)
		}
	}
	main, err := listen(c.Listen)
	if err != nil {
		return undo(err)
	}
	pinned := make([]net.Listener, len(c.Compat))
	for i, p := range c.Compat {
		if pinned[i], err = listen(p.Listener); err != nil {
			return undo(err)
		}
	}
	if c.RecordFile != "" {
		if err := s.tape.Open(c.RecordFile); err != nil {
			return undo(fmt.Errorf("record: %w", err))
		}
	}
	if err := s.startMetadata(ctx); err != nil {
		return undo(errors.Join(err, s.tape.Close()))
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	if err := s.service.Start(run); err != nil {
		cancel()
		return undo(errors.Join(err, s.stopMetadata(ctx), s.tape.Close()))
	}
	s.cancel, s.started = cancel, true
	s.addr = reachable(main.Addr())
	err = s.rpc.Listen(main, nil)
	for i, p := range c.Compat {
		s.compatAt = append(s.compatAt, reachable(pinned[i].Addr()))
		err = errors.Join(err, s.rpc.Listen(pinned[i], p.Version))
	}
	if err != nil { // out of descriptors
		if adminLn != nil {
			adminLn.Close()
		}
		return errors.Join(err, s.closeLocked(ctx))
	}
	if adminLn != nil {
		s.serveAdmin(adminLn)
	}
	if c.Report > 0 {
		s.wg.Go(func() { s.report(run) })
	}
	s.setState("")
	s.log.Info("master: serving", "rpc", main.Addr().String(), "admin", c.Admin.Addr, "compat", s.compatAt)
	return nil
}

// inUse is the error of a listener, in words for the person who chose its address.
func inUse(l Listener, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s: %s is in use by another process; stop that one or choose another: %w", l.Key, l.Addr, err)
	}
	return fmt.Errorf("%s: %s: %w", l.Key, l.Addr, err)
}

func (s *Server) startMetadata(ctx context.Context) error {
	l := s.o.Config.Metadata
	if l.Addr == "" {
		return nil
	}
	cfg := metahttp.DefaultConfig()
	cfg.Listen = l.Addr
	var err error
	if s.meta, err = metahttp.New(cfg, s.o.Metadata, s.o.Probe, module.Env{Name: "metadata_http", Log: s.log.With("part", "metadata_http"), Metrics: s.o.Metrics}); err != nil {
		return fmt.Errorf("%s: %w", l.Key, err)
	}
	if err := s.meta.Start(ctx); err != nil {
		s.meta = nil
		return inUse(l, err)
	}
	return nil
}

func (s *Server) stopMetadata(ctx context.Context) error {
	if s.meta == nil {
		return nil
	}
	return s.meta.Close(ctx)
}

func (s *Server) serveAdmin(ln net.Listener) {
	s.adminAt = reachable(ln.Addr())
	s.http = &http.Server{
		Handler: s.handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.wg.Go(func() {
		if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("master: the admin server stopped", "address", s.adminAt, "error", err)
		}
	})
}

// report logs the summary until ctx ends.
func (s *Server) report(ctx context.Context) {
	t := time.NewTicker(s.o.Config.Report)
	defer t.Stop()
	s.handler.Summary() // the first rates are those since the start
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.log.Info(s.handler.Summary())
		}
	}
}

// reachable is an address that works on this host: loopback for a listener on all addresses.
func reachable(a net.Addr) string {
	t, ok := a.(*net.TCPAddr)
	if !ok || !t.IP.IsUnspecified() {
		return a.String()
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(t.Port))
}

// Addr is the RPC server's address, "" before Start. For a listener on all addresses it is that on loopback.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// AdminURL is the admin server's base URL, "" without one.
func (s *Server) AdminURL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.adminAt == "" {
		return ""
	}
	return "http://" + s.adminAt
}

// CompatAddrs are the addresses of the pinned listeners, in the order of the config.
func (s *Server) CompatAddrs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.compatAt...)
}

// MetadataURL is what engines write as metadata_server, "" without the HTTP metadata server.
func (s *Server) MetadataURL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meta == nil || s.meta.Addr() == "" {
		return ""
	}
	return "http://" + s.meta.Addr() + "/metadata"
}

// Close stops accepting, lets running requests finish until ctx ends, and waits for everything. It may be called
// before Start and twice.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closeLocked(ctx)
}

func (s *Server) closeLocked(ctx context.Context) error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.setState("stopping")
	if s.cancel != nil {
		s.cancel() // the report; the service ends below
	}
	err := s.rpc.Close(ctx)
	if s.http != nil {
		if e := s.http.Shutdown(ctx); e != nil {
			err = errors.Join(err, fmt.Errorf("master: admin requests were cut off: %w", e), s.http.Close())
		}
	}
	err = errors.Join(err, s.stopMetadata(ctx), s.tape.Close(), s.service.Close(ctx))
	s.wg.Wait()
	s.unregister()
	return err
}
