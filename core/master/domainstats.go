package master

import (
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/core/master/aside"
	"github.com/mooncake-agent/mooncake/eviction"
)

// refusal is why a victim was not taken.
type refusal int

const (
	refusedLeased refusal = iota
	refusedProbed
	refusedPinned
	refusedBusy
	refusedUsed
	refusedElsewhere
	refusedUnknown
	refusedDuplicate
	refusals
)

var refusalNames = [refusals]string{"leased", "probed", "pinned", "busy", "used", "elsewhere", "unknown", "duplicate"}

// domainCounts are a domain's numbers that are kept without its lock.
type domainCounts struct {
	reserve   atomic.Int64 // victims to ask for at a time
	admission atomic.Bool
	// storeRefused: a put that is not wanted is stored all the same.
	storeRefused atomic.Bool
	oldUntil     atomic.Int64 // when the policy before the last change goes

	exist, get, follow, single lookups // batch questions, batch reads of their own, reads after a question, single reads
	refused                    [refusals]Counter
	evicted                    Counter
	regret                     Counter // evicted and asked for again; an estimate
	admitAsked, admitRefused   Counter
	admitLate                  Counter
	refusedAsked               Counter // refused and asked for soon
	faults, strikes, fallbacks Counter
	changes, alarms            Counter
}

// lookups count the blocks of calls.
type lookups struct{ calls, asked, found, prefix Counter }

// add books a call for n blocks in the order of a chain.
func (l *lookups) add(n int, found func(int) bool) {
	hits, lead := 0, 0
	for i := range n {
		if found(i) {
			if hits == i {
				lead++
			}
			hits++
		}
	}
	l.calls.Add(1)
	l.asked.Add(uint64(n))
	if hits > 0 {
		l.found.Add(uint64(hits))
	}
	if lead > 0 {
		l.prefix.Add(uint64(lead))
	}
}

func (d *domain) refuse(r refusal) { d.count.refused[r].Add(1) }

// Lookups count the blocks of calls of one kind; Prefix are the blocks that lead their call without a gap, the
// only ones that save prefill.
type Lookups struct {
	Calls  uint64 `json:"calls"`
	Asked  uint64 `json:"asked"`
	Found  uint64 `json:"found"`
	Prefix uint64 `json:"prefix"`
}

func (l *lookups) load() Lookups {
	return Lookups{l.calls.Load(), l.asked.Load(), l.found.Load(), l.prefix.Load()}
}

func (l *Lookups) add(o Lookups) {
	l.Calls += o.Calls
	l.Asked += o.Asked
	l.Found += o.Found
	l.Prefix += o.Prefix
}

// GuardStats is what the shadow guard thinks of a domain's policy. Ratios are useful hits of what was asked for
// in the last ten minutes that had traffic, both of the same sample of keys.
type GuardStats struct {
	// Verdict: "off", "learning" (too little asked for), "ok", "worse" (by more than a point, see WorseMS), "alarm"
	// (worse for ten minutes), "fell back" (alarm, and the built-in LRU serves).
	Verdict string  `json:"verdict"`
	Asked   uint64  `json:"asked"`
	Store   float64 `json:"store_hit"`
	LRU     float64 `json:"lru_hit"`
	WorseMS int64   `json:"worse_ms,omitempty"`
	Alarms  uint64  `json:"alarms"`
}

