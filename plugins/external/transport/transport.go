// Package transport is the host's side of transports that run in a process of their own: it implements
// [transports.Transport] by calls to a plugin, see plugins/proto/v1/transport.proto.
//
// # Memory
//
// Registered memory is handed over as its memfd, once for each process of the plugin; regions without one are not
// shareable. The host keeps a descriptor of its own, so a plugin that dies takes nothing with it. Whatever a process
// of the plugin had in flight ends when that process is dead and not before, because only then its memory is quiet: with
// ErrInterrupted, on which the engine takes the next path. A process that hangs keeps its operations until the
// supervisor has killed it, and Registration.Close answers ErrUnquiet so long.
//
// # Speed
//
// Operations and their ends go over a SOCK_SEQPACKET socket of their own, several in one packet. A call by gRPC takes
// several times as long as one by that socket. See docs/PERFORMANCE.md.
//
// # Locks
//
// Transport.mu, then session.mu. No callback is called and nothing is sent under either.
package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/mooncake-agent/mooncake/plugins/external"
	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
)

// Process is one run of the plugin, after Configure.
type Process interface {
	// Conn is where the plugin's services are called.
	Conn() grpc.ClientConnInterface
	// Has tells whether the plugin announced a feature.
	Has(feature string) bool
	// Give sends a request, with a descriptor if fd is not negative, on the side socket and waits for the answer. The
	// descriptor stays the caller's.
	Give(ctx context.Context, req *pluginv1.SideRequest, fd int) error
	// Dead is closed when the process has ended and was waited for: it maps nothing any more.
	Dead() <-chan struct{}
	// Fault reports that the plugin does not keep to the protocol: it is killed and started again. It does not wait.
	Fault(err error)
}

// Supervisor starts the plugin and starts it again when it has ended.
type Supervisor interface {
	// Run begins. For each process join is called, one after the other; when it returns an error the process has failed
	// to start. Run returns when it is known whether the first process got ready, or when ctx ends; an error means that
	// there will never be one.
	Run(ctx context.Context, join func(context.Context, Process) error) error
	// Stop lets the plugin finish, ends it and waits until it is dead.
	Stop() error
}

const (
	// maxOperations is what may be in flight with the plugin.
	maxOperations = 8192
	// redialPause is how long a peer that could not be dialled after a restart is left alone; it doubles up to
	// maxRedialPause.
	redialPause    = 100 * time.Millisecond
	maxRedialPause = 5 * time.Second
)

// Transport implements [transports.Transport] by a plugin.
type Transport struct {
	name string
	log  *slog.Logger
	sup  Supervisor
	// callTimeout is what the plugin gets for one call. A process that is killed ends them all.
	callTimeout time.Duration

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	host     transports.Host // set by Start
	listener *listener       // for plugins with the feature "listen"
	cur      *session        // nil while the plugin is not ready
	path     *ownPath        // what the plugin said last
	closed   bool
	segments map[fileKey]*segment
	regions  map[uint64]*region // by address
	lastID   uint64             // of segments and regions
	peers    map[*Peer]struct{}
	closing  sync.Once
	err      error // of Close
}

var _ transports.Transport = (*Transport)(nil)

