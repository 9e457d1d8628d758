package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"
)

// Admin is the node's HTTP server for operators. Life: NewAdmin → Handle, HandleLocal, Ready → Start →
// Close. Handlers and checks may also be added while it serves.
type Admin struct {
	cfg      AdminConfig
	log      *slog.Logger
	logging  *Logging
	pprof    atomic.Bool
	requests *prometheus.CounterVec
	mux      *http.ServeMux
	ready    readiness

	mu        sync.Mutex
	endpoints []endpoint
	server    *http.Server
	listeners []net.Listener
	serving   sync.WaitGroup
}

type endpoint struct{ pattern, doc string }

// NewAdmin builds the server with its own endpoints; nothing listens yet. logging is what
// /api/v1/loglevel changes.
func NewAdmin(cfg AdminConfig, logging *Logging, reg *Registry, v Version) (*Admin, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	a := &Admin{
		cfg: cfg, log: logging.Logger().With("part", "admin"), logging: logging, mux: http.NewServeMux(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mooncake_admin_requests_total",
			Help: "Requests to the admin server, by endpoint and status code.",
		}, []string{"endpoint", "code"}),
	}
	if err := reg.Register(a.requests); err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	a.pprof.Store(cfg.Pprof)
	a.Handle("GET /metrics", "Prometheus metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelWarn), MaxRequestsInFlight: 8, Timeout: 20 * time.Second, EnableOpenMetrics: true,
	}))
	a.Handle("GET /healthz", "200 while the process is alive", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n")
	}))
	a.Handle("GET /readyz", "200 when every check passes, else 503 with the reasons as JSON", &a.ready)
	a.Handle("GET /version", "what the binary was built from, as JSON", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		WriteJSON(w, http.StatusOK, v)
	}))
	a.HandleLocal("GET /api/v1/loglevel", `the log level as {"level":"info"}`, http.HandlerFunc(a.getLevel))
	a.HandleLocal("PUT /api/v1/loglevel", "change the log level; same body", http.HandlerFunc(a.putLevel))
	a.HandleLocal("/debug/pprof/", "profiles, when admin.pprof is on", http.HandlerFunc(a.servePprof))
	a.mux.Handle("/", a.counted("/", http.HandlerFunc(a.index)))
	return a, nil
}

// Handle adds an endpoint that everyone who reaches the server may call. pattern is one of
// http.ServeMux; it panics when the pattern is taken. doc is its line in the index.
func (a *Admin) Handle(pattern, doc string, h http.Handler) {
	a.mux.Handle(pattern, a.counted(pattern, h))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.endpoints = append(a.endpoints, endpoint{pattern, doc})
}

// HandleLocal is Handle for endpoints that change or reveal something: only callers on the Unix socket
// or on a loopback connection get through (see [Local]), others get 403.
func (a *Admin) HandleLocal(pattern, doc string, h http.Handler) {
	a.Handle(pattern, doc+" (loopback or socket only)", localOnly(h))
}

// Ready adds a check that /readyz asks. It gets [checkTimeout]; nil means ready. A check of the same name is
// replaced. With no check at all the node counts as ready.
func (a *Admin) Ready(name string, check func(context.Context) error) { a.ready.set(name, check) }

// Readiness asks all checks, as /readyz does.
func (a *Admin) Readiness(ctx context.Context) Readiness { return a.ready.ask(ctx) }

// SetPprof switches /debug/pprof while the server runs.
func (a *Admin) SetPprof(on bool) { a.pprof.Store(on) }

// Start listens and serves. Errors name the config key.
func (a *Admin) Start(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.server != nil {
		return errors.New("admin: started twice")
	}
	a.server = &http.Server{
		Handler:           a.mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelWarn),
		ConnContext:       markSocket,
	}
	for _, listen := range []func(context.Context) (net.Listener, error){a.listenTCP, a.listenSocket} {
		l, err := listen(ctx)
		if err != nil {
			for _, l := range a.listeners {
				_ = l.Close()
			}
			a.listeners, a.server = nil, nil
			return err
		}
		if l != nil {
			a.listeners = append(a.listeners, l)
		}
	}
	for _, l := range a.listeners {
		a.serving.Go(func() {
			if err := a.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				a.log.Error("the admin server stopped", "address", l.Addr().String(), "error", err)
			}
		})
	}
	return nil
}

