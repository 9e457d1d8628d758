package master

import (
	"net"
	"slices"
	"strings"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// The RPCs that mount and unmount segments.

func cloneSegment(g wire.Segment) wire.Segment {
	g.Name, g.TEEndpoint = strings.Clone(g.Name), strings.Clone(g.TEEndpoint)
	g.Protocol, g.HostID = strings.Clone(g.Protocol), strings.Clone(g.HostID)
	return g
}

// mountLocked makes a segment known; called with registry.mu held. The view must be refreshed after it.
func (s *Service) mountLocked(d wire.Segment, id wire.UUID, now int64) wire.ErrorCode {
	if d.Base == 0 || d.Size == 0 || d.Base+d.Size < d.Base {
		return wire.ErrInvalidParams
	}
	if g := s.registry.byID[d.ID]; g != nil {
		if wire.SegmentStatus(g.status.Load()) == wire.SegmentOK {
			return wire.ErrSegmentAlreadyExists
		}
		return wire.ErrUnavailableInCurrentStatus
	}
	g, err := newSegment(cloneSegment(d), id)
	if err != nil {
		return wire.ErrInvalidParams
	}
	g.mounted, g.warm = now, now
	// A newcomer warms up if there is something to spread: others that hold data.
	if s.cfg.WarmUp > 0 && s.counters.AllocatedBytes.Load() > s.counters.CapacityBytes.Load()/20 {
		g.warm = now + s.cfg.WarmUp.Milliseconds()
	}
	s.registry.add(g)
	s.counters.CapacityBytes.Add(int64(d.Size))
	s.counters.Segments.Add(1)
	l := &s.clients
	l.mu.Lock()
	if c := l.byID[id]; c != nil {
		c.segments = append(c.segments, g)
		c.setHost(g.HostID)
		g.silent.Store(c.suspected)
	}
	l.mu.Unlock()
	return wire.OK
}

// unmountLocked takes a segment away: its replicas are unreadable from now on, the sweep removes them.
// Called with registry.mu held; the view must be refreshed after it.
func (s *Service) unmountLocked(g *segment) {
	requested, used, quarantined := g.leave()
	s.counters.RequestedBytes.Add(-int64(requested))
	s.counters.AllocatedBytes.Add(-int64(used))
	s.counters.QuarantinedBytes.Add(-int64(quarantined))
	s.counters.CapacityBytes.Add(-int64(g.Size))
	s.counters.Segments.Add(-1)
	s.registry.drop(g)
	l := &s.clients
	l.mu.Lock()
	if c := l.byID[g.client]; c != nil {
		c.segments = slices.DeleteFunc(c.segments, func(x *segment) bool { return x == g })
	}
	l.mu.Unlock()
}

// heardOf starts the TTL of a client and remembers its host.
func (s *Service) heardOf(id wire.UUID, host string, now int64) {
	l := &s.clients
	l.mu.Lock()
	c := l.heard(id, now)
	c.setHost(host)
	if c.suspected {
		s.trust(c)
	}
	l.mu.Unlock()
}

// MountSegment adds a segment of a client. One that is mounted already is left as it is.
func (s *Service) MountSegment(req *wire.MountSegmentRequest, resp *wire.Result[wire.Void]) {
	s.counters.MountSegment.Requests.Add(1)
	now := s.now()
	r := s.registry
	r.mu.Lock()
	s.heardOf(req.Client, req.Segment.HostID, now)
	code := s.mountLocked(req.Segment, req.Client, now)
	if code == wire.OK {
		r.refresh(req.Segment.Name)
	}
	r.mu.Unlock()
	switch code {
	case wire.OK:
		s.capacityChanged()
		s.log.Info("segment mounted", "segment", strings.Clone(req.Segment.Name), "id", req.Segment.ID, "client", req.Client, "bytes", req.Segment.Size)
	case wire.ErrSegmentAlreadyExists:
		code = wire.OK
	default:
		s.counters.MountSegment.Failures.Add(1)
	}
	resp.Code = code
}

// ReMountSegment makes a client known after the service or the client was away: all its segments are
// mounted that are not.
func (s *Service) ReMountSegment(req *wire.ReMountSegmentRequest, resp *wire.Result[wire.Void]) {
	s.counters.ReMountSegment.Requests.Add(1)
	if resp.Code = s.remount(req); resp.Code != wire.OK {
		s.counters.ReMountSegment.Failures.Add(1)
	}
}

func (s *Service) remount(req *wire.ReMountSegmentRequest) wire.ErrorCode {
	now := s.now()
	r := s.registry
	r.mu.Lock()
	for i := range req.Segments {
		d := &req.Segments[i]
		if g := r.byID[d.ID]; g != nil && (g.client != req.Client || g.Segment != *d) {
			r.mu.Unlock()
			return wire.ErrInvalidParams
		}
	}
	host := ""
	for i := range req.Segments {
		if host = req.Segments[i].HostID; host != "" {
			break
		}
	}
	s.heardOf(req.Client, host, now)
	l := &s.clients
	l.mu.Lock()
	known := l.byID[req.Client].ok
	l.mu.Unlock()
	if known {
		r.mu.Unlock()
		return wire.OK
	}
	var mounted []*segment
	code := wire.OK
	for i := range req.Segments {
		switch c := s.mountLocked(req.Segments[i], req.Client, now); c {
		case wire.OK:
			mounted = append(mounted, r.byID[req.Segments[i].ID])
		case wire.ErrUnavailableInCurrentStatus:
			code = c
		case wire.ErrInvalidParams:
			s.log.Warn("a segment of a remount is invalid and was left out", "segment", strings.Clone(req.Segments[i].Name), "base", req.Segments[i].Base, "size", req.Segments[i].Size, "client", req.Client)
		}
		if code != wire.OK {
			break
		}
	}
	if code != wire.OK {
		for _, g := range mounted {
			s.unmountLocked(g)
		}
	} else {
		l.mu.Lock()
		l.byID[req.Client].ok = true
		l.mu.Unlock()
		s.counters.ActiveClients.Add(1)
	}
	for _, g := range mounted {
		r.refresh(g.Name)
	}
	r.mu.Unlock()
	if len(mounted) > 0 {
		s.capacityChanged()
		s.log.Info("segments remounted", "client", req.Client, "segments", len(mounted))
	}
	return code
}

// UnmountSegment takes a segment away at once; one that does not exist is fine. Only its owner may.
func (s *Service) UnmountSegment(req *wire.UnmountSegmentRequest, resp *wire.Result[wire.Void]) {
	s.counters.UnmountSegment.Requests.Add(1)
	r := s.registry
	r.mu.Lock()
	g := r.byID[req.Segment]
	if g == nil {
		r.mu.Unlock()
		resp.Code = wire.OK
		return
	}
	if g.client != req.Client && !s.cfg.UnownedUnmount {
		r.mu.Unlock()
		s.log.Warn("a client tried to unmount a segment of another", "segment", g.Name, "owner", g.client, "client", req.Client)
		s.counters.UnmountSegment.Failures.Add(1)
		resp.Code = wire.ErrIllegalClient
		return
	}
	s.unmountLocked(g)
	r.refresh(g.Name)
	r.mu.Unlock()
	s.capacityChanged()
	s.wakeSweep()
	s.log.Info("segment unmounted", "segment", g.Name, "id", g.ID, "client", req.Client)
	resp.Code = wire.OK
}

// GracefulUnmountSegment lets a segment be read for a while but takes nothing new into it.
func (s *Service) GracefulUnmountSegment(req *wire.UnmountSegmentRequest, resp *wire.Result[wire.Void]) {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byClient[req.Client]) == 0 {
		resp.Code = wire.ErrSegmentNotFound
		return
	}
	g := r.byID[req.Segment]
	if g == nil || g.client != req.Client {
		resp.Code = wire.ErrInvalidParams
		return
	}
	g.status.Store(int32(wire.SegmentGracefullyUnmounting))
	r.refresh(g.Name)
	grace := min(req.GraceMS, 1<<40)
	t := &s.timers
	t.mu.Lock()
	t.leaves = append(t.leaves, leave{at: s.now() + int64(grace), id: g.ID, client: g.client})
	t.mu.Unlock()
	resp.Code = wire.OK
}

