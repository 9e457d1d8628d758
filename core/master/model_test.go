package master

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"pgregory.net/rapid"
)

// The model knows what may be true of each key, and which bytes somebody may be using: a new write must not
// get any of those.

type modelObject struct {
	writer     wire.UUID
	size       uint64
	start      int64
	complete   bool
	rewriting  bool // in place
	lease      int64
	probe      int64
	hard       bool
	softUntil  int64
	pendingPin int64 // 0 none
	groupLease string
	copying    bool
	targetGone bool // a segment was unmounted during the move
}

// claim is a range that somebody may be using until a time.
type claim struct {
	addr, size uint64
	until      int64
	what       string
	live       func() bool // nil: until the time
}

type model struct {
	*store
	objects map[string]*modelObject
	claims  []claim
	groups  map[string]int64 // lease of all members
	mounted map[int]bool
}

const modelKeys = 12

func TestModel(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Options)
	}{
		{"built-in LRU", nil},
		{"watermark", func(o *Options) { o.Config.EvictionMode = "watermark" }},
		{"probes grant leases", func(o *Options) { o.Config.ProbeLease = "upstream" }},
		{"soft pins hold", func(o *Options) { o.Config.EvictSoftPinned = false }},
		{"free ratio first, evict in preferred", func(o *Options) {
			o.Config.Strategy, o.Config.PreferredFull = "free_ratio_first", "evict"
		}},
		{"policy lru", func(o *Options) { o.Policies = policies("lru") }},
		{"policy sieve, no reserve", func(o *Options) { o.Policies, o.Config.VictimReserve = policies("sieve"), 0 }},
		{"policy lru aside", func(o *Options) { o.Policies = policiesAside("lru") }},
		{"policies that change", func(o *Options) { o.Policies = policies("arc") }},
		{"policy s3fifo", func(o *Options) { o.Policies = policies("s3fifo") }},
		{"short lease, no reserve", func(o *Options) { o.Config.LeaseTTL, o.Config.VictimReserve = 50*time.Millisecond, 0 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) { runModel(rt, tc.change) })
		})
	}
}

