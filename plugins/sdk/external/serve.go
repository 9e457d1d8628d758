// Package external is for authors of plugins in Go that run in a process of their own: a metadata backend, an eviction
// policy, or with [Serve] any part of the protocol in plugins/proto/v1. A whole plugin:
//
//	func main() {
//		err := external.ServePolicy(external.About{Name: "lru", Version: "1.0"}, func(external.Config) (func(eviction.Spec) (*lru, error), error) {
//			return newLRU, nil
//		})
//		if err != nil {
//			log.Fatal(err)
//		}
//	}
//
// The implementation is that of the Go contract (packages metadata, eviction): what passes its conformance suite in
// process passes it from outside. What it writes with [Config.Log], or to standard error, is in the node's log.
//
// The process ends with the node: there is nothing to clean up but what the author's Close does.
package external

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

// About says what the plugin is, for logs and lists.
type About struct {
	Name    string // short: "sqlite"
	Version string
}

// Config is what the host gives a new process.
type Config struct {
	// Instance is the name of the node's config section.
	Instance string
	// JSON is the section's key "config", an object.
	JSON []byte
	// Generation counts the processes for this section from 1.
	Generation uint64
	// Log writes to the node's log.
	Log *slog.Logger
}

// Decode fills a struct from the configuration. Keys that it does not have are an error.
func (c *Config) Decode(into any) error {
	d := json.NewDecoder(bytes.NewReader(c.JSON))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	return nil
}

// ErrUnavailable may be wrapped by an error of Configure: the configuration is right, but a service that the plugin needs is
// not there. The node starts a new process later. Without it the node takes the configuration for wrong.
var ErrUnavailable = errors.New("unavailable")

// Part is one plugin: a kind, its service and the hooks of its life. The fields without which it cannot be served are
// Kind, Name, Register and Configure.
type Part struct {
	About
	Kind     pluginv1.Kind
	Features []string
	// Register adds the kind's service to the server. It is called before Configure.
	Register func(*grpc.Server)
	// Configure takes the configuration; an error refuses it.
	Configure func(context.Context, Config) error
	// Health returns what the plugin lacks at the moment.
	Health func(context.Context) error
	// Shutdown finishes what is in flight. The process ends after it.
	Shutdown func(context.Context) error
	// Side takes what comes over the side socket: see side.proto. fd is -1 if no descriptor came with it; otherwise it
	// is Side's, also if it returns an error.
	Side func(req *pluginv1.SideRequest, fd int) error
}

// Serve serves a part until the host wants the process to end; then it returns nil, and main should return. An error is a
// mistake of the caller's. A program that is not started by a node says so to its user and exits.
func Serve(p Part) error {
	if p.Kind == pluginv1.Kind_KIND_UNSPECIFIED || p.Name == "" || p.Register == nil || p.Configure == nil {
		return errors.New("external: a part needs Kind, Name, Register and Configure")
	}
	if err := followHost(p.Side); err != nil {
		return err
	}
	b := &base{part: p, log: slog.New(newLogHandler(os.Stderr))}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  plugin.HandshakeConfig{MagicCookieKey: pluginv1.MagicCookieKey, MagicCookieValue: pluginv1.MagicCookieValue},
		VersionedPlugins: map[int]plugin.PluginSet{pluginv1.Version: {"mooncake": served{base: b}}},
		GRPCServer: func(o []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(o, grpc.MaxRecvMsgSize(maxMessage), grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window))...)
		},
		Logger: hclog.NewNullLogger(),
	})
	return nil
}

// maxMessage bounds one message of the host.
const maxMessage = 16 << 20

// window is gRPC's flow control, of fixed size: otherwise gRPC sends a ping for each call to measure the connection.
const window = 1 << 20

// newLogHandler writes records as go-plugin's hosts know them.
func newLogHandler(w io.Writer) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) > 0 {
			return a
		}
		switch a.Key {
		case slog.TimeKey:
			a.Key = "@timestamp"
		case slog.MessageKey:
			a.Key = "@message"
		case slog.LevelKey:
			return slog.String("@level", strings.ToLower(a.Value.String()))
		}
		return a
	}})
}

// served is the plugin as go-plugin knows it.
type served struct {
	plugin.NetRPCUnsupportedPlugin
	base *base
}

// GRPCServer implements plugin.GRPCPlugin.
func (s served) GRPCServer(_ *plugin.GRPCBroker, g *grpc.Server) error {
	pluginv1.RegisterBaseServiceServer(g, s.base)
	s.base.part.Register(g)
	return nil
}

// GRPCClient implements plugin.GRPCPlugin; a plugin is no host.
func (served) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("external: a plugin calls no plugin")
}

// base is the BaseService.
type base struct {
	pluginv1.UnimplementedBaseServiceServer
	part Part
	log  *slog.Logger

	mu         sync.Mutex
	configured bool
}

func (b *base) Info(context.Context, *pluginv1.InfoRequest) (*pluginv1.InfoResponse, error) {
	return &pluginv1.InfoResponse{Kind: b.part.Kind, Name: b.part.Name, Version: b.part.Version, Features: b.part.Features}, nil
}

func (b *base) Configure(ctx context.Context, r *pluginv1.ConfigureRequest) (*pluginv1.ConfigureResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.configured {
		return &pluginv1.ConfigureResponse{Error: &pluginv1.Error{Code: pluginv1.ErrorCode_ERROR_CODE_INTERNAL, Message: "configured twice"}}, nil
	}
	c := Config{Instance: r.Instance, JSON: r.ConfigJson, Generation: r.Generation, Log: b.log}
	if len(c.JSON) == 0 {
		c.JSON = []byte("{}")
	}
	if err := b.part.Configure(ctx, c); err != nil {
		code := pluginv1.ErrorCode_ERROR_CODE_INVALID_CONFIG
		if errors.Is(err, ErrUnavailable) {
			code = pluginv1.ErrorCode_ERROR_CODE_UNAVAILABLE
		}
		return &pluginv1.ConfigureResponse{Error: &pluginv1.Error{Code: code, Message: err.Error()}}, nil
	}
	b.configured = true
	return &pluginv1.ConfigureResponse{}, nil
}

func (b *base) Health(ctx context.Context, _ *pluginv1.HealthRequest) (*pluginv1.HealthResponse, error) {
	resp := &pluginv1.HealthResponse{}
	if b.part.Health != nil {
		if err := b.part.Health(ctx); err != nil {
			resp.Problem = &pluginv1.Error{Code: pluginv1.ErrorCode_ERROR_CODE_UNAVAILABLE, Message: err.Error()}
		}
	}
	return resp, nil
}

func (b *base) Shutdown(ctx context.Context, _ *pluginv1.ShutdownRequest) (*pluginv1.ShutdownResponse, error) {
	resp := &pluginv1.ShutdownResponse{}
	if b.part.Shutdown != nil {
		if err := b.part.Shutdown(ctx); err != nil {
			resp.Error = &pluginv1.Error{Code: pluginv1.ErrorCode_ERROR_CODE_INTERNAL, Message: err.Error()}
		}
	}
	return resp, nil
}