// New returns a transport that is not started. It has no side effects. name is the instance's, for messages.
func New(name string, log *slog.Logger, sup Supervisor, callTimeout time.Duration) *Transport {
	t := &Transport{name: name, log: log, sup: sup, callTimeout: callTimeout, segments: map[fileKey]*segment{}, regions: map[uint64]*region{}, peers: map[*Peer]struct{}{}}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

func (t *Transport) errorf(format string, args ...any) error {
	return fmt.Errorf(t.name+": "+format, args...)
}

// Start implements transports.Transport. It waits for the plugin's first process; when that fails or does not get ready
// before ctx ends, the transport starts without it and offers no path until one is ready.
func (t *Transport) Start(ctx context.Context, h transports.Host) error {
	t.mu.Lock()
	switch {
	case t.closed:
		t.mu.Unlock()
		return t.errorf("start: %w", transports.ErrClosed)
	case t.host != nil:
		t.mu.Unlock()
		return t.errorf("started twice")
	}
	t.host = h
	t.mu.Unlock()
	if err := t.sup.Run(ctx, t.join); err != nil {
		return t.errorf("%w", err)
	}
	return nil
}

// join makes a new process of the plugin ready: memory, regions, the transfer socket, Start.
func (t *Transport) join(ctx context.Context, p Process) error {
	s, err := newSession(t, p)
	if err != nil {
		return err
	}
	if err := t.setUp(ctx, s); err != nil {
		s.abandon()
		return err
	}
	return nil
}

func (t *Transport) setUp(ctx context.Context, s *session) error {
	if err := s.registerAll(ctx, t.unknownTo(s)); err != nil {
		return err
	}
	if s.p.Has(featureListen) {
		l, err := t.listen(ctx)
		if err != nil {
			return err
		}
		if err := l.give(ctx, s.p); err != nil {
			return err
		}
	}
	if err := s.giveChannel(ctx); err != nil {
		return err
	}
	path, err := s.start(ctx, t.host.Identity())
	if err != nil {
		return err
	}
	for { // regions that came meanwhile
		missing := t.unknownTo(s)
		if len(missing) > 0 {
			if err := s.registerAll(ctx, missing); err != nil {
				return err
			}
			continue
		}
		t.mu.Lock()
		if t.closed {
			t.mu.Unlock()
			return t.errorf("%w", transports.ErrClosed)
		}
		if !t.allKnownTo(s) {
			t.mu.Unlock()
			continue
		}
		if t.path != nil && !t.path.equal(path) {
			t.log.Warn("the plugin says another way to reach it than before it was started again; peers learn of it when the segment is published again")
		}
		t.cur, t.path = s, path
		peers := slices.Collect(maps.Keys(t.peers))
		t.wg.Go(func() {
			s.run()
			t.mu.Lock()
			if t.cur == s {
				t.cur = nil
			}
			t.mu.Unlock()
		})
		t.mu.Unlock()
		for _, p := range peers {
			p.redial(s)
		}
		return nil
	}
}

// unknownTo returns the regions that s has not been told of and that are not being unregistered, in the order of their registration.
func (t *Transport) unknownTo(s *session) []*region {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*region
	for _, r := range t.regions {
		if r.told != s && !r.gone {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *region) int { return cmp.Compare(a.id, b.id) })
	return out
}

// allKnownTo is whether unknownTo would be empty. t.mu is held.
func (t *Transport) allKnownTo(s *session) bool {
	for _, r := range t.regions {
		if r.told != s && !r.gone {
			return false
		}
	}
	return true
}

// session returns the live one, or an error that wraps why there is none.
func (t *Transport) session() (*session, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil, t.errorf("%w", transports.ErrClosed)
	case t.cur == nil:
		return nil, t.errorf("%w: %w", transports.ErrUnreachable, external.ErrUnavailable)
	}
	return t.cur, nil
}

// Dial implements transports.Transport.
func (t *Transport) Dial(ctx context.Context, d *transports.Descriptor) (transports.Peer, error) {
	s, err := t.session()
	if err != nil {
		return nil, err
	}
	path, err := t.match(d)
	if err != nil {
		return nil, err
	}
	p := &Peer{t: t, req: &pluginv1.DialRequest{SegmentName: d.Name, Path: protoPath(path)}}
	if d.Agent != nil {
		p.req.Instance = d.Agent.Instance
	}
	id, err := s.dial(ctx, p.req)
	if err != nil {
		return nil, err
	}
	p.session, p.id = s, id
	t.mu.Lock()
	closed := t.closed
	if !closed {
		t.peers[p] = struct{}{}
	}
	cur := t.cur
	t.mu.Unlock()
	if closed {
		p.Close()
		return nil, t.errorf("dial segment %q: %w", d.Name, transports.ErrClosed)
	}
	if cur != nil && cur != s { // it was not in the list when the new process got ready
		p.redial(cur)
	}
	return p, nil
}

// Close implements transports.Transport. The plugin gets its time to finish; then it is killed.
func (t *Transport) Close() error {
	t.closing.Do(func() {
		t.mu.Lock()
		t.closed = true
		peers := slices.Collect(maps.Keys(t.peers))
		l := t.listener
		t.mu.Unlock()
		t.cancel()
		err := t.sup.Stop()
		for _, p := range peers {
			err = errors.Join(err, p.Close())
		}
		t.wg.Wait()
		t.mu.Lock()
		for _, g := range t.segments {
			g.close()
		}
		t.segments = nil
		t.mu.Unlock()
		if l != nil {
			l.close()
		}
		if err != nil {
			t.err = t.errorf("close: %w", err)
		}
	})
	return t.err
}

func (t *Transport) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}
