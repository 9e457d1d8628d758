package metahttp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/metadata"
)

// Server is the HTTP metadata server. It is an http.Handler; [Server.Start] also gives it a listener. All
// methods may be called concurrently.
type Server struct {
	cfg     Config
	backend metadata.Backend
	probe   Prober
	log     *slog.Logger
	metrics metrics
	names   keyLocks
	bodies  *semaphore.Weighted // bytes of bodies being received

	mu     sync.Mutex // guards what follows
	http   *http.Server
	ln     net.Listener
	served chan struct{} // closed when the accept loop has ended
	closed bool
}

type metrics struct {
	requests *prometheus.CounterVec
	duration prometheus.Histogram
	probes   *prometheus.CounterVec
}

// New builds a server on a backend, which it does not close. Without a prober every different value of an
// rpc_meta key is refused, as upstream does. New does not listen.
func New(cfg Config, b metadata.Backend, probe Prober, env module.Env) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, backend: b, probe: probe, log: env.Log,
		bodies: semaphore.NewWeighted(int64(cfg.MaxInFlight)),
		metrics: metrics{
			requests: prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "mooncake_metadata_http_requests_total", Help: "Requests to the HTTP metadata server.",
			}, []string{"method", "code"}),
			duration: prometheus.NewHistogram(prometheus.HistogramOpts{
				Name: "mooncake_metadata_http_request_duration_seconds", Help: "Time from the header of a request to its answer.",
				Buckets: prometheus.ExponentialBuckets(0.0005, 4, 8),
			}),
			probes: prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "mooncake_metadata_http_probes_total",
				Help: "Probes of the holder of a name that another engine wants, by result: alive, silent, dead, unknown.",
			}, []string{"result"}),
		},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if env.Metrics != nil {
		for _, c := range []prometheus.Collector{s.metrics.requests, s.metrics.duration, s.metrics.probes} {
			if err := env.Metrics.Register(c); err != nil {
				return nil, fmt.Errorf("metadata http: metrics: %w", err)
			}
		}
	}
	return s, nil
}

// Start listens and serves until Close. It returns once the listener is there; with an empty listen address
// it does nothing.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errors.New("metadata http: started after close")
	case s.ln != nil:
		return errors.New("metadata http: started twice")
	case s.cfg.Listen == "":
		return nil
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("metadata http: listen: %w", err)
	}
	s.ln, s.served = ln, make(chan struct{})
	s.http = &http.Server{
		Handler: s, ReadHeaderTimeout: s.cfg.ReadHeaderTimeout, ReadTimeout: s.cfg.ReadTimeout,
		WriteTimeout: s.cfg.WriteTimeout, IdleTimeout: s.cfg.IdleTimeout,
		MaxHeaderBytes: 16<<10 + 3*s.cfg.MaxKey, // a key may be all %XX
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	go func() {
		defer close(s.served)
		if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("metadata http: serving ended", "error", err)
		}
	}()
	s.log.Info("metadata http: serving", "address", ln.Addr().String())
	return nil
}

// Addr is the address in use as host:port, "" while not listening.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ln == nil {
		return ""
	}
	return s.ln.Addr().String()
}

// Close stops listening and waits for the requests being served, until ctx ends; then it cuts them off. A
// second Close does nothing.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	srv, served := s.http, s.served
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if srv == nil || !first {
		return nil
	}
	err := srv.Shutdown(ctx)
	if err != nil {
		srv.Close()
		err = fmt.Errorf("metadata http: requests were cut off: %w", err)
	}
	<-served
	s.mu.Lock()
	s.ln = nil
	s.mu.Unlock()
	return err
}
