package external

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

// maxAnswer bounds one message of a plugin.
const maxAnswer = 16 << 20

// window is gRPC's flow control, of fixed size: gRPC's own choice measures the connection with a ping in each direction
// for each call, and the wake-ups for those pings are a good part of a small call.
const window = 1 << 20

// Process is one run of a plugin, after Configure. Adapters call its services on [Process.Conn]. All methods may be called
// concurrently.
type Process struct {
	generation uint64
	conn       *grpc.ClientConn
	broker     *plugin.GRPCBroker
	base       pluginv1.BaseServiceClient
	info       *pluginv1.InfoResponse
	client     *plugin.Client
	run        *process
	quiet      context.CancelFunc // of what go-plugin passes on

	faulted chan struct{} // closed with the first fault
	fault   error
	once    sync.Once
	clean   sync.Once
	apart   sync.Once
}

// Conn is where the plugin's services are called.
func (p *Process) Conn() grpc.ClientConnInterface { return p.conn }

// Broker opens connections for services that the plugin calls.
func (p *Process) Broker() *plugin.GRPCBroker { return p.broker }

// Generation counts the processes of the plugin from 1.
func (p *Process) Generation() uint64 { return p.generation }

// PID is the process's number, for people.
func (p *Process) PID() int { return p.run.child.proc.Pid }

// Has tells whether the plugin announced a feature.
func (p *Process) Has(feature string) bool { return slices.Contains(p.info.Features, feature) }

// Dead is closed when the process has ended and was waited for: it maps nothing any more.
func (p *Process) Dead() <-chan struct{} { return p.run.child.dead }

// Fault reports that the plugin does not keep to the protocol: it is killed and started again. Further faults of this
// process count for nothing. It does not wait.
func (p *Process) Fault(err error) {
	p.once.Do(func() {
		p.fault = err
		close(p.faulted)
		p.run.child.kill()
	})
}

// Faulted is closed at the first fault.
func (p *Process) Faulted() <-chan struct{} { return p.faulted }

// Give sends a request, with a descriptor if fd is not negative, on the side socket and waits for the answer. The
// descriptor stays the caller's; it must not be closed meanwhile. A process that does not answer before ctx ends has a
// fault, because nobody knows then what it owns.
func (p *Process) Give(ctx context.Context, req *pluginv1.SideRequest, fd int) error {
	fault, err := p.run.side.give(ctx, req, fd)
	if err != nil {
		err = fmt.Errorf("side socket: %w", err)
	}
	if fault {
		p.Fault(err)
	}
	return err
}

// kindPlugin is what go-plugin dispenses: the connection itself.
type kindPlugin struct{ plugin.NetRPCUnsupportedPlugin }

// wire is a connection with its broker.
type wire struct {
	conn   *grpc.ClientConn
	broker *plugin.GRPCBroker
}

// GRPCClient implements plugin.GRPCPlugin.
func (kindPlugin) GRPCClient(_ context.Context, b *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return wire{c, b}, nil
}

// GRPCServer implements plugin.GRPCPlugin; the host serves nothing.
func (kindPlugin) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return errors.New("the host is no plugin")
}

const dispensed = "mooncake"

// startProcess runs the program up to Info: it is started, its handshake is right, it says what it is. Nothing is
// configured. On an error the process is dead.
func (g *Program) startProcess(ctx context.Context, generation uint64) (_ *Process, err error) {
	dir, err := openRunDir(g.cfg.RunDir)
	if err != nil {
		return nil, err
	}
	tlsConfig, cert, err := clientTLS(time.Now())
	if err != nil {
		closeRunDir(dir)
		return nil, err
	}
	side, far, err := newSideSocket()
	if err != nil {
		closeRunDir(dir)
		return nil, err
	}
	quiet, cancel := context.WithCancel(context.Background())
	p := &Process{
		generation: generation, faulted: make(chan struct{}), quiet: cancel,
		run: &process{cfg: &g.cfg, journal: g.journal, generation: generation, cert: cert, side: side, far: far, dir: dir},
	}
	defer func() {
		if err != nil {
			err = g.explain(ctx, err, p)
			p.destroy()
		}
	}()
	writer := &journalWriter{j: g.journal, ctx: quiet, generation: generation}
	p.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  plugin.HandshakeConfig{MagicCookieKey: pluginv1.MagicCookieKey, MagicCookieValue: pluginv1.MagicCookieValue},
		VersionedPlugins: map[int]plugin.PluginSet{pluginv1.Version: {dispensed: kindPlugin{}}},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		RunnerFunc:       p.run.make,
		TLSConfig:        tlsConfig,
		SkipHostEnv:      true,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: dir},
		StartTimeout:     g.cfg.StartTimeout,
		Logger:           hclog.NewNullLogger(), // what it would say is in the errors
		SyncStdout:       writer, SyncStderr: writer,
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
			grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		},
	})
	// Whatever go-plugin waits for, it ends when the process is dead.
	stop := context.AfterFunc(ctx, func() { p.run.killWhenStarted() })
	defer stop()
	proto, err := p.client.Client()
	if err != nil {
		return nil, err
	}
	got, err := proto.Dispense(dispensed)
	if err != nil {
		return nil, err
	}
	w := got.(wire)
	p.conn, p.broker, p.base = w.conn, w.broker, pluginv1.NewBaseServiceClient(w.conn)
	if p.info, err = p.base.Info(ctx, &pluginv1.InfoRequest{}); err != nil {
		return nil, fmt.Errorf("info: %w", err)
	}
	return p, checkInfo(p.info, g.kind)
}

