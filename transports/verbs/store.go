package verbs

import (
	"container/list"
	"fmt"
	"sync"

	"github.com/mooncake-agent/mooncake/transports"
)

// store holds a device's endpoints by the peer's path. When it is full, an idle one goes: the oldest (FIFO), or the one
// that SIEVE finds, which passes over those used since it came by last.
type store struct {
	n     *nic
	sieve bool

	mu    sync.Mutex
	max   int
	m     map[string]*list.Element // of *endpoint
	order list.List                // newest in front
	hand  *list.Element
}

func (s *store) init(n *nic) {
	s.n, s.m, s.max = n, map[string]*list.Element{}, n.t.cfg.MaxEndpoints
	s.sieve = n.t.cfg.EndpointStore == storeSIEVE
}

func (s *store) limit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.max = n
}

// get returns the endpoint to a peer's device, a new one if there is none.
func (s *store) get(server, name string) (*endpoint, error) {
	path := nicPath(server, name)
	s.mu.Lock()
	if el := s.m[path]; el != nil {
		e := el.Value.(*endpoint)
		e.visited.Store(true)
		s.mu.Unlock()
		return e, nil
	}
	if err := s.n.usable(); err != nil { // under mu: failAll comes after the device went down
		s.mu.Unlock()
		return nil, fmt.Errorf("verbs: %w: %w", err, transports.ErrUnreachable)
	}
	var victim *endpoint
	if len(s.m) >= s.max {
		if victim = s.victim(); victim == nil {
			s.mu.Unlock()
			return nil, fmt.Errorf("verbs: device %s has %d connections, the most it may have, and none is idle (max_endpoints, or its queue pairs): %w", s.n.name, s.max, transports.ErrUnreachable)
		}
	}
	e := newEndpoint(s.n, server, name)
	s.m[path] = s.order.PushFront(e)
	s.n.mu.Lock()
	s.n.alive++
	s.n.mu.Unlock()
	s.mu.Unlock()
	s.n.t.m.endpoints.WithLabelValues(s.n.name).Inc()
	if victim != nil {
		s.evict(victim)
	}
	return e, nil
}

func (s *store) evict(e *endpoint) {
	s.n.t.m.evicted.Inc()
	e.fail(errEvicted)
}

var errEvicted = fmt.Errorf("verbs: the connection made room for others: %w", transports.ErrInterrupted)

// find returns the endpoint to a peer's device, or nil.
func (s *store) find(path string) *endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	if el := s.m[path]; el != nil {
		return el.Value.(*endpoint)
	}
	return nil
}

// victim finds an idle endpoint. mu is held.
func (s *store) victim() *endpoint {
	if !s.sieve {
		for el := s.order.Back(); el != nil; el = el.Prev() {
			if e := el.Value.(*endpoint); e.idle() {
				return e
			}
		}
		return nil
	}
	el := s.hand
	for range 2 * s.order.Len() {
		if el == nil {
			el = s.order.Back()
		}
		e := el.Value.(*endpoint)
		if !e.visited.Swap(false) && e.idle() {
			s.hand = el.Prev()
			return e
		}
		el = el.Prev()
	}
	s.hand = el
	for el := s.order.Back(); el != nil; el = el.Prev() { // all were used meanwhile
		if e := el.Value.(*endpoint); e.idle() {
			return e
		}
	}
	return nil
}

// makeRoom closes an idle endpoint for its queue pairs; it is false when there is none.
func (s *store) makeRoom(but *endpoint) bool {
	s.mu.Lock()
	v := s.victim()
	s.mu.Unlock()
	if v == nil || v == but {
		return false
	}
	s.evict(v)
	<-v.dead
	return true
}

// remove takes out an endpoint that failed.
func (s *store) remove(e *endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	el := s.m[e.path]
	if el == nil || el.Value != e {
		return
	}
	if s.hand == el {
		s.hand = el.Prev()
	}
	s.order.Remove(el)
	delete(s.m, e.path)
}

func (s *store) all() []*endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*endpoint, 0, len(s.m))
	for el := s.order.Front(); el != nil; el = el.Next() {
		out = append(out, el.Value.(*endpoint))
	}
	return out
}

// failAll makes all endpoints fail.
func (s *store) failAll(why error) {
	for _, e := range s.all() {
		e.fail(why)
	}
}

// failQP makes the endpoint of a queue pair fail.
func (s *store) failQP(num uint32, why error) {
	for _, e := range s.all() {
		if e.hasQP(num) {
			e.failRail(fmt.Errorf("%w: %w", why, transports.ErrInterrupted))
		}
	}
}
