package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"syscall"

	"go.uber.org/fx"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/metahttp"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/telemetry"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/transports"
)

// The constructors below have no side effects besides registering metrics; what opens, listens or
// publishes is appended to the life cycle.

func newLogging(p *Plan, stderr io.Writer) (*telemetry.Logging, error) {
	return telemetry.NewLogging(p.Log, stderr)
}

func newLogger(l *telemetry.Logging) *slog.Logger { return l.Logger() }

func newAdmin(lc fx.Lifecycle, p *Plan, l *telemetry.Logging, reg *telemetry.Registry, v telemetry.Version) (*telemetry.Admin, error) {
	a, err := telemetry.NewAdmin(p.Admin, l, reg, v)
	if err != nil {
		return nil, err
	}
	lc.Append(fx.Hook{OnStart: a.Start, OnStop: a.Close})
	return a, nil
}

// env is what a part gets; it labels its metrics with its instance name itself.
func env(log *slog.Logger, reg *telemetry.Registry) func(config.Instance) module.Env {
	return func(i config.Instance) module.Env {
		return module.Env{Name: i.Name, Log: log.With("part", i.Name), Metrics: reg}
	}
}

// metadataBackend is the node's backend; nil inside means P2PHANDSHAKE.
type metadataBackend struct {
	metadata.Backend
	// raw: values have no newline at the end, as upstream does over http.
	raw bool
}

func newMetadata(lc fx.Lifecycle, p *Plan, log *slog.Logger, reg *telemetry.Registry) (*metadataBackend, error) {
	b, err := buildMetadata(p, log, reg)
	if err == nil && b.Backend != nil {
		lc.Append(fx.StopHook(func() error { return b.Close() }))
	}
	return b, err
}

func buildMetadata(p *Plan, log *slog.Logger, reg *telemetry.Registry) (*metadataBackend, error) {
	if p.Metadata == nil {
		return &metadataBackend{}, nil
	}
	b, err := metadata.Kind.Build(context.Background(), p.Metadata.Type, env(log, reg)(*p.Metadata), p.Metadata.Section)
	if err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	// Engines read the memory backend over http only, so it holds what they would have put there.
	return &metadataBackend{Backend: b, raw: p.Metadata.Type == "http" || p.Metadata.Type == "memory"}, nil
}

func newTransports(p *Plan, log *slog.Logger, reg *telemetry.Registry) ([]transfer.NamedTransport, error) {
	skipped := func(i config.Instance, err error) {
		log.Warn("transport is left out", "transport", i.Name, "reason", err)
	}
	parts, built, err := buildAll(context.Background(), transports.Kind, p.Transports, env(log, reg), skipped)
	if err != nil {
		return nil, err
	}
	wide := 0 // those that reach other hosts
	for _, i := range built {
		if i.Type != shmType {
			wide++
		}
	}
	named := make([]transfer.NamedTransport, len(parts))
	for n, t := range parts {
		others := wide
		if built[n].Type != shmType {
			others--
		}
		named[n] = transfer.NamedTransport{Name: built[n].Name, Transport: t, Optional: !built[n].Required && others > 0}
	}
	if len(named) == 0 {
		return nil, errors.New(`transports: none is left to use; add "transports": {"tcp": {}}`)
	}
	return named, nil
}

// metadataHTTP is the HTTP metadata server, if one is configured.
type metadataHTTP struct {
	server *metahttp.Server // nil: off
}

// url is what other engines write as their metadata_server.
func (m *metadataHTTP) url() string {
	if m.server == nil || m.server.Addr() == "" {
		return ""
	}
	return "http://" + m.server.Addr() + "/metadata"
}

func newMetadataHTTP(lc fx.Lifecycle, p *Plan, b *metadataBackend, log *slog.Logger, reg *telemetry.Registry) (*metadataHTTP, error) {
	if p.MetadataHTTP.Listen == "" {
		return &metadataHTTP{}, nil
	}
	s, err := metahttp.New(p.MetadataHTTP, b.Backend, handshake.Probe, module.Env{Log: log.With("part", "metadata_http"), Metrics: reg})
	if err != nil {
		return nil, err
	}
	lc.Append(fx.Hook{
		OnStart: func(ctx context.Context) error {
			err := s.Start(ctx)
			if errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("metadata_http.listen: %s is in use by another process; stop that one or set metadata_http.listen to another address: %w", p.MetadataHTTP.Listen, err)
			}
			if err != nil {
				return fmt.Errorf("metadata_http.listen: %w", err)
			}
			return nil
		},
		OnStop: s.Close,
	})
	return &metadataHTTP{server: s}, nil
}

