package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
)

// session is what the host has with one process of the plugin.
type session struct {
	t      *Transport
	p      Process
	client pluginv1.TransportServiceClient
	c      *net.UnixConn // the transfer socket
	far    *os.File      // its other end, until it was handed over

	calls chan struct{}   // holds a token while regions and segments are being told of or taken back
	given map[uint64]bool // segments that the plugin has; the holder of calls uses it

	room *semaphore.Weighted // of operations
	send sync.Mutex          // order of what is sent

	mu      sync.Mutex
	pending map[uint64]pending // by operation id
	lastOp  uint64
	over    bool // set when the process is dead and everything pending was taken out
	lastJob uint64
}

// newSession makes the transfer socket.
func newSession(t *Transport, p Process) (*session, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("transfer socket: %w", err)
	}
	near, far := os.NewFile(uintptr(fds[0]), "transfer"), os.NewFile(uintptr(fds[1]), "transfer")
	defer near.Close() // FileConn duplicates it
	c, err := net.FileConn(near)
	if err != nil {
		far.Close()
		return nil, fmt.Errorf("transfer socket: %w", err)
	}
	return &session{t: t, p: p, client: pluginv1.NewTransportServiceClient(p.Conn()), c: c.(*net.UnixConn), far: far,
		calls: make(chan struct{}, 1), given: map[uint64]bool{}, room: semaphore.NewWeighted(maxOperations), pending: map[uint64]pending{}}, nil
}

// abandon lets go of a session that was never in use.
func (s *session) abandon() {
	s.c.Close()
	s.far.Close()
}

func (s *session) isDead() bool {
	select {
	case <-s.p.Dead():
		return true
	default:
		return false
	}
}

// call runs one RPC with a limit. A plugin that answers an error which it must not answer, or where the call itself
// fails, is at fault, and call waits for the end of its process. errSlow is returned when the limit is up.
func (s *session) call(ctx context.Context, what string, limit time.Duration, f func(context.Context) (*pluginv1.Error, error)) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, err := f(limited)
	switch {
	case err == nil && answer == nil:
		return nil
	case err == nil:
		err, known := fromProto(answer)
		err = fmt.Errorf("plugin: %s: %w", what, err)
		if !known {
			s.p.Fault(err)
		}
		return unlessOurs(err)
	case ctx.Err() != nil:
		return fmt.Errorf("plugin: %s: no answer: %w", what, context.Cause(ctx))
	case limited.Err() != nil || status.Code(err) == codes.DeadlineExceeded: // the plugin may notice first
		return fmt.Errorf("plugin: %s: no answer within %v: %w", what, limit, errSlow)
	}
	return s.fault(ctx, fmt.Errorf("plugin: %s: %w", what, err))
}

// must is call for what a plugin has to answer in time.
func (s *session) must(ctx context.Context, what string, f func(context.Context) (*pluginv1.Error, error)) error {
	err := s.call(ctx, what, s.t.callTimeout, f)
	if errors.Is(err, errSlow) {
		return s.fault(ctx, err)
	}
	return err
}

// fault ends the process and waits for that.
func (s *session) fault(ctx context.Context, err error) error {
	s.p.Fault(err)
	select {
	case <-s.p.Dead():
	case <-ctx.Done():
	}
	return fmt.Errorf("%w: %w", transports.ErrUnreachable, err)
}

var (
	errSlow = errors.New("too slow")
	errDead = fmt.Errorf("the plugin's process has ended: %w", transports.ErrUnreachable)
)

