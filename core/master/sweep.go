package master

import "context"

// wakeSweep starts the removal of what unmounted segments and disks held.
func (s *Service) wakeSweep() {
	select {
	case s.sweep <- struct{}{}:
	default:
	}
}

// sweepGone removes the replicas in segments that are gone, which the segments themselves know, and those on
// disks that are gone. Until then they take memory but cannot be read.
func (s *Service) sweepGone(ctx context.Context) {
	r := s.registry
	for {
		r.mu.Lock()
		if len(r.sweeping) == 0 {
			r.mu.Unlock()
			break
		}
		g := r.sweeping[0]
		r.sweeping = r.sweeping[1:]
		r.mu.Unlock()
		done := s.sweepSegment(ctx, g)
		r.mu.Lock()
		if done {
			g.clear()
			r.swept(g)
		} else {
			r.sweeping = append(r.sweeping, g)
		}
		r.mu.Unlock()
		if !done {
			s.again.Store(true) // a put was under way; the next poll goes on
			break
		}
	}
	s.sweepGoneDisks(ctx)
}

// sweepSegment reports whether no replica is left.
func (s *Service) sweepSegment(ctx context.Context, g *segment) bool {
	var refs [256]ref
	for at := 0; ctx.Err() == nil; {
		n, _ := g.residents(refs[:], at)
		if n == 0 {
			break
		}
		at += n
		now := s.now()
		for _, r := range refs[:n] {
			if r == 0 {
				continue
			}
			sh := &s.shards[r.shard()]
			sh.mu.Lock()
			if o := sh.live(r.index()); o != nil {
				s.freshen(sh, r.index(), o, now)
			}
			sh.mu.Unlock()
		}
	}
	return g.inUse.Load() == 0
}