func newEngine(lc fx.Lifecycle, p *Plan, b *metadataBackend, ts []transfer.NamedTransport, admin *telemetry.Admin, mem *segmentMemory, log *slog.Logger, reg *telemetry.Registry) (*transfer.Engine, error) {
	o := transfer.Options{
		Config: p.Transfer, LocalName: p.Root.LocalHostname, BindAddress: p.Root.Bind, AdvertiseHost: p.Root.AdvertiseHost,
		Metadata: b.Backend, MetadataRaw: b.raw, Transports: ts, Log: log.With("part", "transfer"), Metrics: reg,
		Protocol:   documentProtocol(p.Root.Protocol),
		PortInName: p.inStore() && p.Root.Port == 0,
	}
	if o.LocalName == "" {
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("local_hostname is not set and the host has no name: %w", err)
		}
		o.LocalName = name
	}
	e, err := transfer.New(o)
	if err != nil {
		return nil, err
	}
	admin.Ready("transfer", func(context.Context) error { return e.Health() })
	admin.HandleLocal("GET "+SegmentsPath, "how each opened segment is reached: paths, bytes, errors, latency", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		telemetry.WriteJSON(w, http.StatusOK, Segments{Segments: e.Segments()})
	}))
	lc.Append(fx.Hook{
		OnStart: func(ctx context.Context) error {
			if r := mem.region; r != nil {
				if err := e.Register(ctx, r); err != nil {
					return fmt.Errorf("register the segment: %w", err)
				}
			}
			return e.Start(ctx)
		},
		OnStop: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, drainTimeout)
			defer cancel()
			return e.Close(ctx)
		},
	})
	return e, nil
}

// SegmentsPath is where the admin server answers with [Segments].
const SegmentsPath = "/api/v1/segments"

// Segments tells how the node reaches segments: its own first, then those it has opened.
type Segments struct {
	Segments []transfer.SegmentStatus `json:"segments"`
}

// documentProtocol is the protocol of the published document; with the others it is that of the first transport.
func documentProtocol(protocol string) string {
	if protocol == "rdma" || protocol == "tcp" {
		return protocol
	}
	return ""
}

// initiatorOptions are those of an engine that nobody connects to.
func initiatorOptions(p *Plan, b *metadataBackend, ts []transfer.NamedTransport, log *slog.Logger) transfer.Options {
	o := transfer.Options{
		Config: p.Transfer, LocalName: "127.0.0.1", AdvertiseHost: "127.0.0.1", BindAddress: "127.0.0.1",
		Metadata: b.Backend, MetadataRaw: b.raw, Transports: ts, Log: log.With("part", "transfer"), Protocol: documentProtocol(p.Root.Protocol),
	}
	if o.Protocol == "rdma" { // peers tell connections apart by this name
		if host, err := os.Hostname(); err == nil {
			o.LocalName = host
		}
	}
	if b.Backend != nil {
		host, err := os.Hostname()
		if err != nil {
			host = "host"
		}
		o.LocalName = fmt.Sprintf("mooncake-client-%s-%d", host, os.Getpid())
	}
	return o
}

// segmentMemory is the memory of global_segment_size.
type segmentMemory struct {
	arena  *segment.Arena
	region *segment.Region    // the first; nil without memory
	fence  *client.ArenaFence // owns the region while the memory is lent to a Store
}

func newSegment(lc fx.Lifecycle, p *Plan, log *slog.Logger) *segmentMemory {
	m := &segmentMemory{}
	size := uint64(p.Root.GlobalSegment)
	if size == 0 {
		return m
	}
	lc.Append(fx.Hook{
		OnStart: func(ctx context.Context) error {
			arena, err := segment.New(ctx, "segment", size, p.Segment)
			if err != nil {
				return fmt.Errorf("global_segment_size: %w", err)
			}
			region, err := arena.Region(0, size, transports.ReadWrite)
			if err != nil {
				return errors.Join(fmt.Errorf("global_segment_size: %w", err), arena.Close(ctx))
			}
			m.arena, m.region = arena, region
			log.Info("segment memory is reserved", "size", p.Root.GlobalSegment.String(), "huge_pages", p.Segment.HugePages)
			return nil
		},
		OnStop: func(ctx context.Context) error {
			if m.fence != nil {
				m.fence.Close()
			}
			m.region.Close()
			return m.arena.Close(ctx)
		},
	})
	return m
}
