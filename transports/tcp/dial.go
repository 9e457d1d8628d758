package tcp

import (
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// open starts to connect one more lane if there may be one. As long as no lane is open only one
// attempt runs: a peer that does not answer gets no burst of them. p.mu is held.
func (p *Peer) open() {
	if p.closed || len(p.lanes)+p.connecting >= p.t.cfg.LanesPerPeer {
		return
	}
	if p.connecting > 0 && len(p.lanes) == 0 {
		return
	}
	if p.t.pauses.check(p.to.addr, p.t.now()) != nil {
		return
	}
	p.connecting++
	p.wg.Go(p.connect)
}

func (p *Peer) connect() {
	d := net.Dialer{Timeout: p.t.cfg.ConnectTimeout, Control: func(_, _ string, rc syscall.RawConn) error {
		return setBuffers(rc, &p.t.cfg)
	}}
	c, err := d.DialContext(p.ctx, "tcp", p.to.addr)
	var s *sock
	if err == nil {
		if s, err = newSock(c, &p.t.cfg); err != nil {
			c.Close()
		}
	}
	var fin finishedList
	p.mu.Lock()
	p.connecting--
	switch {
	case err == nil && p.closed:
		c.Close()
	case err == nil:
		p.t.pauses.ok(p.to.addr)
		l := p.addLane(s)
		p.pump(&fin)
		l.spare = l.idle()
	case !p.closed:
		p.t.m.connectErrs.Inc()
		err = fmt.Errorf("tcp: connect: %w: %w", transports.ErrUnreachable, err)
		p.t.pauses.failed(p.to.addr, err, p.t.now())
		if len(p.lanes) == 0 && p.connecting == 0 {
			p.t.logs.warn("cannot connect to peer", "peer", p.to.addr, "err", err, "requests_failed", p.queue.n)
			p.failQueue(err, "unreachable", &fin)
		}
	}
	p.signal()
	p.mu.Unlock()
	fin.run(p.t)
}

// pauses remembers addresses that could not be reached, for all peers of the transport: until the
// pause is over, requests to them fail at once instead of waiting for another attempt.
type pauses struct {
	longest time.Duration
	mu      sync.Mutex
	m       map[string]*pause
}

type pause struct {
	until time.Duration
	next  time.Duration
	err   error
}

// check returns the error of the last attempt while the pause lasts.
func (s *pauses) check(addr string, now time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.m[addr]; p != nil && now < p.until {
		return fmt.Errorf("tcp: %s: next attempt in %v: %w", addr, (p.until - now).Round(time.Millisecond), p.err)
	}
	return nil
}

func (s *pauses) failed(addr string, err error, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.m[addr]
	if p == nil {
		if s.m == nil {
			s.m = map[string]*pause{}
		}
		p = &pause{next: max(s.longest/16, time.Millisecond)}
		s.m[addr] = p
	}
	p.err, p.until = err, now+p.next
	p.next = min(2*p.next, s.longest)
}

func (s *pauses) ok(addr string) {
	s.mu.Lock()
	delete(s.m, addr)
	s.mu.Unlock()
}

// sweep forgets addresses nobody has asked for in a while.
func (s *pauses) sweep(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a, p := range s.m {
		if now-p.until > 16*s.longest {
			delete(s.m, a)
		}
	}
}
