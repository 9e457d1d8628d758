package transfer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// copyPath is the name of the path inside this process.
const copyPath = "copy"

// The states of a path.
const (
	PathUsed        = "used"        // requests go this way
	PathReady       = "ready"       // the next request goes this way and connects
	PathStandby     = "standby"     // a better one is in order
	PathDown        = "down"        // it failed a moment ago
	PathUnreachable = "unreachable" // the peer does not offer it, or not to us
)

// SegmentStatus tells how a segment is reached.
type SegmentStatus struct {
	Segment  string `json:"segment"`
	Protocol string `json:"protocol"`
	Instance string `json:"instance,omitempty"` // of our own nodes
	Regions  int    `json:"regions"`
	Bytes    uint64 `json:"bytes"` // of all regions
	// Paths in order of preference.
	Paths []PathStatus `json:"paths"`
}

// PathStatus tells what one path to a segment is worth.
type PathStatus struct {
	Path      string  `json:"path"` // the transport's name, or "copy" inside the process
	State     string  `json:"state"`
	Why       string  `json:"why"`
	Requests  uint64  `json:"requests"` // completed
	Bytes     uint64  `json:"bytes"`    // moved by them
	Errors    uint64  `json:"errors"`
	LatencyUS float64 `json:"latency_us"` // mean of the last requests, from the transport's hands to completion
	LastError string  `json:"last_error,omitempty"`
}

// pathStat counts what went over a path; peer.mu guards it.
type pathStat struct {
	requests, bytes, errors uint64
	latency                 time.Duration
	lastErr                 error
}

// latencyShare is the weight of a request in the mean: one in so many.
const latencyShare = 16

func (s *pathStat) ok(n uint64, took time.Duration) {
	s.requests++
	s.bytes += n
	if s.requests == 1 {
		s.latency = took
		return
	}
	s.latency += (took - s.latency) / latencyShare
}

func (s *pathStat) failed(err error) {
	s.errors++
	s.lastErr = err
}

func (s *pathStat) fill(p *PathStatus) {
	p.Requests, p.Bytes, p.Errors = s.requests, s.bytes, s.errors
	p.LatencyUS = float64(s.latency) / float64(time.Microsecond)
	if s.lastErr != nil {
		p.LastError = s.lastErr.Error()
	}
}

// stat returns the statistics of a transport. p.mu is held.
func (p *peer) stat(index int) *pathStat {
	if index >= len(p.stats) {
		p.stats = append(p.stats, make([]pathStat, index+1-len(p.stats))...)
	}
	return &p.stats[index]
}

// pathFault tells whether an error is one of the path, so that another path may do better.
func pathFault(err error) bool {
	for _, target := range []error{transports.ErrUnreachable, transports.ErrInterrupted, transports.ErrTimeout, transports.ErrProtocol} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// Segments tells for every opened segment, and first for this engine's own, how it is reached. Legal after
// Start.
func (e *Engine) Segments() []SegmentStatus {
	if e.running() != nil {
		return nil
	}
	list := e.segs.all()
	slices.SortFunc(list, func(a, b *Segment) int { return strings.Compare(a.name, b.name) })
	out := make([]SegmentStatus, 0, len(list)+1)
	for _, s := range append([]*Segment{e.local}, list...) {
		out = append(out, s.status())
	}
	return out
}

func (s *Segment) status() SegmentStatus {
	d := s.Descriptor()
	st := SegmentStatus{Segment: s.name, Protocol: d.Protocol, Regions: len(d.Buffers)}
	if d.Agent != nil {
		st.Instance = d.Agent.Instance
	}
	for i := range d.Buffers {
		st.Bytes += d.Buffers[i].Length
	}
	if s.Local() {
		p := PathStatus{Path: copyPath, State: PathUsed, Why: "it is this process"}
		s.peer.mu.Lock()
		s.peer.copies.fill(&p)
		s.peer.mu.Unlock()
		st.Paths = []PathStatus{p}
		return st
	}
	st.Paths = s.peer.paths(d)
	return st
}

// paths describes every transport's way to the peer.
func (p *peer) paths(d *transports.Descriptor) []PathStatus {
	ts := p.s.e.tps()
	reach := make([]error, len(ts)) // asked without the lock
	for i, t := range ts {
		reach[i] = t.Transport.Reach(d)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	routes := make([]*route, len(ts))
	for _, r := range p.routes {
		routes[r.index] = r
	}
	out := make([]PathStatus, len(ts))
	best := ""
	for i, t := range ts {
		o := &out[i]
		o.Path = t.Name
		p.stat(i).fill(o)
		r := routes[i]
		switch {
		case reach[i] != nil:
			o.State, o.Why = PathUnreachable, reach[i].Error()
		case r != nil && time.Now().Before(r.down):
			o.State, o.Why = PathDown, fmt.Sprintf("tried again in %v; it failed: %v", time.Until(r.down).Round(10*time.Millisecond), r.why)
		case best != "":
			o.State, o.Why = PathStandby, best+" goes first"
		case r != nil && r.h != nil:
			o.State, o.Why, best = PathUsed, "the first of the preferred ones that works", t.Name
		default:
			o.State, o.Why, best = PathReady, "no request so far", t.Name
		}
	}
	return out
}
