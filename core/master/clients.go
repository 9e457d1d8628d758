package master

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// liveness knows the clients and when they were last heard of. Its lock is held for a few instructions at
// a time and never with another one below it, so pings do not wait for other work.
type liveness struct {
	mu       sync.Mutex // a leaf; after registry.mu
	byID     map[wire.UUID]*client
	old, new *client // by last ping, the oldest first
}

// client is one client that pinged or mounted something within the TTL.
type client struct {
	id        wire.UUID
	ok        bool // it has remounted
	suspected bool
	seen      int64
	host      string
	segments  []*segment

	older, newer *client
}

// heard notes a sign of life; called with mu held.
func (l *liveness) heard(id wire.UUID, now int64) *client {
	c := l.byID[id]
	if c == nil {
		c = &client{id: id}
		if l.byID == nil {
			l.byID = map[wire.UUID]*client{}
		}
		l.byID[id] = c
	} else {
		l.unlink(c)
	}
	c.seen = now
	c.older, c.newer = l.new, nil
	if l.new != nil {
		l.new.newer = c
	} else {
		l.old = c
	}
	l.new = c
	return c
}

func (l *liveness) unlink(c *client) {
	if c.older != nil {
		c.older.newer = c.newer
	} else {
		l.old = c.newer
	}
	if c.newer != nil {
		c.newer.older = c.older
	} else {
		l.new = c.older
	}
}

// forgive takes a time off the silence of every client: this process stood still for so long.
func (l *liveness) forgive(gap, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := l.old; c != nil; c = c.newer {
		c.seen = min(c.seen+gap, now) // some were heard before this
	}
}

func (l *liveness) hostOf(id wire.UUID) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.byID[id]; c != nil {
		return c.host
	}
	return ""
}

// Ping notes that a client is alive and tells it whether the service knows its segments.
func (s *Service) Ping(req *wire.ClientRequest, resp *wire.Result[wire.PingReply]) {
	s.counters.Ping.Requests.Add(1)
	now := s.now()
	l := &s.clients
	l.mu.Lock()
	c := l.heard(req.Client, now)
	status := wire.ClientNeedRemount
	if c.ok {
		status = wire.ClientOK
	}
	if c.suspected {
		s.trust(c)
	}
	l.mu.Unlock()
	resp.Code, resp.Value = wire.OK, wire.PingReply{Status: status}
}

// trust ends the suspicion of a client; called with liveness.mu held.
func (s *Service) trust(c *client) {
	c.suspected = false
	s.counters.SuspectedClients.Add(-1)
	for _, g := range c.segments {
		g.silent.Store(false)
	}
}

// checkClients suspects the clients that have been silent for a while, and expires those that have been
// silent for the TTL: their segments go. It looks at silent clients only.
func (s *Service) checkClients(now int64) {
	ttl := s.cfg.ClientTTL.Milliseconds()
	doubt := s.suspectMS
	l := &s.clients
	l.mu.Lock()
	expired := false
	for c := l.old; c != nil && c.seen+doubt < now; c = c.newer {
		expired = expired || c.seen+ttl < now
		if !c.suspected {
			c.suspected = true
			s.counters.SuspectedClients.Add(1)
			s.counters.ClientsSuspected.Add(1)
			for _, g := range c.segments {
				g.silent.Store(true)
			}
		}
	}
	l.mu.Unlock()
	if !expired {
		return
	}

	r := s.registry
	r.mu.Lock()
	var gone []*client
	l.mu.Lock()
	for c := l.old; c != nil && c.seen+ttl < now; c = l.old {
		l.unlink(c)
		delete(l.byID, c.id)
		s.trust(c)
		if c.ok {
			s.counters.ActiveClients.Add(-1)
		}
		gone = append(gone, c)
	}
	l.mu.Unlock()
	var lost []*segment
	for _, c := range gone {
		for _, g := range slices.Clone(r.byClient[c.id]) {
			s.unmountLocked(g)
			lost = append(lost, g)
		}
		s.dropLeaves(c.id)
	}
	names := make([]string, len(lost))
	for i, g := range lost {
		names[i] = g.Name
	}
	r.refresh(names...)
	r.mu.Unlock()
	for _, c := range gone {
		s.counters.ClientsExpired.Add(1)
		s.disks.forget(s, c.id)
		s.log.Warn("client expired", "client", c.id, "silent_ms", now-c.seen, "segments", len(c.segments))
	}
	if len(lost) > 0 {
		s.capacityChanged()
		for _, g := range lost {
			if s.onSegmentLost != nil {
				s.onSegmentLost(g.Segment, g.client)
			}
		}
		s.wakeSweep()
	}
}

// Clients lists the known clients by id.
func (s *Service) Clients() []ClientDetail {
	l := &s.clients
	l.mu.Lock()
	out := make([]ClientDetail, 0, len(l.byID))
	for _, c := range l.byID {
		d := ClientDetail{ID: c.id, State: "needs remount", LastPingMS: c.seen, HostID: c.host}
		switch {
		case c.suspected:
			d.State = "suspected"
		case c.ok:
			d.State = "ok"
		}
		for _, g := range c.segments {
			d.Segments = append(d.Segments, g.ID)
		}
		out = append(out, d)
	}
	l.mu.Unlock()
	for i := range out {
		out[i].LocalDisk, out[i].SSDBytes = s.disks.capacityOf(out[i].ID)
	}
	slices.SortFunc(out, func(a, b ClientDetail) int {
		return cmp.Or(cmp.Compare(a.ID[0], b.ID[0]), cmp.Compare(a.ID[1], b.ID[1]))
	})
	return out
}

// setHost remembers where a client runs; called with liveness.mu held.
func (c *client) setHost(host string) {
	if host != "" && host != c.host {
		c.host = strings.Clone(host)
	}
}
