package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/transports"
)

// Segment is a handle for memory that can be read and written: another engine's, or this engine's own.
// Handles stay valid until the engine's Close; when the peer restarts under its name they find it again.
type Segment struct {
	e    *Engine
	name string
	own  bool // opened by this engine's own name

	desc atomic.Pointer[transports.Descriptor] // nil for own
	peer peer
}

// Name is the name the segment was opened by.
func (s *Segment) Name() string { return s.name }

// Descriptor returns a copy of what is known about the segment; Buffers tells which addresses it has.
// It can be out of date; see Refresh.
func (s *Segment) Descriptor() *transports.Descriptor {
	if s.own {
		return s.e.Descriptor()
	}
	return s.desc.Load().Clone()
}

// Local tells whether the segment is this engine's own memory, under whatever name it was opened.
func (s *Segment) Local() bool {
	if s.own {
		return true
	}
	d := s.desc.Load()
	return d.Agent != nil && d.Agent.Instance == s.e.id.Instance
}

// Refresh reads the descriptor again. On an error the old one stays in use.
func (s *Segment) Refresh(ctx context.Context) error {
	if s.own {
		return nil
	}
	_, err := s.refresh(ctx)
	return err
}

// refresh returns whether the descriptor has changed.
func (s *Segment) refresh(ctx context.Context) (changed bool, err error) {
	old := s.desc.Load()
	d, err := s.e.fetch(ctx, s.name)
	if err != nil {
		s.e.m.refreshes.WithLabelValues("failed").Inc()
		return false, fmt.Errorf("transfer: refresh: %w", err)
	}
	if d.Equal(old) {
		s.e.m.refreshes.WithLabelValues("unchanged").Inc()
		return false, nil
	}
	s.e.m.refreshes.WithLabelValues("changed").Inc()
	s.desc.Store(d)
	s.peer.reroute()
	return true, nil
}

// segments are the opened segments by name.
type segments struct {
	mu      sync.Mutex
	byName  map[string]*Segment
	flights map[string]*flight
}

// flight is a fetch that several callers wait for.
type flight struct {
	done chan struct{}
	d    *transports.Descriptor
	err  error
}

func (t *segments) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byName)
}

func (t *segments) get(name string) *Segment {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byName[name]
}

func (t *segments) all() []*Segment {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*Segment, 0, len(t.byName))
	for _, s := range t.byName {
		out = append(out, s)
	}
	return out
}

func (t *segments) closeAll() {
	for _, s := range t.all() {
		s.peer.reroute()
	}
}

// Open returns the segment of that name: host:port of a handshake daemon in P2P mode (without a port:
// 12001), the name that its engine published otherwise. Leading slashes are stripped, as upstream does. The
// descriptor is fetched at the first Open and cached; failures are not cached. Errors wrap ErrNoSegment when
// there is no such segment, the handshake package's or the metadata package's sentinels when it could not
// be asked for, and transports.ErrBadDescriptor.
func (e *Engine) Open(ctx context.Context, name string) (*Segment, error) {
	if err := e.running(); err != nil {
		return nil, err
	}
	name = strings.TrimLeft(name, "/")
	if name == "" {
		return nil, fmt.Errorf("transfer: open: %w: the segment name is empty", ErrInvalid)
	}
	if name == e.id.Segment {
		return e.local, nil
	}
	if s := e.segs.get(name); s != nil {
		if e.opt.DisableDescriptorCache {
			if _, err := s.refresh(ctx); err != nil {
				return nil, err
			}
		}
		return s, nil
	}
	d, err := e.fetch(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("transfer: open: %w", err)
	}
	e.segs.mu.Lock()
	defer e.segs.mu.Unlock()
	if s := e.segs.byName[name]; s != nil {
		return s, nil
	}
	s := &Segment{e: e, name: name}
	s.peer.init(s)
	s.desc.Store(d)
	e.segs.byName[name] = s
	return s, nil
}

// Forget drops the cached descriptor of a segment and, once they are idle, the connections to it. Handles
// from before go on working with what they know. (Upstream's removeLocalSegment.)
func (e *Engine) Forget(name string) {
	name = strings.TrimLeft(name, "/")
	e.segs.mu.Lock()
	s := e.segs.byName[name]
	delete(e.segs.byName, name)
	e.segs.mu.Unlock()
	if s != nil {
		s.peer.reroute()
	}
}

// fetch gets a descriptor; callers that ask for the same name at the same time share one request, which
// goes on when one of them gives up.
func (e *Engine) fetch(ctx context.Context, name string) (*transports.Descriptor, error) {
	t := &e.segs
	t.mu.Lock()
	f := t.flights[name]
	if f == nil {
		f = &flight{done: make(chan struct{})}
		if t.flights == nil {
			t.flights = map[string]*flight{}
		}
		t.flights[name] = f
		if !e.bg.Go(func() {
			ctx, cancel := context.WithTimeout(e.ctx, e.opt.ConnectTimeout+e.opt.HandshakeTimeout)
			defer cancel()
			f.d, f.err = e.fetchNow(ctx, name)
			t.mu.Lock()
			delete(t.flights, name)
			t.mu.Unlock()
			close(f.done)
		}) {
			delete(t.flights, name)
			t.mu.Unlock()
			return nil, ErrState
		}
	}
	t.mu.Unlock()
	select {
	case <-f.done:
		return f.d, f.err
	case <-ctx.Done():
		return nil, fmt.Errorf("segment %q: %w", name, context.Cause(ctx))
	}
}

func (e *Engine) fetchNow(ctx context.Context, name string) (*transports.Descriptor, error) {
	if e.st != nil {
		return e.st.descriptor(ctx, name)
	}
	host, _, _, err := handshake.SplitName(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	reply, err := e.client.Metadata(ctx, name, e.greeting())
	if err != nil {
		return nil, fmt.Errorf("segment %q: %w", name, err)
	}
	d, err := transports.ParseDescriptor(reply)
	if errors.Is(err, transports.ErrNoDescriptor) {
		return nil, fmt.Errorf("segment %q: %w: its engine has none", name, ErrNoSegment)
	}
	if err != nil {
		return nil, fmt.Errorf("segment %q: %w", name, err)
	}
	d.DialHost = host
	return d, nil
}

// greeting is our own document, which goes with a request for a peer's. Peers with default settings refuse
// long ones, and none looks at the buffers, so these are left out then.
func (e *Engine) greeting() []byte {
	d := e.descriptor(nil)
	doc := d.Encode(e.opt.Now())
	if len(doc)+2 > int(handshake.DefaultMaxLength) {
		d.Buffers = nil
		doc = d.Encode(e.opt.Now())
	}
	return bytes.TrimSuffix(doc, []byte{'\n'})
}

// refreshLoop reads all descriptors again now and then.
func (e *Engine) refreshLoop() {
	t := time.NewTicker(e.opt.DescriptorRefresh)
	defer t.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-t.C:
		}
		for _, s := range e.segs.all() {
			ctx, cancel := context.WithTimeout(e.ctx, e.opt.ConnectTimeout+e.opt.HandshakeTimeout)
			if err := s.Refresh(ctx); err != nil && e.ctx.Err() == nil {
				e.log.Debug("descriptor could not be refreshed", "segment", s.name, "err", err)
			}
			cancel()
		}
	}
}