// leaveDue ends the graceful unmounts whose time has come.
func (s *Service) leaveDue(now int64) {
	t := &s.timers
	var due []leave
	t.mu.Lock()
	t.leaves = slices.DeleteFunc(t.leaves, func(l leave) bool {
		if l.at <= now {
			due = append(due, l)
		}
		return l.at <= now
	})
	t.mu.Unlock()
	for _, l := range due {
		r := s.registry
		r.mu.Lock()
		g := r.byID[l.id]
		mine := g != nil && g.client == l.client && wire.SegmentStatus(g.status.Load()) == wire.SegmentGracefullyUnmounting
		if mine {
			s.unmountLocked(g)
			r.refresh(g.Name)
		}
		r.mu.Unlock()
		if mine {
			s.capacityChanged()
			s.wakeSweep()
			s.log.Info("segment unmounted after its grace period", "segment", g.Name, "id", g.ID)
		}
	}
}

// dropLeaves forgets the graceful unmounts of a client that expired.
func (s *Service) dropLeaves(id wire.UUID) {
	t := &s.timers
	t.mu.Lock()
	t.leaves = slices.DeleteFunc(t.leaves, func(l leave) bool { return l.client == id })
	t.mu.Unlock()
}

// QuerySegmentStatus tells the state of the segment that was mounted last under a name.
func (s *Service) QuerySegmentStatus(req *wire.NameRequest, resp *wire.Result[wire.SegmentStatus]) {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	segs := r.byName[req.Name]
	if len(segs) == 0 {
		*resp = wire.Result[wire.SegmentStatus]{Code: wire.ErrSegmentNotFound}
		return
	}
	*resp = wire.Result[wire.SegmentStatus]{Value: wire.SegmentStatus(segs[len(segs)-1].status.Load())}
}

