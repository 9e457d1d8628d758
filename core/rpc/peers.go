package rpc

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// peers counts what each address holds.
type peers struct {
	mu    sync.Mutex
	byIP  map[netip.Addr]*peer
	total int
}

type peer struct {
	ip       netip.Addr
	conns    int          // guarded by peers.mu
	inFlight atomic.Int32 // slow requests
}

// add counts a new connection, or names the limit that refuses it.
func (p *peers) add(ip netip.Addr, maxTotal, maxPerIP int) (*peer, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.total >= maxTotal {
		return nil, "total"
	}
	q := p.byIP[ip]
	if q == nil {
		q = &peer{ip: ip}
		if p.byIP == nil {
			p.byIP = map[netip.Addr]*peer{}
		}
	}
	if q.conns >= maxPerIP {
		return nil, "address"
	}
	p.byIP[ip] = q
	q.conns++
	p.total++
	return q, ""
}

func (p *peers) remove(q *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total--
	if q.conns--; q.conns == 0 {
		delete(p.byIP, q.ip)
	}
}

func (p *peers) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}
