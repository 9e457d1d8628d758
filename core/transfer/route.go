package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/transports"
)

// route is one transport's way to the peer.
type route struct {
	p     *peer
	t     NamedTransport
	index int             // of the transport
	h     transports.Peer // nil until dialled; changed by the dispatcher only, under peer.mu

	// Guarded by peer.mu.
	users   int // ops in flight
	retired bool
	down    time.Time     // not used before, as long as there are others
	pause   time.Duration // the last one
	why     error         // of it

	bytes [2]prometheus.Counter // by opIndex
}

const (
	dialTimeout = 10 * time.Second
	// routePause is how long a route that failed is left alone as long as there are others. It doubles with every
	// further failure up to maxRoutePause, so that a path that is broken for good costs little; the first request
	// that completes on the route ends that.
	routePause    = time.Second
	maxRoutePause = 16 * time.Second
)

// routeFor returns the route to be used for a task that may use transports from path on: the first that is
// not down, else the first. p.mu is held.
func (p *peer) routeFor(path int) *route {
	if !p.routed {
		p.findRoutes()
	}
	var first *route
	for _, r := range p.routes {
		if r.index < path {
			continue
		}
		if first == nil {
			first = r
		}
		if r.down.IsZero() || time.Now().After(r.down) {
			return r
		}
	}
	return first
}

func (p *peer) findRoutes() {
	d := p.s.desc.Load()
	p.routed, p.routes = true, nil
	for i, t := range p.s.e.tps() {
		if t.Transport.Reach(d) == nil {
			p.routes = append(p.routes, &route{p: p, t: t, index: i, bytes: p.s.e.m.path(t.Name)})
		}
	}
}

// reroute makes the next op find its way by the current descriptor. Connections of before are closed when they are
// idle.
func (p *peer) reroute() {
	p.mu.Lock()
	var idle []*route
	for _, r := range p.routes {
		r.retired = true
		if r.users == 0 {
			idle = append(idle, r)
		}
	}
	p.routes, p.routed = nil, false
	p.mu.Unlock()
	for _, r := range idle {
		r.closeLater()
	}
}

// closeLater closes a retired route that has no users; Close may wait, so it gets a goroutine.
func (r *route) closeLater() {
	r.p.mu.Lock()
	h := r.h
	r.h = nil
	r.p.mu.Unlock()
	if h == nil {
		return
	}
	r.p.s.e.bg.Go(func() {
		if err := h.Close(); err != nil {
			r.p.s.e.log.Warn("close of connections to a peer", "segment", r.p.s.name, "transport", r.t.Name, "err", err)
		}
	})
}

// dial makes the route for path usable; nil when that failed, and then the tasks that wanted it are dealt with.
func (p *peer) dial(path int) *route {
	p.mu.Lock()
	r := p.routeFor(path)
	ready := r != nil && r.h != nil
	p.mu.Unlock()
	if r == nil {
		p.failNext(nil, path, p.noPath(path))
		return nil
	}
	if ready {
		return r
	}
	ctx, cancel := context.WithTimeout(p.s.e.ctx, dialTimeout)
	defer cancel()
	h, err := r.t.Transport.Dial(ctx, p.s.desc.Load())
	if err != nil {
		if !pathFault(err) && !errors.Is(err, transports.ErrClosed) {
			err = fmt.Errorf("%w: %w", transports.ErrUnreachable, err)
		}
		p.mu.Lock()
		p.stat(r.index).failed(err)
		p.mu.Unlock()
		p.failNext(r, path, fmt.Errorf("%s: %w", r.t.Name, err))
		return nil
	}
	p.mu.Lock()
	r.h = h
	retired := r.retired
	p.mu.Unlock()
	if retired { // the descriptor changed meanwhile
		r.closeLater()
		return nil
	}
	return r
}

// noPath explains why no transport from path on can be used.
func (p *peer) noPath(path int) error {
	errs := []error{}
	d := p.s.desc.Load()
	for i, t := range p.s.e.tps() {
		if err := t.Transport.Reach(d); err != nil {
			errs = append(errs, err)
		} else if i < path {
			errs = append(errs, fmt.Errorf("%s was tried", t.Name))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, errors.New("this engine has no transports"))
	}
	return fmt.Errorf("segment %q: %w: %w", p.s.name, ErrNoPath, errors.Join(errs...))
}

// sidestep tells whether there is another route behind one that failed, and marks that as down then. Failures of
// requests that were under way together count once.
func (p *peer) sidestep(r *route, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var next *route
	for _, o := range p.routes {
		if o.index > r.index {
			next = o
			break
		}
	}
	if next == nil {
		return false
	}
	if now := time.Now(); now.After(r.down) {
		first := r.pause == 0
		r.pause = min(max(2*r.pause, routePause), maxRoutePause)
		r.down, r.why = now.Add(r.pause), err
		if first {
			p.s.e.log.Warn("a path to a segment failed, the next one is used", "segment", p.s.name, "path", r.t.Name, "next", next.t.Name, "err", err)
		}
	}
	return true
}
