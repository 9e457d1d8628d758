package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/dig"
	"go.uber.org/fx"
	"go.uber.org/fx/fxevent"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/telemetry"
	"github.com/mooncake-agent/mooncake/core/transfer"
)

// Options are what a node runs with.
type Options struct {
	Config *config.Loaded
	// Reload reads the configuration again, after SIGHUP or a change of its file; nil = no reload.
	Reload func() (*config.Loaded, error)
	// Stderr is where logs go when no file is configured.
	Stderr io.Writer
	// Ready is told once, when the node serves.
	Ready func(context.Context, Status)
	// Local are further endpoints of the admin server, for callers on this host only.
	Local []Endpoint
}

// Endpoint is one path of the admin server.
type Endpoint struct {
	Pattern string // of http.ServeMux
	Doc     string // its line in the index
	Handler http.Handler
}

// Status is what a node tells when it is ready: one line of JSON.
type Status struct {
	Ready       bool   `json:"ready"`
	Segment     string `json:"segment"`                 // the name peers open
	Daemon      string `json:"daemon"`                  // host:port of the handshake daemon
	Admin       string `json:"admin,omitempty"`         // base URL
	MetaURL     string `json:"metadata_http,omitempty"` // URL for engines: metadata_server
	Master      string `json:"master,omitempty"`        // host:port of the Store's master
	Mounted     *bool  `json:"mounted,omitempty"`       // whether the master has accepted the memory
	MasterAdmin string `json:"master_admin,omitempty"`  // base URL of the embedded master's admin server
	Memory      string `json:"-"`                       // what the segment offers, for people
	meta        string // the backend, for people
}

// MetadataText says for people where the descriptor is published.
func (s Status) MetadataText() string {
	if s.MetaURL != "" {
		return s.meta + ", for other engines: " + s.MetaURL
	}
	return s.meta
}

const (
	// startSlack is what the start may take besides waiting for the metadata service.
	startSlack = 2 * time.Minute
	// drainTimeout is how long running transfers may take to finish after SIGTERM.
	drainTimeout = 15 * time.Second
	stopTimeout  = drainTimeout + 15*time.Second
)

// Run starts a node, tells Ready, and stops it in order when ctx ends. It returns nil after an orderly
// stop, else the first error in words for the person who started it.
func Run(ctx context.Context, o Options) error {
	plan, err := Resolve(o.Config)
	if err != nil {
		return err
	}
	var parts running
	app := fx.New(
		fx.Supply(plan),
		fx.Supply(fx.Annotate(o.Stderr, fx.As(new(io.Writer)))),
		fx.Provide(newLogging, newLogger, telemetry.BuildVersion, telemetry.NewRegistry, newAdmin, newMetadata, newTransports, newMetadataHTTP, newSegment, newEngine, newMaster, newStore),
		fx.Invoke(func(a *telemetry.Admin) {
			for _, e := range o.Local {
				a.HandleLocal(e.Pattern, e.Doc, e.Handler)
			}
		}),
		fx.Invoke(func(*telemetry.Admin, *metadataHTTP, *embeddedMaster, *transfer.Engine, *segmentMemory, *storeNode) {}), // order of start
		fx.Populate(&parts.logging, &parts.admin, &parts.engine, &parts.metadata, &parts.metadataHTTP, &parts.segment, &parts.store, &parts.master),
		fx.WithLogger(func(log *slog.Logger) fxevent.Logger {
			l := &fxevent.SlogLogger{Logger: log.With("part", "fx")}
			l.UseLogLevel(slog.LevelDebug)
			l.UseErrorLevel(slog.LevelDebug) // errors are returned and told once, by the caller
			return l
		}),
		fx.StartTimeout(plan.Transfer.MetadataStartTimeout+startSlack),
		fx.StopTimeout(stopTimeout),
	)
	if err := app.Err(); err != nil {
		return dig.RootCause(err)
	}
	log := parts.logging.Logger()
	defer parts.logging.Close()
	for _, w := range plan.Warnings {
		log.Warn("configuration: " + w.String())
	}
	startCtx, cancel := context.WithTimeout(ctx, app.StartTimeout())
	defer cancel()
	if err := app.Start(startCtx); err != nil {
		if ctx.Err() != nil {
			log.Info("stopped while starting")
			return nil
		}
		return err
	}
	cancel()
	log.Info("ready", "segment", parts.engine.Name(), "daemon", parts.engine.Address())
	if o.Ready != nil {
		o.Ready(ctx, parts.status(plan))
	}
	err = parts.serve(ctx, o, log)
	log.Info("stopping: withdrawing from the metadata, then draining transfers")
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), app.StopTimeout())
	defer cancel()
	return errors.Join(err, app.Stop(stopCtx))
}

// running are the parts that live operations need.
type running struct {
	logging      *telemetry.Logging
	admin        *telemetry.Admin
	engine       *transfer.Engine
	metadata     *metadataBackend
	metadataHTTP *metadataHTTP
	segment      *segmentMemory
	store        *storeNode
	master       *embeddedMaster
}

func (r *running) status(p *Plan) Status {
	s := Status{Ready: true, Segment: r.engine.Name(), Daemon: r.engine.Address(), Admin: r.admin.URL(),
		MetaURL: r.metadataHTTP.url(), meta: "P2PHANDSHAKE (peers ask the node itself)", Memory: "no memory of its own"}
	if p.Metadata != nil {
		s.meta = p.Metadata.Type
	}
	if n := p.Root.GlobalSegment; n > 0 {
		s.Memory = fmt.Sprintf("%s of memory, buffers[0]", n)
	}
	r.store.status(&s)
	if r.master.server != nil {
		s.Master, s.MasterAdmin = r.master.server.Addr(), r.master.server.AdminURL()
	}
	return s
}

// serve waits for the end and handles reloads meanwhile.
func (r *running) serve(ctx context.Context, o Options, log *slog.Logger) error {
	if o.Reload == nil {
		<-ctx.Done()
		return nil
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	changed := make(chan struct{}, 1)
	watchDone := make(chan struct{})
	go func() {
		defer close(watchDone)
		err := o.Config.Watch(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
		if err != nil {
			log.Warn("changes of the config file are not noticed; send SIGHUP after a change", "error", err)
		}
	}()
	defer func() { <-watchDone }()
	rl := &reloader{running: r, started: o.Config, last: o.Config, load: o.Reload, log: log}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
			rl.reload("SIGHUP")
		case <-changed:
			rl.reload("the file changed")
		}
	}
}