// explain says in our words what go-plugin says in its own.
func (g *Program) explain(ctx context.Context, err error, p *Process) error {
	what := firstWords(err.Error())
	_, said, noHandshake := strings.Cut(what, "Unrecognized remote plugin message:")
	switch said = strings.TrimSpace(said); {
	case errors.Is(err, ErrRefused) || p.run.child == nil:
		return err
	case strings.Contains(what, "ncompatible API version"):
		return fmt.Errorf("it speaks another version of the plugin protocol than %d: %s: %w", pluginv1.Version, what, ErrRefused)
	case noHandshake && said != "":
		return fmt.Errorf("the first line on its standard output is no handshake, is it a plugin? %q", said)
	case ctx.Err() != nil || strings.Contains(what, "timeout while waiting"):
		return fmt.Errorf("not ready within %v (start_timeout): %s", g.cfg.StartTimeout, what)
	}
	select {
	case <-p.Dead():
		p.run.readers.Wait()
		return fmt.Errorf("the program ended before it was ready (%s) and wrote %s", p.Exit(), g.journal.lastWord(p.generation))
	case <-time.After(100 * time.Millisecond): // the connection may be seen to end first
		return err
	}
}

func firstWords(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return clean(line, 300)
}

// checkInfo accepts what the protocol allows and this section wants.
func checkInfo(i *pluginv1.InfoResponse, kind pluginv1.Kind) error {
	if i.Kind == pluginv1.Kind_KIND_UNSPECIFIED || kind != pluginv1.Kind_KIND_UNSPECIFIED && i.Kind != kind {
		return fmt.Errorf("it is a plugin of kind %s, this section wants %s: %w", kindName(i.Kind), kindName(kind), ErrRefused)
	}
	for what, s := range map[string]string{"name": i.Name, "version": i.Version} {
		if len(s) > 64 || clean(s, 64) != s {
			return fmt.Errorf("its %s %q is not 64 printable bytes: %w", what, clean(s, 64), ErrRefused)
		}
	}
	if i.Name == "" || len(i.Features) > 100 {
		return fmt.Errorf("it has no name, or more than 100 features: %w", ErrRefused)
	}
	return nil
}

// codeName is an error code without the prefix that all of them have: UNAVAILABLE.
func codeName(c pluginv1.ErrorCode) string { return strings.TrimPrefix(c.String(), "ERROR_CODE_") }

func kindName(k pluginv1.Kind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "KIND_"))
}

// ErrConfigRefused is wrapped by the errors of a plugin that refuses its configuration: it is not started again.
var ErrConfigRefused = errors.New("plugin config refused")

// configure takes a new process from known to configured.
func (p *Process) configure(ctx context.Context, g *Program) error {
	raw, err := g.cfg.pluginConfig()
	if err != nil {
		return err
	}
	version := "unknown"
	if b, ok := debug.ReadBuildInfo(); ok {
		version = b.Main.Version
	}
	resp, err := p.base.Configure(ctx, &pluginv1.ConfigureRequest{Instance: g.name, ConfigJson: raw, Generation: p.generation, HostVersion: version})
	if err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	if e := resp.Error; e != nil {
		err := fmt.Errorf("configure: %s: %s", codeName(e.Code), clean(e.Message, 1000))
		if e.Code == pluginv1.ErrorCode_ERROR_CODE_INVALID_CONFIG {
			err = fmt.Errorf("config: %s: %w", clean(e.Message, 1000), ErrConfigRefused)
		}
		return err
	}
	return nil
}

// health asks whether the plugin is alive; problem is what it lacks, "" if nothing.
func (p *Process) health(ctx context.Context) (problem string, err error) {
	resp, err := p.base.Health(ctx, &pluginv1.HealthRequest{})
	if err != nil {
		return "", err
	}
	return clean(resp.Problem.GetMessage(), 1000), nil
}

// shutdown asks the plugin to finish and to end, and waits for that, at most until ctx ends.
func (p *Process) shutdown(ctx context.Context, grace time.Duration) {
	if _, err := p.base.Shutdown(ctx, &pluginv1.ShutdownRequest{GraceMs: uint64(grace.Milliseconds())}); err != nil {
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.disconnect()
	}()
	select {
	case <-ended:
	case <-ctx.Done(): // destroy kills it, on which disconnect returns
	}
}

// disconnect calls go-plugin's own shutdown, closes the connection and waits for go-plugin's goroutines. It waits as long
// as the process lives, but for two seconds after which a process that answered is killed.
func (p *Process) disconnect() { p.apart.Do(p.client.Kill) }

// Exit says how the process ended, once it is dead.
func (p *Process) Exit() string { return p.run.child.exit }

// destroy kills the process if it lives, waits until it is dead and frees what the host has of it.
func (p *Process) destroy() {
	p.clean.Do(func() {
		_ = p.run.Kill(context.Background())
		if p.client != nil {
			p.disconnect()
		}
		p.quiet()
		p.run.close()
	})
}

// killWhenStarted ends a start that takes too long, whatever it waits for.
func (p *process) killWhenStarted() {
	p.mu.Lock()
	p.cancelled = true
	c := p.child
	p.mu.Unlock()
	if c != nil {
		c.kill()
	}
}

// close frees what belongs to the process once it is dead.
func (p *process) close() {
	p.side.close()
	p.far.Close()
	if p.sockets != "" {
		_ = os.RemoveAll(p.sockets)
	}
	closeRunDir(p.dir)
}

// reason says why a process has failed.
func (p *Process) reason() error {
	if err := p.reasonNow(); err != nil {
		return err
	}
	<-p.Dead()
	return fmt.Errorf("its process ended: %s", p.Exit())
}

// reasonNow is the process's fault, nil if there is none.
func (p *Process) reasonNow() error {
	select {
	case <-p.faulted:
		return p.fault
	default:
		return nil
	}
}