func runModel(t *rapid.T, change func(*Options)) {
	m := &model{store: newStore(t, change), objects: map[string]*modelObject{}, groups: map[string]int64{}, mounted: map[int]bool{}}
	for n := range 2 {
		m.mount(n, 64<<10, clientA)
		m.mounted[n] = true
	}
	client := func() wire.UUID {
		return rapid.SampledFrom([]wire.UUID{clientA, clientB, clientC}).Draw(t, "client")
	}
	key := func() string { return fmt.Sprintf("k%d", rapid.IntRange(0, modelKeys-1).Draw(t, "key")) }
	size := func() uint64 {
		return rapid.SampledFrom([]uint64{1, 100, 1000, 5000, 9000, 20000, 40000, 70000}).Draw(t, "size")
	}
	t.Repeat(map[string]func(*rapid.T){
		"put": func(t *rapid.T) {
			var opts []func(*wire.ReplicateConfig)
			o := &modelObject{writer: client(), size: size(), start: m.now()}
			if o.hard = rapid.IntRange(0, 15).Draw(t, "hard") == 0; o.hard {
				opts = append(opts, withHardPin)
			}
			if rapid.IntRange(0, 7).Draw(t, "soft") == 0 {
				o.pendingPin = 5000
				opts = append(opts, withSoftPin(5000))
			}
			if rapid.IntRange(0, 3).Draw(t, "grouped") == 0 {
				o.groupLease = "g"
				opts = append(opts, inGroup("g"))
			}
			n := rapid.Uint64Range(1, 3).Draw(t, "replicas")
			opts = append(opts, replicas(n))
			if rapid.Bool().Draw(t, "prefer") {
				opts = append(opts, preferred("node1:1"))
			}
			m.doPut(key(), o, n, opts)
		},
		"end":    func(t *rapid.T) { m.doEnd(key(), client()) },
		"endAll": func(*rapid.T) { m.doEndAll() },
		"getAll": func(*rapid.T) { m.doGetAll() },
		"fill": func(t *rapid.T) {
			n := size()
			for i := range modelKeys {
				m.doPut(fmt.Sprintf("k%d", i), &modelObject{writer: clientA, size: n, start: m.now()}, 1, nil)
			}
			m.doEndAll()
		},
		"revoke": func(t *rapid.T) { m.doRevoke(key(), client()) },
		"get":    func(t *rapid.T) { m.doGet(key()) },
		"exist":  func(t *rapid.T) { m.doExist(key()) },
		"remove": func(t *rapid.T) { m.doRemove(key(), rapid.Bool().Draw(t, "force")) },
		"upsert": func(t *rapid.T) { m.doUpsert(key(), client(), size()) },
		"move":   func(t *rapid.T) { m.doMove(key(), rapid.Bool().Draw(t, "end")) },
		"time": func(t *rapid.T) {
			m.pass(rapid.SampledFrom([]int64{1, 40, 1000, 5100, 10100, 30100}).Draw(t, "ms"))
			m.keepAlive()
		},
		"releaseTime": func(t *rapid.T) {
			if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
				m.clock.Add(600_001)
				m.keepAlive()
				m.pass(1)
				m.reaped()
			}
		},
		"policy": func(t *rapid.T) {
			if m.allDomains()[0].rule.Name == "" {
				return // only where a policy was configured at the start
			}
			name := rapid.SampledFrom([]string{Native, "lru", "arc", "sieve", "s3fifo", "aside", "rollback"}).Draw(t, "policy")
			var err error
			switch name {
			case "aside":
				err = m.SetPolicy(anyTenant, policiesAside("lru")[anyTenant])
			case "rollback":
				_ = m.RollbackPolicy(anyTenant) // there may be nothing to go back to
			case Native:
				err = m.SetPolicy(anyTenant, Policy{Name: Native})
			default:
				err = m.SetPolicy(anyTenant, policies(name)[anyTenant])
			}
			if err != nil {
				t.Fatalf("policy %s: %v", name, err)
			}
		},
		"unmount": func(t *rapid.T) {
			if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
				m.doUnmount(rapid.IntRange(0, 1).Draw(t, "segment"))
			}
		},
		"": func(*rapid.T) { m.compare() },
	})
}

// keepAlive pings, so that no segment is lost by time alone.
func (m *model) keepAlive() {
	m.ping(clientA)
	for n := range 2 {
		if !m.mounted[n] {
			m.mount(n, 64<<10, clientA)
			m.mounted[n] = true
		}
	}
	if m.ping(clientA) != wire.ClientOK {
		m.lostSegments()
	}
}

// lostSegments follows the expiry of the client that owns all segments.
func (m *model) lostSegments() {
	clear(m.objects)
	m.mounted = map[int]bool{}
	m.claims = nil
	for n := range 2 {
		m.mount(n, 64<<10, clientA)
		m.mounted[n] = true
	}
}

func (m *model) doPut(k string, o *modelObject, n uint64, opts []func(*wire.ReplicateConfig)) {
	old := m.objects[k]
	now := m.now()
	rs, code := m.start(o.writer, k, o.size, opts...)
	switch code {
	case wire.OK:
		if old != nil && (old.complete || old.start+30_000 >= now) && m.protected(k, old) {
			m.Fatalf("put of %s went through although it is there", k)
		}
		if len(rs) == 0 || uint64(len(rs)) > n {
			m.Fatalf("put of %s with %d replicas answered %d", k, n, len(rs))
		}
		m.objects[k] = o
		m.claimWrites(k, o, rs)
	case wire.ErrObjectAlreadyExists:
		if old == nil {
			m.Fatalf("put of %s: exists, but it was never there", k)
		}
	case wire.ErrNoAvailableHandle:
		// The store may be full of what cannot go, or in pieces; but one that is empty has room.
		if len(m.objects) == 0 && len(m.claims) == 0 && o.size <= 56<<10 {
			m.Fatalf("put of %d bytes into an empty store: no room", o.size)
		}
		if old != nil && !old.complete && old.start+30_000 < now {
			delete(m.objects, k) // it was pushed aside before room was looked for
		}
	default:
		m.Fatalf("put of %s: %v", k, code)
	}
}