// DomainStats describe one eviction domain.
type DomainStats struct {
	Name     string `json:"domain"`
	Policy   string `json:"policy"` // as it was asked for
	State    string `json:"state"`  // "running", "native" (no policy is configured), "waiting", "quarantined", "fell back"
	Fallback bool   `json:"fallback"`
	Fault    string `json:"fault,omitempty"` // the last one
	RetryMS  int64  `json:"retry_in_ms,omitempty"`
	Previous string `json:"previous,omitempty"` // what RollbackPolicy would bring back

	Objects      int     `json:"resident"`
	Bytes        uint64  `json:"resident_bytes"`
	Capacity     uint64  `json:"capacity_bytes"`
	Handles      uint32  `json:"handles"`
	Backlog      int     `json:"backlog"` // events that wait
	PolicyMemory uint64  `json:"memory_bytes"`
	PerKey       float64 `json:"memory_per_key"`

	Requests Lookups            `json:"requests"` // each request once: questions, and reads that follow none
	Calls    map[string]Lookups `json:"calls"`    // "exist", "get" (that follow no question), "get_after_exist", "single_get"

	Evicted      uint64            `json:"evicted"`
	Refused      map[string]uint64 `json:"refused_victims"`
	Regret       uint64            `json:"regret"` // evicted and asked for again within RegretWindow, estimated by a sample
	RegretWindow float64           `json:"regret_window_s"`
	Faults       uint64            `json:"faults"`
	Strikes      uint64            `json:"strikes"`
	Fallbacks    uint64            `json:"fallback_victims"` // chosen by the built-in LRU although a policy is configured
	Changes      uint64            `json:"changes"`

	Admission    string `json:"admission"` // "off", "no_space", "evict": what a put is answered that is not wanted
	AdmitAsked   uint64 `json:"admission_asked"`
	AdmitRefused uint64 `json:"admission_refused"`
	AdmitLate    uint64 `json:"admission_late"`
	RefusedAsked uint64 `json:"refused_then_asked"` // within RegretWindow

	Guard GuardStats `json:"guard"`
	// Supervision is what a policy says that runs code from outside.
	Supervision *eviction.Supervision `json:"supervision,omitempty"`
	// Stats is what the policy says of itself.
	Stats json.RawMessage `json:"stats,omitempty"`
}

// stats describes the domain now.
func (d *domain) stats(now int64) DomainStats {
	x := d.ownStats(now)
	var said opinionOfItself
	if d.visit(statsTime, func(p eviction.Policy) { said.ask(p) }) {
		said.tell(&x)
	}
	if x.Objects > 0 {
		x.PerKey = float64(x.PolicyMemory) / float64(x.Objects)
	}
	return x
}

// ownStats are those that the domain keeps itself.
func (d *domain) ownStats(now int64) DomainStats {
	c := &d.count
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drain(now)
	x := DomainStats{
		Name: d.name, Objects: int(d.known.Load()), Backlog: d.ring.backlog(), Capacity: d.size(), Evicted: c.evicted.Load(), Regret: c.regret.Load(),
		RegretWindow: d.s.cfg.RegretWindow.Seconds(), Faults: c.faults.Load(), Strikes: c.strikes.Load(), Fallbacks: c.fallbacks.Load(), Changes: c.changes.Load(),
		AdmitAsked: c.admitAsked.Load(), AdmitRefused: c.admitRefused.Load(), AdmitLate: c.admitLate.Load(), RefusedAsked: c.refusedAsked.Load(),
		Calls:   map[string]Lookups{"exist": c.exist.load(), "get": c.get.load(), "get_after_exist": c.follow.load(), "single_get": c.single.load()},
		Refused: map[string]uint64{}, Admission: "off",
	}
	for _, kind := range []string{"exist", "get", "single_get"} {
		x.Requests.add(x.Calls[kind])
	}
	for i := range c.refused {
		x.Refused[refusalNames[i]] = c.refused[i].Load()
	}
	x.Policy, x.Handles, x.Fault, x.Bytes = d.rule.name(), d.handles, d.fault, d.guard.use
	x.Fallback = d.rule.Factory != nil && d.policy == nil && (d.fault != "" || d.fallen)
	switch {
	case d.rule.Factory == nil:
		x.State = Native
	case d.fallen:
		x.State = "fell back"
	case d.policy != nil || d.fault == "":
		x.State = "running"
	case d.retryAt == never:
		x.State = "quarantined"
	default:
		x.State, x.RetryMS = "waiting", max(0, d.retryAt-now)
	}
	if d.old != nil {
		x.Previous = d.old.rule.name()
	}
	if c.admission.Load() {
		x.Admission = d.rule.Refused
	}
	x.PolicyMemory = uint64(d.lru.place.n)*9 + d.guard.cache.memoryBytes() + uint64(cap(d.regret.slots))*12
	if a, ok := d.policy.(*aside.Policy); ok {
		events, bytes := a.Waiting()
		x.Backlog += events
		x.PolicyMemory += bytes
	}
	x.Guard = d.guard.stats(now, d.fallen)
	x.Guard.Alarms = c.alarms.Load()
	return x
}

