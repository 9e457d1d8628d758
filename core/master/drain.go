package master

import (
	"slices"
	"sync"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// drainJob moves everything away from some segments, by move tasks that the owners of the segments carry
// out. It finds the objects through the segments, a few thousand ranges at a time.
type drainJob struct {
	DrainJob
	active  map[wire.UUID]drainUnit // by task
	retries map[ref]int
	failed  map[ref]bool // given up
	segs    []*segment
	seg     int // where the search goes on
	at      int
	blocked int // in this pass
}

type drainUnit struct {
	object ref
	bytes  uint64
}

type drainJobs struct {
	mu   sync.Mutex // before everything but domain.mu
	byID map[wire.UUID]*drainJob
}

const (
	maxDrainRetries = 3
	drainStep       = 4096 // ranges looked at in one poll
)

// CreateDrainJob starts to move everything away from segments, to targets or, without them, to whatever
// has the most room.
func (s *Service) CreateDrainJob(segments, targets []string, maxConcurrency int) (wire.UUID, wire.ErrorCode) {
	if len(segments) == 0 || maxConcurrency <= 0 {
		return wire.UUID{}, wire.ErrInvalidParams
	}
	for i, name := range segments {
		if slices.Contains(segments[:i], name) {
			return wire.UUID{}, wire.ErrInvalidParams
		}
	}
	s.drains.mu.Lock()
	defer s.drains.mu.Unlock()
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	job := &drainJob{active: map[wire.UUID]drainUnit{}, retries: map[ref]int{}, failed: map[ref]bool{}}
	for _, name := range segments {
		known, takes := r.allocatable(name)
		if !known {
			return wire.UUID{}, wire.ErrSegmentNotFound
		}
		if !takes {
			return wire.UUID{}, wire.ErrUnavailableInCurrentStatus
		}
	}
	for _, name := range targets {
		if slices.Contains(segments, name) {
			return wire.UUID{}, wire.ErrInvalidParams
		}
		if known, takes := r.allocatable(name); !known {
			return wire.UUID{}, wire.ErrSegmentNotFound
		} else if !takes {
			return wire.UUID{}, wire.ErrUnavailableInCurrentStatus
		}
	}
	for _, name := range segments {
		for _, g := range r.byName[name] {
			g.status.CompareAndSwap(int32(wire.SegmentOK), int32(wire.SegmentDraining))
			job.segs = append(job.segs, g)
		}
	}
	r.refresh(segments...)
	now := s.now()
	job.DrainJob = DrainJob{
		ID: newUUID(), CreatedMS: now, UpdatedMS: now, Segments: slices.Clone(segments), Targets: slices.Clone(targets),
		MaxConcurrency: maxConcurrency, Message: "Drain job created",
	}
	if s.drains.byID == nil {
		s.drains.byID = map[wire.UUID]*drainJob{}
	}
	s.drains.byID[job.ID] = job
	return job.ID, wire.OK
}

// QueryDrainJob returns the record of a job.
func (s *Service) QueryDrainJob(id wire.UUID) (DrainJob, wire.ErrorCode) {
	s.drains.mu.Lock()
	defer s.drains.mu.Unlock()
	job := s.drains.byID[id]
	if job == nil {
		return DrainJob{}, wire.ErrJobNotFound
	}
	out := job.DrainJob
	out.Active = len(job.active)
	out.Segments, out.Targets = slices.Clone(out.Segments), slices.Clone(out.Targets)
	return out, wire.OK
}

// CancelDrainJob ends a job that has no move under way and lets its segments take objects again.
func (s *Service) CancelDrainJob(id wire.UUID) wire.ErrorCode {
	s.drains.mu.Lock()
	job := s.drains.byID[id]
	switch {
	case job == nil:
		s.drains.mu.Unlock()
		return wire.ErrJobNotFound
	case job.Status >= JobSucceeded, len(job.active) > 0:
		s.drains.mu.Unlock()
		return wire.ErrUnavailableInCurrentStatus
	}
	job.Status, job.UpdatedMS, job.Message = JobCanceled, s.now(), "Drain job canceled"
	segs := job.segs
	s.drains.mu.Unlock()
	s.undrain(segs)
	return wire.OK
}

// undrain lets segments take objects again.
func (s *Service) undrain(segs []*segment) {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range segs {
		if !g.gone.Load() {
			g.status.CompareAndSwap(int32(wire.SegmentDraining), int32(wire.SegmentOK))
			g.status.CompareAndSwap(int32(wire.SegmentDrained), int32(wire.SegmentOK))
			r.refresh(g.Name)
		}
	}
}

// runDrains goes on with all jobs.
func (s *Service) runDrains(now int64) {
	s.drains.mu.Lock()
	var jobs []*drainJob
	for _, job := range s.drains.byID {
		if job.Status < JobSucceeded {
			jobs = append(jobs, job)
		}
	}
	s.drains.mu.Unlock()
	for _, job := range jobs {
		s.runDrain(job, now)
	}
}

func (s *Service) runDrain(job *drainJob, now int64) {
	s.drains.mu.Lock()
	defer s.drains.mu.Unlock()
	for id, u := range job.active {
		ended, success := s.taskOutcome(id)
		if !ended {
			continue
		}
		delete(job.active, id)
		if success {
			job.Succeeded++
			job.MigratedBytes += u.bytes
			continue
		}
		job.Failed++
		if job.retries[u.object]++; job.retries[u.object] >= maxDrainRetries {
			job.failed[u.object] = true
		}
	}
	left := 0
	for _, g := range job.segs {
		if !g.gone.Load() {
			left += int(g.inUse.Load())
		}
	}
	if left == 0 && len(job.active) == 0 {
		for _, g := range job.segs {
			g.status.CompareAndSwap(int32(wire.SegmentDraining), int32(wire.SegmentDrained))
		}
		job.Status, job.UpdatedMS, job.Message, job.Blocked = JobSucceeded, now, "Drain job finished successfully", 0
		return
	}
	if len(job.active) == 0 && len(job.failed) > 0 && left <= s.stillThere(job) {
		job.Status, job.UpdatedMS, job.Message = JobFailed, now, "Drain job failed: unrecoverable units remain"
		s.undrain(job.segs)
		return
	}
	s.scheduleDrain(job, now)
	job.Status, job.UpdatedMS, job.Message = JobRunning, now, "Drain job running"
}

// stillThere counts the given-up objects that still lie in the job's segments.
func (s *Service) stillThere(job *drainJob) int {
	n := 0
	for r := range job.failed {
		sh := &s.shards[r.shard()]
		sh.mu.Lock()
		if o := sh.live(r.index()); o != nil {
			for it := sh.begin(o); it.ok(); it.advance(sh) {
				if it.kind == wire.KindMemory && slices.Contains(job.segs, s.seg(it.replica)) {
					n++
				}
			}
		}
		sh.mu.Unlock()
	}
	return n
}

// scheduleDrain looks at the next ranges and orders moves for what lies there.
func (s *Service) scheduleDrain(job *drainJob, now int64) {
	var refs [256]ref
	for looked := 0; looked < drainStep && len(job.active) < job.MaxConcurrency && len(job.segs) > 0; {
		g := job.segs[job.seg]
		n, total := g.residents(refs[:], job.at)
		if n == 0 || g.gone.Load() {
			job.at = 0
			if job.seg = (job.seg + 1) % len(job.segs); job.seg == 0 {
				job.Blocked, job.blocked = job.blocked, 0
				return // one pass at a time
			}
			continue
		}
		used := 0
		for _, r := range refs[:n] {
			if len(job.active) >= job.MaxConcurrency {
				break
			}
			used++
			if r != 0 {
				s.drainObject(job, g, r, now)
			}
		}
		looked += used
		if job.at += used; job.at >= total {
			job.at = total
		}
	}
}

// drainObject orders the move of one object.
func (s *Service) drainObject(job *drainJob, g *segment, r ref, now int64) {
	if job.failed[r] {
		return
	}
	for _, u := range job.active {
		if u.object == r {
			return
		}
	}
	sh := &s.shards[r.shard()]
	sh.mu.Lock()
	o := sh.live(r.index())
	if o == nil {
		sh.mu.Unlock()
		return
	}
	if o.is(fHardPin|fCopyTask) || s.protectedUntil(o) > now || has(sh, o, notComplete) {
		sh.mu.Unlock()
		job.blocked++
		return
	}
	t, key, size := s.tenantOf(o), sh.keyString(o), o.size
	var holds []string
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if it.kind == wire.KindMemory {
			holds = append(holds, s.seg(it.replica).Name)
		}
	}
	sh.mu.Unlock()

	target := s.drainTarget(job, g.Name, holds, size)
	if target == "" {
		job.blocked++
		return
	}
	id, code := s.orderMove(t, key, g.Name, target)
	switch code {
	case wire.OK:
		job.active[id] = drainUnit{r, size}
	case wire.ErrTaskPendingLimitExceeded, wire.ErrUnavailableInCurrentStatus, wire.ErrObjectNotFound:
		job.blocked++
	default:
		job.Failed++
		if job.retries[r]++; job.retries[r] >= maxDrainRetries {
			job.failed[r] = true
		}
	}
}

// drainTarget is the least used unit that may take an object.
func (s *Service) drainTarget(job *drainJob, source string, holds []string, size uint64) string {
	best, bestFree := "", -1.0
	for _, u := range s.registry.view.Load().units {
		if u.name == source || slices.Contains(holds, u.name) || len(job.Targets) > 0 && !slices.Contains(job.Targets, u.name) {
			continue
		}
		var free, total uint64
		for _, g := range u.segs {
			if g.largest.Load() >= size {
				free += g.free.Load()
			}
			total += g.Size
		}
		if share := float64(free) / float64(max(1, total)); free > 0 && share > bestFree {
			best, bestFree = u.name, share
		}
	}
	return best
}