// claimWrites checks that nobody uses what a writer was given, and notes that it is being used.
func (m *model) claimWrites(k string, o *modelObject, rs []wire.Replica) {
	names := map[string]bool{}
	for _, r := range rs {
		if names[r.Endpoint] {
			m.Fatalf("two replicas of %s in one segment", k)
		}
		names[r.Endpoint] = true
		m.mustBeFree(k, r.Address, o.size)
		m.claims = append(m.claims, claim{addr: r.Address, size: o.size, until: o.start + 600_000, what: "writer of " + k, live: func() bool {
			return true
		}})
	}
}

func (m *model) mustBeFree(k string, addr, size uint64) {
	now := m.now()
	for _, c := range m.claims {
		if c.until > now && addr < c.addr+c.size && c.addr < addr+size {
			m.Fatalf("%s got bytes %x..%x, of which %x..%x belong to the %s until %d ms from now", k, addr, addr+size, c.addr, c.addr+c.size, c.what, c.until-now)
		}
	}
}

// release ends the claims of the current writer of a key.
func (m *model) release(k string, o *modelObject) {
	m.claims = slices.DeleteFunc(m.claims, func(c claim) bool { return c.what == "writer of "+k && c.until == o.start+600_000 })
}

func (m *model) doEnd(k string, client wire.UUID) {
	o := m.objects[k]
	code := m.end(client, k)
	switch {
	case o == nil:
		m.must("end of "+k, code, wire.ErrObjectNotFound)
	case code == wire.ErrObjectNotFound && o.complete && !m.protected(k, o):
		delete(m.objects, k)
	case o.writer != client:
		m.must("end of "+k, code, wire.ErrIllegalClient)
	case o.complete:
		if o.copying {
			return
		}
		m.must("end of "+k, code, wire.OK)
	default:
		m.must("end of "+k, code, wire.OK)
		m.ended(k, o)
	}
}

// doEndAll ends all writes of client A in one batch.
func (m *model) doEndAll() {
	req := wire.BatchPutEndRequest{Client: clientA, Type: wire.ReplicaAll, Tenant: "default"}
	for _, k := range slices.Sorted(maps.Keys(m.objects)) {
		if o := m.objects[k]; o.writer == clientA && !o.complete {
			req.Metas = append(req.Metas, wire.ObjectMeta{Key: k})
		}
	}
	var out []wire.Result[wire.Void]
	m.BatchPutEnd(&req, &out)
	for i, r := range out {
		k := req.Metas[i].Key
		m.must("batch end of "+k, r.Code, wire.OK)
		m.ended(k, m.objects[k])
	}
}

func (m *model) ended(k string, o *modelObject) {
	o.complete, o.rewriting = true, false
	if o.pendingPin > 0 {
		o.softUntil, o.pendingPin = m.now()+o.pendingPin, 0
	}
	m.release(k, o)
}

// doGetAll reads all keys in one batch.
func (m *model) doGetAll() {
	req := wire.KeysRequest{Tenant: "default"}
	for i := range modelKeys {
		req.Keys = append(req.Keys, fmt.Sprintf("k%d", i))
	}
	var out []wire.Result[wire.ReplicaList]
	m.BatchGetReplicaList(&req, &out)
	for i, r := range out {
		m.got(req.Keys[i], r.Value, r.Code)
	}
}

func (m *model) doRevoke(k string, client wire.UUID) {
	o := m.objects[k]
	code := m.revokePut(client, k)
	switch {
	case o == nil:
		m.must("revoke of "+k, code, wire.ErrObjectNotFound)
	case code == wire.ErrObjectNotFound && o.complete && !m.protected(k, o):
		delete(m.objects, k)
	case o.writer != client:
		m.must("revoke of "+k, code, wire.ErrIllegalClient)
	case o.complete:
		m.must("revoke of "+k, code, wire.ErrInvalidWrite)
	default:
		m.must("revoke of "+k, code, wire.OK)
		m.release(k, o)
		delete(m.objects, k)
	}
}

