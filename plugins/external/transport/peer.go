package transport

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
)

// Peer implements [transports.Peer]. When the plugin was started again, the peer is dialled anew in the background, and
// Submit answers ErrUnreachable so long.
type Peer struct {
	t   *Transport
	req *pluginv1.DialRequest
	wg  sync.WaitGroup // batches and dialling

	mu      sync.Mutex
	session *session // that knows id
	id      uint64
	dialing bool
	closed  bool
	pause   time.Duration
	retryAt time.Time
}

var _ transports.Peer = (*Peer)(nil)

func (p *Peer) errorf(format string, args ...any) error {
	return p.t.errorf("segment %q: %w", p.req.SegmentName, fmt.Errorf(format, args...))
}

func (p *Peer) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Submit implements transports.Peer. It waits for room when 8192 operations are with the plugin.
func (p *Peer) Submit(ctx context.Context, ops []transports.Op, done transports.Completion) error {
	moving := 0
	for i := range ops {
		o := &ops[i]
		if o.Local == nil || o.Offset > o.Local.Len() || o.Len > o.Local.Len()-o.Offset {
			return p.errorf("op %d: %d bytes at offset %d: %w", i, o.Len, o.Offset, transports.ErrNotRegistered)
		}
		if o.Len > 0 {
			moving++
		}
	}
	if err := ctx.Err(); err != nil {
		return p.errorf("%w", err)
	}
	s, id, err := p.use()
	if err != nil {
		return err
	}
	some := ops
	if moving < len(ops) { // the plugin is not asked to move nothing
		some = make([]transports.Op, 0, moving)
		for i := range ops {
			if ops[i].Len > 0 {
				some = append(some, ops[i])
			}
		}
	}
	if moving == 0 {
		p.wg.Done()
	} else if err := s.submit(ctx, p, id, some, done); err != nil {
		return p.errorf("%w", err)
	}
	for i := range ops {
		if ops[i].Len == 0 {
			done(ops[i].Cookie, 0, nil)
		}
	}
	return nil
}

// use returns the session to be used by one batch, which ends with p.wg.Done.
func (p *Peer) use() (*session, uint64, error) {
	s, err := p.t.session()
	if err != nil {
		return nil, 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, 0, p.errorf("%w", transports.ErrClosed)
	case p.session == s:
		p.wg.Add(1)
		return s, p.id, nil
	case !p.dialing && !time.Now().Before(p.retryAt):
		p.dialLater(s)
	}
	return nil, 0, p.errorf("the plugin was started again and is being connected: %w", transports.ErrUnreachable)
}

// redial makes the peer known to a new process of the plugin.
func (p *Peer) redial(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed && !p.dialing && p.session != s {
		p.dialLater(s)
	}
}

// dialLater dials in the background. p.mu is held.
func (p *Peer) dialLater(s *session) {
	p.dialing = true
	p.wg.Go(func() {
		id, err := s.dial(p.t.ctx, p.req)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.dialing = false
		if err != nil {
			p.pause = min(max(2*p.pause, redialPause), maxRedialPause)
			p.retryAt = time.Now().Add(p.pause)
			return
		}
		p.pause, p.session, p.id = 0, s, id
	})
}

// Close implements transports.Peer. It waits for the plugin; one that does not answer is ended, and so is what is in
// flight to all its peers.
func (p *Peer) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	s, id := p.session, p.id
	p.mu.Unlock()
	if first && s != nil && !s.isDead() {
		s.hangup(id)
	}
	p.wg.Wait()
	p.t.mu.Lock()
	delete(p.t.peers, p)
	p.t.mu.Unlock()
	return nil
}
