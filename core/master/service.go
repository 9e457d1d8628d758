package master

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// Options are what a service needs. Config is required.
type Options struct {
	Config Config
	// Clock is the time; the default is the system's, which never goes back.
	Clock Clock
	Log   *slog.Logger
	// Policies are the eviction policies by domain: a tenant's name, or "*" for all others. Without "*" the
	// others are served by the service's own tail-first LRU, which also stands in when a policy fails.
	Policies map[string]Policy
	// Seed makes random choices repeatable; 0 takes one from the system.
	Seed uint64
	// OnSegmentLost is told of each segment that goes because its client expired, e.g. to clean up its
	// metadata. It is called from the background and must not block for long.
	OnSegmentLost func(segment wire.Segment, client wire.UUID)
}

// Clock tells the time in Unix milliseconds. It must not go back and is called for every request.
type Clock interface{ NowMS() int64 }

// ClockFunc lets a function be a [Clock].
type ClockFunc func() int64

// NowMS calls f.
func (f ClockFunc) NowMS() int64 { return f() }

// systemClock is wall-clock time at the start plus what has passed since, so that it never goes back.
func systemClock() Clock {
	start := time.Now()
	base := start.UnixMilli()
	return ClockFunc(func() int64 { return base + time.Since(start).Milliseconds() })
}

// Service is one Store master. All methods may be called concurrently.
type Service struct {
	cfg      Config
	clock    Clock
	log      *slog.Logger
	seed     uint64
	counters Counters

	// The config, as the hot paths want it.
	strategy       int
	probes         int
	leaseMS        int64
	suspectMS      int64
	watermark      bool
	evictPreferred bool
	upsertInPlace  bool
	fsDir          string // of disk replicas, "" none

	shards    [numShards]shard
	registry  *registry
	clients   liveness
	groups    groupTable
	disks     diskTable
	tasks     taskStore
	drains    drainJobs
	timers    timers
	promoter  promoter
	pressure  pressure
	replicaID atomic.Uint64
	rng       atomic.Uint64

	tenants struct {
		mu    sync.Mutex // after registry.mu
		table atomic.Pointer[tenantTable]
	}
	defaultTenant *tenant
	domains       atomic.Pointer[[]*domain] // the first is "*"
	moving        sync.Mutex                // one tenant moves to another domain at a time; before domain.mu
	recorder      atomic.Pointer[Recorder]

	need       atomic.Bool  // watermark mode: a put found no room
	demand     atomic.Int64 // when a put last had to evict
	wanted     atomic.Bool  // a put found its preferred segment full
	lastWanted int64        // of the background only
	sweepDisks atomic.Bool
	again      atomic.Bool
	kick       chan struct{}
	sweep      chan struct{}

	onSegmentLost func(wire.Segment, wire.UUID)

	run struct {
		mu     sync.Mutex
		cancel context.CancelFunc
		wg     sync.WaitGroup
	}
	guests sync.WaitGroup // policies that work aside
}