func (m *model) doGet(k string) {
	list, code := m.get(k)
	m.got(k, list, code)
}

func (m *model) got(k string, list wire.ReplicaList, code wire.ErrorCode) {
	o := m.objects[k]
	switch {
	case o == nil:
		m.must("get of "+k, code, wire.ErrObjectNotFound)
	case code == wire.ErrObjectNotFound && o.complete && !m.protected(k, o):
		delete(m.objects, k)
	case !o.complete:
		m.must("get of "+k, code, wire.ErrReplicaIsNotReady)
	default:
		m.must("get of "+k, code, wire.OK)
		o.lease = m.now() + m.leaseMS
		if o.groupLease != "" {
			m.groups[o.groupLease] = max(m.groups[o.groupLease], o.lease-m.leaseMS/2)
		}
		for _, r := range list.Replicas {
			if r.Size != o.size || r.Status != wire.StatusComplete {
				m.Fatalf("get of %s: %+v, its size is %d", k, r, o.size)
			}
			m.claims = append(m.claims, claim{addr: r.Address, size: o.size, until: o.lease, what: "reader of " + k})
		}
	}
}

func (m *model) doExist(k string) {
	o := m.objects[k]
	yes := m.exists(k)
	switch {
	case o == nil, !o.complete:
		if yes {
			m.Fatalf("%s exists, but should not", k)
		}
	case yes:
		o.probe = m.now() + m.leaseMS
		if m.probes == probeUpstream {
			o.lease = max(o.lease, o.probe)
		}
	case m.protected(k, o):
		m.Fatalf("%s does not exist, but is protected", k)
	default:
		delete(m.objects, k)
	}
}

// protected objects must not be evicted now.
func (m *model) protected(k string, o *modelObject) bool {
	now := m.now()
	return o.hard || o.lease > now || !o.complete || o.copying || o.softUntil > now && !m.cfg.EvictSoftPinned ||
		o.groupLease != "" && m.groups[o.groupLease] > now
}

func (m *model) doRemove(k string, force bool) {
	o := m.objects[k]
	now := m.now()
	code := m.del(k, force)
	switch {
	case o == nil:
		m.must("remove of "+k, code, wire.ErrObjectNotFound)
		return
	case code == wire.ErrObjectNotFound && o.complete && !m.protected(k, o):
	case !force && (o.lease > now || o.probe > now && m.probes != probeNone):
		m.must("remove of "+k, code, wire.ErrObjectHasLease)
		return
	case !force && code == wire.ErrObjectHasLease && o.groupLease != "":
		return // another member was read
	case !o.complete || o.copying:
		if code != wire.ErrReplicaIsNotReady && code != wire.ErrObjectHasReplicationTask {
			m.Fatalf("remove of %s while it is written: %v", k, code)
		}
		return
	default:
		m.must("remove of "+k, code, wire.OK)
	}
	delete(m.objects, k)
}

// compare looks at every key without touching it.
func (m *model) compare() {
	m.check()
	now := m.now()
	m.claims = slices.DeleteFunc(m.claims, func(c claim) bool { return c.until <= now })
	for i := range modelKeys {
		k := fmt.Sprintf("k%d", i)
		o := m.objects[k]
		list, code := m.look(k)
		switch {
		case o == nil:
			m.must("look at "+k, code, wire.ErrObjectNotFound)
		case !o.complete:
			m.must("look at "+k, code, wire.ErrReplicaIsNotReady)
		case code == wire.ErrObjectNotFound && !m.protected(k, o):
			delete(m.objects, k) // evicted
		case code != wire.OK:
			m.Fatalf("look at %s: %v (%+v)", k, code, *o)
		default:
			for _, r := range list.Replicas {
				if r.Size != o.size {
					m.Fatalf("%s has %d bytes, want %d", k, r.Size, o.size)
				}
			}
		}
	}
}