// QuerySegmentStatusByID tells the state of a segment.
func (s *Service) QuerySegmentStatusByID(req *wire.IDRequest, resp *wire.Result[wire.SegmentStatus]) {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.byID[req.ID]
	if g == nil {
		*resp = wire.Result[wire.SegmentStatus]{Code: wire.ErrSegmentNotFound}
		return
	}
	*resp = wire.Result[wire.SegmentStatus]{Value: wire.SegmentStatus(g.status.Load())}
}

// BatchQueryIP lists the hosts of the segments of clients; clients without segments are left out.
func (s *Service) BatchQueryIP(req *wire.BatchQueryIPRequest, resp *wire.Result[[]wire.Pair[wire.UUID, []string]]) {
	resp.Code, resp.Value = wire.OK, resp.Value[:0]
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range req.Clients {
		if slices.ContainsFunc(resp.Value, func(p wire.Pair[wire.UUID, []string]) bool { return p.Key == id }) {
			continue
		}
		var hosts []string
		for _, g := range r.byClient[id] {
			if h := hostOf(g.TEEndpoint); !slices.Contains(hosts, h) {
				hosts = append(hosts, h)
			}
		}
		if len(hosts) > 0 {
			resp.Value = append(resp.Value, wire.Pair[wire.UUID, []string]{Key: id, Value: hosts})
		}
	}
	s.counters.BatchQueryIP.add(len(req.Clients), len(req.Clients)-len(resp.Value))
}

// hostOf is the host of "host:port", "[v6]:port", or the whole if there is no port.
func hostOf(endpoint string) string {
	if host, _, err := net.SplitHostPort(endpoint); err == nil {
		return host
	}
	return endpoint
}

// ServiceReady answers the version that clients insist on.
func (s *Service) ServiceReady(_ *wire.NoArgs, resp *wire.Result[string]) {
	*resp = wire.Result[string]{Value: wire.ServiceVersion}
}

// GetStorageConfig tells clients where disk replicas go.
func (s *Service) GetStorageConfig(_ *wire.NoArgs, resp *wire.Result[wire.StorageConfig]) {
	*resp = wire.Result[wire.StorageConfig]{Value: wire.StorageConfig{
		FSDir: s.fsDir, EnableDiskEviction: s.cfg.DiskEviction, QuotaBytes: uint64(s.cfg.DiskQuota),
	}}
}

// GetFsdir is the folder of GetStorageConfig alone.
func (s *Service) GetFsdir(_ *wire.NoArgs, resp *wire.Result[string]) {
	*resp = wire.Result[string]{Value: s.fsDir}
}

// The functions of NVMe-oF pools answer as an upstream build without them.

// MountNoFSegment is refused.
func (s *Service) MountNoFSegment(_ *wire.MountSegmentRequest, resp *wire.Result[wire.Void]) {
	refuseNoF(&s.counters.MountNoFSegment, resp)
}

// ReMountNoFSegment is refused.
func (s *Service) ReMountNoFSegment(_ *wire.ReMountSegmentRequest, resp *wire.Result[wire.Void]) {
	refuseNoF(&s.counters.ReMountNoFSegment, resp)
}

// UnmountNoFSegment is refused.
func (s *Service) UnmountNoFSegment(_ *wire.UnmountSegmentRequest, resp *wire.Result[wire.Void]) {
	refuseNoF(&s.counters.UnmountNoFSegment, resp)
}

func refuseNoF(c *Calls, resp *wire.Result[wire.Void]) {
	c.Requests.Add(1)
	c.Failures.Add(1)
	resp.Code = wire.ErrUnavailableInCurrentMode
}

// GetAllNoFSegments lists none.
func (s *Service) GetAllNoFSegments(_ *wire.NoArgs, resp *wire.Result[[]wire.Segment]) {
	resp.Code, resp.Value = wire.OK, resp.Value[:0]
}

// GetNoFSegmentsByName finds none.
func (s *Service) GetNoFSegmentsByName(_ *wire.NameRequest, resp *wire.Result[[]wire.SegmentOwner]) {
	resp.Code, resp.Value = wire.ErrSegmentNotFound, resp.Value[:0]
}