// lock serialises what is said about memory.
func (s *session) lock(ctx context.Context) error {
	select {
	case s.calls <- struct{}{}:
		return nil
	case <-s.p.Dead():
		return errDead
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *session) unlock() { <-s.calls }

// registerBatch is how many regions one call tells of: well inside gRPC's limit of 4 MiB for a message.
const registerBatch = 1000

// registerAll tells the plugin of regions. Those that are being closed are left out.
func (s *session) registerAll(ctx context.Context, all []*region) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	for len(all) > 0 {
		n := min(len(all), registerBatch)
		if err := s.register(ctx, all[:n]); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

func (s *session) register(ctx context.Context, some []*region) error {
	req := &pluginv1.RegisterRequest{}
	byID := map[uint64]*region{}
	segs := []*segment{}
	s.t.mu.Lock()
	for _, g := range some {
		if g.gone {
			continue
		}
		g.told, g.refused = s, nil
		byID[g.id] = g
		req.Regions = append(req.Regions, g.proto())
		if !s.given[g.seg.id] {
			s.given[g.seg.id] = true
			segs = append(segs, g.seg)
		}
	}
	s.t.mu.Unlock()
	for _, seg := range segs {
		err := s.p.Give(ctx, &pluginv1.SideRequest{What: &pluginv1.SideRequest_Give{Give: &pluginv1.Segment{SegmentId: seg.id, Length: seg.size, Writable: seg.key.writable}}}, seg.fd)
		if err != nil {
			delete(s.given, seg.id)
			return fmt.Errorf("hand over a segment of %d bytes: %w", seg.size, err)
		}
	}
	if len(req.Regions) == 0 {
		return nil
	}
	return s.must(ctx, "Register", func(ctx context.Context) (*pluginv1.Error, error) {
		resp, err := s.client.Register(ctx, req)
		if err != nil {
			return nil, err
		}
		s.t.mu.Lock()
		defer s.t.mu.Unlock()
		for _, f := range resp.Refused {
			g := byID[f.RegionId]
			if g == nil {
				return nil, fmt.Errorf("region %d was refused, which it was not told of", f.RegionId)
			}
			g.refused = s.t.errorf("region at %#x: the plugin: %.1000q: %w", g.of.Addr(), f.Error.GetMessage(), transports.ErrNotShareable)
		}
		return resp.Error, nil
	})
}

// unregisterLimit is how long one call to unregister may take; it is tried again as long as the caller waits.
const unregisterLimit = 2 * time.Second

// unregister returns nil when nothing of this process touches the region any more. A dead process touches nothing.
func (s *session) unregister(ctx context.Context, g *region) error {
	unquiet := func(err error) error {
		if s.isDead() {
			return nil
		}
		return fmt.Errorf("the plugin still uses it: %w: %w", transports.ErrUnquiet, err)
	}
	for {
		if err := s.lock(ctx); err != nil {
			return unquiet(err)
		}
		err := s.call(ctx, "Unregister", unregisterLimit, func(ctx context.Context) (*pluginv1.Error, error) {
			resp, err := s.client.Unregister(ctx, &pluginv1.UnregisterRequest{RegionId: g.id})
			return resp.GetError(), err
		})
		s.unlock()
		if err == nil {
			break
		}
		if again := errors.Is(err, errSlow) || errors.Is(err, transports.ErrUnquiet); !again || ctx.Err() != nil || s.isDead() {
			return unquiet(err)
		}
	}
	for g.ops.Load() != 0 { // their ends are on the way
		select {
		case <-g.idle:
		case <-s.p.Dead():
			return nil
		case <-ctx.Done():
			return unquiet(context.Cause(ctx))
		}
	}
	g.wake() // somebody else may wait too
	return nil
}

// drop takes a segment back that no region lies in any more. When that fails the process ends, which comes to the same.
func (s *session) drop(ctx context.Context, seg *segment) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.t.callTimeout)
	defer cancel()
	if s.lock(ctx) != nil {
		return
	}
	defer s.unlock()
	if !s.given[seg.id] || s.isDead() {
		return
	}
	delete(s.given, seg.id)
	if err := s.p.Give(ctx, &pluginv1.SideRequest{What: &pluginv1.SideRequest_Drop{Drop: &pluginv1.DropSegment{SegmentId: seg.id}}}, -1); err != nil {
		s.p.Fault(fmt.Errorf("take back a segment: %w", err))
	}
}

// giveChannel hands the plugin's end of the transfer socket over.
func (s *session) giveChannel(ctx context.Context) error {
	defer s.far.Close()
	raw, err := s.far.SyscallConn()
	if err != nil {
		return err
	}
	return withFD(raw, func(fd int) error {
		return s.p.Give(ctx, &pluginv1.SideRequest{What: &pluginv1.SideRequest_Channel{Channel: &pluginv1.Channel{Name: channelTransfer}}}, fd)
	})
}

// channelTransfer is the name of the transfer socket.
const channelTransfer = "transfer"

// start is the last step before the plugin is ready.
func (s *session) start(ctx context.Context, id transports.Identity) (*ownPath, error) {
	var path *ownPath
	err := s.must(ctx, "Start", func(ctx context.Context) (*pluginv1.Error, error) {
		resp, err := s.client.Start(ctx, &pluginv1.StartTransportRequest{SegmentName: id.Segment, Host: id.Host, Instance: id.Instance, HostId: id.HostID,
			MaxOperations: maxOperations})
		if err != nil || resp.Error != nil {
			return resp.GetError(), err
		}
		p, err := parsePath(resp.Path)
		if err == nil && len(resp.MustMatch) > maxAttrs {
			err = fmt.Errorf("%d names of attributes that must match", len(resp.MustMatch))
		}
		for _, k := range resp.MustMatch {
			if _, ok := p.Attr[k]; !ok && err == nil {
				err = fmt.Errorf("attribute %.100q must match, and the path has none of that name", k)
			}
		}
		path = &ownPath{Path: p, mustMatch: resp.MustMatch}
		return nil, err
	})
	return path, err
}

// dial returns the plugin's handle for a peer.
func (s *session) dial(ctx context.Context, req *pluginv1.DialRequest) (id uint64, err error) {
	err = s.must(ctx, "Dial", func(ctx context.Context) (*pluginv1.Error, error) {
		resp, err := s.client.Dial(ctx, req)
		if err == nil && resp.Error == nil && resp.PeerId == 0 {
			err = errors.New("a handle of 0")
		}
		id = resp.GetPeerId()
		return resp.GetError(), err
	})
	return id, err
}

// hangup ends a peer's operations and waits for it.
func (s *session) hangup(id uint64) {
	err := s.must(context.Background(), "Hangup", func(ctx context.Context) (*pluginv1.Error, error) {
		resp, err := s.client.Hangup(ctx, &pluginv1.HangupRequest{PeerId: id})
		return resp.GetError(), err
	})
	if err != nil && !s.isDead() {
		s.fault(context.Background(), err)
	}
}