// New makes a service. It checks the config; nothing runs before Start.
func New(o Options) (*Service, error) {
	if err := o.Config.Validate(); err != nil {
		return nil, fmt.Errorf("master: %w", err)
	}
	s := &Service{cfg: o.Config, clock: o.Clock, log: o.Log, seed: o.Seed, onSegmentLost: o.OnSegmentLost, kick: make(chan struct{}, 1), sweep: make(chan struct{}, 1)}
	if s.clock == nil {
		s.clock = systemClock()
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.seed == 0 {
		s.seed = randomSeed()
	}
	s.rng.Store(s.seed)
	s.strategy, s.probes = strategyOf(s.cfg.Strategy), probesOf(s.cfg.ProbeLease)
	s.leaseMS = s.cfg.LeaseTTL.Milliseconds()
	s.watermark = s.cfg.EvictionMode == "watermark"
	s.evictPreferred = s.cfg.PreferredFull == "evict"
	s.upsertInPlace = s.cfg.UpsertInPlace == "always"
	if s.suspectMS = s.cfg.ClientSuspectTTL.Milliseconds(); s.suspectMS == 0 {
		s.suspectMS = s.cfg.ClientTTL.Milliseconds() / 2
	}
	if s.cfg.FSDir != "" && s.cfg.ClusterID != "" {
		s.fsDir = s.cfg.FSDir + "/" + s.cfg.ClusterID
		s.counters.FileCapacityBytes.Store(int64(min(s.cfg.FSCapacity, 1<<63-1)))
	}
	if s.cfg.Allocator == "cachelib" {
		s.log.Warn("memory_allocator=cachelib is served by the offset allocator")
	}
	s.registry = newRegistry()
	s.disks.list.Store(&[]*diskOwner{})
	s.tenants.table.Store(&tenantTable{byName: map[string]*tenant{}})
	for name, p := range o.Policies {
		if err := p.Validate(); err != nil {
			return nil, fmt.Errorf("master: eviction policy of %q: %w", name, err)
		}
	}
	s.newDomain(anyTenant, o.Policies[anyTenant])
	names := make([]string, 0, len(o.Policies))
	for name := range o.Policies {
		if name != anyTenant {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		s.newDomain(name, o.Policies[name])
	}
	s.defaultTenant = s.addTenant(wire.DefaultTenant)
	return s, nil
}

func (s *Service) now() int64 { return s.clock.NowMS() }

// Periods of the background work.
const (
	spacePeriod = 50 * time.Millisecond  // eviction: also woken by puts
	roundPeriod = 10 * time.Millisecond  // watermark mode
	timerPeriod = 100 * time.Millisecond // deadlines

	// stallMS is the distance between two looks at the deadlines from which on this process counts as having
	// stood still (stopped, suspended, out of CPU): then nobody's pings could be heard.
	stallMS = 1000
)

// Start runs the background work (expiries, reserve, drains, sweeps) until Close, or until ctx ends. A
// service works without it as long as somebody calls Poll.
func (s *Service) Start(ctx context.Context) error {
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	if s.run.cancel != nil {
		return fmt.Errorf("master: started twice")
	}
	ctx, s.run.cancel = context.WithCancel(context.WithoutCancel(ctx))
	period := spacePeriod
	if s.watermark {
		period = roundPeriod
	}
	s.run.wg.Go(func() { s.loop(ctx, period, s.kick, func() { s.maintainSpace(s.now()) }) })
	last := s.now()
	s.run.wg.Go(func() {
		s.loop(ctx, timerPeriod, nil, func() {
			now := s.now()
			if gap := now - last; gap > stallMS {
				s.clients.forgive(gap, now)
			}
			last = now
			s.pollTimers(now)
		})
	})
	s.run.wg.Go(func() { s.loop(ctx, 0, s.sweep, func() { s.sweepGone(ctx) }) })
	return nil
}

// loop calls f when woken and every period.
func (s *Service) loop(ctx context.Context, period time.Duration, wake <-chan struct{}, f func()) {
	var tick <-chan time.Time
	if period > 0 {
		t := time.NewTicker(period)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-tick:
		}
		f()
	}
}

// Close ends the background work and waits for it, until ctx ends. Calls that come later are still answered.
func (s *Service) Close(ctx context.Context) error {
	s.run.mu.Lock()
	cancel := s.run.cancel
	s.run.mu.Unlock()
	if cancel != nil {
		cancel()
		if !waited(ctx, &s.run.wg) {
			return fmt.Errorf("master: background work did not end: %w", ctx.Err())
		}
	}
	for _, d := range s.allDomains() {
		d.changing.Lock()
		d.mu.Lock()
		closePolicy(d.policy)
		d.policy = nil
		d.forget()
		d.rules(Policy{})
		d.mu.Unlock()
		d.changing.Unlock()
	}
	if !waited(ctx, &s.guests) {
		return fmt.Errorf("master: eviction policies did not end: %w", ctx.Err())
	}
	return nil
}

// waited waits for a group until ctx ends.
func waited(ctx context.Context, g *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() { g.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// pollTimers does what is due.
func (s *Service) pollTimers(now int64) {
	s.checkClients(now)
	s.leaveDue(now)
	s.endPins(now)
	s.reapWrites(now)
	s.pruneTasks(now)
	s.runDrains(now)
	if s.cfg.Promotion {
		s.retryPromotions(now)
	}
	if s.again.Swap(false) {
		s.wakeSweep()
	}
}

// Poll does all background work that is due now: tests with a clock of their own call it instead of Start.
func (s *Service) Poll() {
	now := s.now()
	s.pollTimers(now)
	select {
	case <-s.sweep:
		s.sweepGone(context.Background())
	default:
	}
	s.maintainSpace(now)
}

// Counters returns the live counters.
func (s *Service) Counters() *Counters { return &s.counters }

// Config returns the configuration in force.
func (s *Service) Config() Config { return s.cfg }