func (a *Admin) listenTCP(ctx context.Context) (net.Listener, error) {
	if a.cfg.Listen == "" {
		return nil, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", a.cfg.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("admin.listen: %s is in use by another process; stop that one or set admin.listen to another address (empty turns the server off): %w", a.cfg.Listen, err)
	}
	if err != nil {
		return nil, fmt.Errorf("admin.listen: %s: %w", a.cfg.Listen, err)
	}
	a.warnIfOpen(l.Addr())
	return l, nil
}

func (a *Admin) warnIfOpen(addr net.Addr) {
	if t, ok := addr.(*net.TCPAddr); ok && !t.IP.IsLoopback() {
		a.log.Warn("the admin server is reachable from other hosts: metrics and health are readable there without a password; calls that change things still work on loopback only",
			"address", t.String(), "key", "admin.listen")
	}
}

func (a *Admin) listenSocket(ctx context.Context) (net.Listener, error) {
	path := a.cfg.Socket
	if path == "" {
		return nil, nil
	}
	fail := func(err error) (net.Listener, error) { return nil, fmt.Errorf("admin.socket: %s: %w", path, err) }
	if st, err := os.Lstat(path); err == nil {
		if st.Mode().Type() != os.ModeSocket {
			return fail(errors.New("exists and is not a socket"))
		}
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return fail(errors.New("another process serves this socket; stop it or set admin.socket to another path"))
		}
		if err := os.Remove(path); err != nil { // left by a killed process
			return fail(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fail(err)
	}
	// The mode is set before bind, so that there is no moment at which others can connect.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}}
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return fail(err)
	}
	return l, nil
}

// Addr is the TCP address the server listens on, "" when it does not.
func (a *Admin) Addr() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.listeners {
		if t, ok := l.Addr().(*net.TCPAddr); ok {
			return t.String()
		}
	}
	return ""
}

// URL is the server's base address, "" when it does not listen on TCP.
func (a *Admin) URL() string {
	if addr := a.Addr(); addr != "" {
		return "http://" + addr
	}
	return ""
}

// Close stops listening, gives running requests until ctx ends and then cuts them off. It is legal
// before Start and twice.
func (a *Admin) Close(ctx context.Context) error {
	a.mu.Lock()
	s := a.server
	a.mu.Unlock()
	if s == nil {
		return nil
	}
	err := s.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("admin: requests cut off: %w", err), s.Close())
	}
	a.serving.Wait()
	return errors.Join(err, a.ready.stop(ctx))
}

// counted adds the write deadline and the counter to a handler.
func (a *Admin) counted(pattern string, h http.Handler) http.Handler {
	_, path, ok := strings.Cut(pattern, " ")
	if !ok {
		path = pattern
	}
	return promhttp.InstrumentHandlerCounter(a.requests.MustCurryWith(prometheus.Labels{"endpoint": path}),
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
			h.ServeHTTP(w, r)
		}))
}

// writeTimeout bounds an answer; handlers of longer ones (profiles) set their own deadline.
const writeTimeout = 30 * time.Second

func (a *Admin) index(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" {
		http.Error(w, "no such endpoint; / lists them", http.StatusNotFound)
		return
	}
	a.mu.Lock()
	list := slices.Clone(a.endpoints)
	a.mu.Unlock()
	slices.SortStableFunc(list, func(x, y endpoint) int { return strings.Compare(pathOf(x.pattern), pathOf(y.pattern)) })
	fmt.Fprint(w, "mooncake node, endpoints:\n\n")
	for _, e := range list {
		method, path, ok := strings.Cut(e.pattern, " ")
		if !ok {
			method, path = "", e.pattern
		}
		fmt.Fprintf(w, "%-5s %-28s %s\n", method, path, e.doc)
	}
}

func pathOf(pattern string) string {
	if _, path, ok := strings.Cut(pattern, " "); ok {
		return path
	}
	return pattern
}