// opinionOfItself is what a policy says of itself.
type opinionOfItself struct {
	memory      uint64
	supervision *eviction.Supervision
	stats       json.RawMessage
}

func (o *opinionOfItself) ask(p eviction.Policy) {
	if m, ok := p.(eviction.MemoryUser); ok {
		o.memory = m.MemoryBytes()
	}
	if g, ok := p.(eviction.Supervised); ok {
		s := g.Supervision()
		o.supervision = &s
	}
	if t, ok := p.(eviction.Statser); ok {
		if raw, err := t.Stats(); err == nil && json.Valid(raw) {
			o.stats = raw
		}
	}
}

func (o *opinionOfItself) tell(x *DomainStats) {
	x.PolicyMemory += o.memory
	x.Stats = o.stats
	if x.Supervision = o.supervision; x.Supervision == nil || x.Supervision.State == eviction.GuestRunning {
		return
	}
	x.State, x.Fallback = string(x.Supervision.State), true
	if x.Fault == "" {
		x.Fault = x.Supervision.Fault
	}
}

func (g *guard) stats(now int64, fallen bool) GuardStats {
	sum := g.sum()
	sum.asked += g.now.asked
	sum.store += g.now.store
	sum.shadow += g.now.shadow
	s := GuardStats{Asked: sum.asked, Verdict: "ok"}
	if sum.asked > 0 {
		s.Store, s.LRU = float64(sum.store)/float64(sum.asked), float64(sum.shadow)/float64(sum.asked)
	}
	if g.worseAt != 0 {
		s.WorseMS = now - g.worseAt
	}
	switch {
	case fallen:
		s.Verdict = "fell back"
	case !g.on:
		s = GuardStats{Verdict: "off"}
	case g.alarm:
		s.Verdict = "alarm"
	case g.worseAt != 0:
		s.Verdict = "worse"
	case sum.asked < guardLeast:
		s.Verdict = "learning"
	}
	return s
}

// DefaultRegretWindow is how soon a block must be asked for again to count as regretted.
const DefaultRegretWindow = 5 * time.Minute

// Policies describes all eviction domains, "*" first.
func (s *Service) Policies() []DomainStats {
	now := s.now()
	var out []DomainStats
	for _, d := range s.allDomains() {
		out = append(out, d.stats(now))
	}
	return out
}

// Recorder is told what happens in all domains, each in its order, with the events of one call back to back.
// Offer must not block and must not keep the slice. [ByRead] tells what a GHOST or ACCESS comes from; GHOSTs with
// a size say that the key is about to be put.
type Recorder interface {
	Offer(events []eviction.Event)
}

// ByRead tells whether a GHOST or an ACCESS that a [Recorder] got comes from a read, and not from a question whether
// the key is there or from a value that is written anew.
func ByRead(e *eviction.Event) bool { return e.Segment == markRead }

// Record tells r what happens from now on; nil ends that. What happened before the end is told before Record returns.
func (s *Service) Record(r Recorder) {
	if r != nil {
		s.recorder.Store(&r)
	}
	for _, d := range s.allDomains() {
		d.mu.Lock()
		d.tellAll()
		d.drain(s.now())
		d.mu.Unlock()
	}
	if r == nil {
		s.recorder.Store(nil)
		for _, d := range s.allDomains() {
			d.mu.Lock()
			d.tellAll()
			d.mu.Unlock()
		}
	}
}
