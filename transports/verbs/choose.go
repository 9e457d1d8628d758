package verbs

import (
	"fmt"
	"slices"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// way is a rail of one peer handle: the pair of devices with the position of the peer's in its document.
type way struct {
	*rail
	dev int
}

// ways are the rails for one pair of locations in groups, the best first. Within a group the one with least to do is
// taken.
type ways [][]way

// waysFor returns the ways between memory at two locations. p.mu is held.
func (p *Peer) waysFor(local, remote string) ways {
	k := [2]string{local, remote}
	w, ok := p.ways[k]
	if !ok {
		w = p.findWays(local, remote)
		p.ways[k] = w
	}
	return w
}

// findWays pairs devices: near ones with near ones first, each of ours with another one of the peer's, so that a peer
// costs as few connections as possible while all devices are used; all other pairs are for when those fail.
func (p *Peer) findWays(local, remote string) ways {
	t := p.t
	near, far := t.tiers(local)
	theirNear, theirFar := p.r.tiers(remote)
	var out ways
	used := map[[2]int]bool{}
	add := func(group []way, n *nic, dev int) []way {
		k := [2]int{n.index, dev}
		if used[k] {
			return group
		}
		used[k] = true
		return append(group, way{p.rail(n, dev), dev})
	}
	for _, ours := range [][]*nic{near, far} {
		for _, theirs := range [][]int{theirNear, theirFar} {
			if len(ours) == 0 || len(theirs) == 0 {
				continue
			}
			var first, rest []way
			for i, n := range ours {
				for _, dev := range p.partners(n, i, theirs) {
					first = add(first, n, dev)
				}
			}
			for _, n := range ours {
				for _, dev := range theirs {
					rest = add(rest, n, dev)
				}
			}
			for _, g := range [][]way{first, rest} {
				if len(g) > 0 {
					out = append(out, g)
				}
			}
		}
	}
	return out
}

// partners are the peer's devices that one of ours, the i-th of its group, goes to first.
func (p *Peer) partners(n *nic, i int, theirs []int) []int {
	var named []string
	if p.t.cfg.UsePeerAffinity {
		named = p.t.affinity[n.name]
	}
	if p.t.cfg.DestDeviceAffinity && len(named) == 0 {
		named = []string{n.name}
	}
	var out []int
	for _, dev := range theirs {
		if slices.Contains(named, p.r.devices[dev].Name) {
			out = append(out, dev)
		}
	}
	if len(out) == 0 {
		out = []int{theirs[i%len(theirs)]}
	}
	return out
}

// tiers lists our devices for a location: the near ones, and the others.
func (t *Transport) tiers(location string) (near, far []*nic) {
	d, ok := t.matrix[location]
	if !ok || location == anywhere || len(d.preferred) == 0 {
		return t.nics, nil
	}
	for _, n := range t.nics {
		if slices.Contains(d.preferred, n.name) {
			near = append(near, n)
		} else if slices.Contains(d.others, n.name) {
			far = append(far, n)
		}
	}
	return near, far
}

// pick chooses a way for a slice, not the one that it failed on if there is another. The error says why there is
// none, and wraps pausedError when there will be one soon. p.mu is held.
func (p *Peer) pick(s *slice) (way, error) {
	groups := p.waysFor(s.op.reg.location, p.r.buffers[s.buf].location)
	now := time.Now()
	var why, refused error
	var second way
	for _, g := range groups {
		var best way
		for i := range g {
			w := g[i]
			if p.t.cfg.RoundRobin {
				w = g[(i+p.turn)%len(g)]
			}
			if p.refused(s, w.dev) {
				if refused == nil {
					b := &p.r.buffers[s.buf]
					refused = fmt.Errorf("verbs: segment %q refuses access to [%#x, %#x): %w", p.r.segment, b.addr, b.end, transports.ErrRejected)
				}
				continue
			}
			if err := w.usable(now); err != nil {
				why = soonest(why, err)
				continue
			}
			if w.rail == s.last {
				second = w
				continue
			}
			if best.rail == nil || !p.t.cfg.RoundRobin && w.n.bytes.Load() < best.n.bytes.Load() {
				best = w
			}
		}
		if best.rail != nil {
			p.turn++
			return best, nil
		}
	}
	if second.rail != nil {
		return second, nil
	}
	if refused != nil { // the document may be out of date, which counts for more than a pause
		return way{}, refused
	}
	for _, g := range groups { // all are paused
		for _, w := range g {
			if w.tryPaused(now) {
				return w, nil
			}
		}
	}
	if why == nil {
		why = errNoWay
	}
	return way{}, why
}

// soonest returns the error that ends first.
func soonest(a, b error) error {
	if a == nil {
		return b
	}
	now := time.Now()
	at, aok := retryTime(a, now)
	bt, bok := retryTime(b, now)
	if bok && (!aok || bt.Before(at)) {
		return b
	}
	return a
}
