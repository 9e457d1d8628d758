package conformance

import (
	"math/rand/v2"
	"slices"

	"github.com/mooncake-agent/mooncake/eviction"
)

// T is told what is wrong: *testing.T, *rapid.T, or whatever collects findings. Fatalf does not return.
type T interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

type object struct {
	e     eviction.Event // its INSERT
	used  uint64         // when last used, for RESTORE
	flags eviction.Flags // pins in force
}

// Host is a small store: it owns the handles, delivers events as the contract says and checks every answer.
type Host struct {
	t        T
	Spec     eviction.Spec
	P        eviction.Policy
	live     map[eviction.Handle]*object
	byKey    map[uint64]eviction.Handle
	order    []eviction.Handle // resident handles, in no order, for choosing one by number
	free     []eviction.Handle
	gone     []eviction.Handle // removed, for late events
	now, seq uint64
	req      uint32
	batch    []eviction.Event
}

// NewHost makes a policy of f and an empty store around it.
func NewHost(t T, f eviction.Factory, spec eviction.Spec) *Host {
	t.Helper()
	p, err := f.New(spec)
	if err != nil {
		t.Fatalf("New(%+v): %v", spec, err)
	}
	h := &Host{t: t, Spec: spec, P: p, live: map[eviction.Handle]*object{}, byKey: map[uint64]eviction.Handle{}}
	for i := spec.MaxHandles; i > 0; i-- {
		h.free = append(h.free, eviction.Handle(i))
	}
	return h
}

func (h *Host) apply() {
	h.t.Helper()
	if err := h.P.Apply(h.batch); err != nil {
		h.t.Fatalf("Apply(%d events, first %+v): %v", len(h.batch), h.batch[0], err)
	}
	h.batch = h.batch[:0]
}

func (h *Host) event(k eviction.EventKind, hd eviction.Handle) eviction.Event {
	e := eviction.Event{Kind: k, Handle: hd, NowMS: h.now}
	if o := h.live[hd]; o != nil {
		e.KeyHash, e.Size, e.Tenant, e.Segment, e.Group = o.e.KeyHash, o.e.Size, o.e.Tenant, o.e.Segment, o.e.Group
	}
	return e
}

// Send delivers one event about a handle, with the object's own fields filled in.
func (h *Host) Send(k eviction.EventKind, hd eviction.Handle, change func(*eviction.Event)) {
	h.t.Helper()
	e := h.event(k, hd)
	if change != nil {
		change(&e)
	}
	h.batch = append(h.batch, e)
	h.apply()
}

// Free is how many handles are unused.
func (h *Host) Free() int { return len(h.free) }

// Len is how many objects are resident.
func (h *Host) Len() int { return len(h.order) }

// Nth is the resident handle number i, modulo their number.
func (h *Host) Nth(i int) eviction.Handle { return h.order[i%len(h.order)] }

// Put inserts n new blocks as one chain, deepest first. There must be n free handles.
func (h *Host) Put(keys []uint64, size uint64, tenant, segment uint32, flags eviction.Flags) {
	h.t.Helper()
	h.req++
	first := h.free[len(h.free)-len(keys):]
	h.free = h.free[:len(h.free)-len(keys)]
	for i := len(keys) - 1; i >= 0; i-- {
		e := eviction.Event{
			Kind: eviction.Insert, Flags: flags | eviction.FlagTailFirst, Handle: first[i], Depth: uint32(i), Req: h.req,
			Added: uint32(len(keys)), Tenant: tenant, Segment: segment, Size: size, NowMS: h.now, KeyHash: keys[i],
		}
		if i > 0 {
			e.Parent = first[i-1]
		}
		h.seq++
		h.live[first[i]] = &object{e: e, used: h.seq, flags: flags & (eviction.FlagSoftPin | eviction.FlagHardPin)}
		h.byKey[keys[i]] = first[i]
		h.order = append(h.order, first[i])
		h.batch = append(h.batch, e)
	}
	h.apply()
}

// Get reads resident handles as one batch.
func (h *Host) Get(handles ...eviction.Handle) {
	h.t.Helper()
	h.req++
	for _, hd := range handles {
		h.seq++
		h.live[hd].used = h.seq
		e := h.event(eviction.Access, hd)
		e.Req = h.req
		h.batch = append(h.batch, e)
	}
	if len(h.batch) > 0 {
		h.apply()
	}
}

// Remove takes an object out.
func (h *Host) Remove(hd eviction.Handle, code eviction.Code) {
	h.t.Helper()
	e := h.event(eviction.Remove, hd)
	e.Code = code
	delete(h.byKey, h.live[hd].e.KeyHash)
	delete(h.live, hd)
	h.order = slices.DeleteFunc(h.order, func(x eviction.Handle) bool { return x == hd })
	h.batch = append(h.batch, e)
	h.apply()
	h.free = append(h.free, hd)
	h.gone = append(h.gone, hd)
}

// Reject refuses a victim. It is in use, so it counts as used.
func (h *Host) Reject(hd eviction.Handle, code eviction.Code) {
	h.t.Helper()
	if o := h.live[hd]; o != nil {
		h.seq++
		o.used = h.seq
	}
	h.Send(eviction.Reject, hd, func(e *eviction.Event) { e.Code = code })
}

// Victims asks and checks the answer against what is resident.
func (h *Host) Victims(need eviction.Need) []eviction.Handle {
	h.t.Helper()
	const mark = eviction.Handle(4_000_000_000)
	got, err := h.P.Victims([]eviction.Handle{mark}, need)
	if err != nil {
		h.t.Fatalf("Victims(%+v): %v", need, err)
	}
	if len(got) == 0 || got[0] != mark {
		h.t.Fatalf("Victims(%+v) did not append: dst[0] is gone", need)
	}
	got = got[1:]
	if len(got) > need.Max {
		h.t.Fatalf("Victims(%+v) named %d handles", need, len(got))
	}
	seen := map[eviction.Handle]bool{}
	soft := false
	for i, hd := range got {
		o := h.live[hd]
		switch {
		case o == nil:
			h.t.Fatalf("Victims(%+v)[%d] = %d is not resident (removed before: %v)", need, i, hd, slices.Contains(h.gone, hd))
		case seen[hd]:
			h.t.Fatalf("Victims(%+v)[%d] = %d was named before in the same answer", need, i, hd)
		case o.flags&eviction.FlagHardPin != 0:
			h.t.Fatalf("Victims(%+v)[%d] = %d has a hard pin", need, i, hd)
		case o.flags&eviction.FlagSoftPin != 0 && need.Flags&eviction.NeedSoftPins == 0:
			h.t.Fatalf("Victims(%+v)[%d] = %d has a soft pin and soft pins were not allowed", need, i, hd)
		case o.flags&eviction.FlagSoftPin == 0 && soft:
			h.t.Fatalf("Victims(%+v)[%d] = %d has no pin but comes after a soft-pinned one", need, i, hd)
		case need.Tenant != eviction.AnyTenant && o.e.Tenant != need.Tenant:
			h.t.Fatalf("Victims(%+v)[%d] = %d belongs to tenant %d", need, i, hd, o.e.Tenant)
		case need.Segment != 0 && o.e.Segment != 0 && o.e.Segment != need.Segment:
			h.t.Fatalf("Victims(%+v)[%d] = %d is on segment %d", need, i, hd, o.e.Segment)
		}
		seen[hd] = true
		soft = soft || o.flags&eviction.FlagSoftPin != 0
	}
	return got
}

// Any is the question for max handles without further conditions.
func Any(max int) eviction.Need { return eviction.Need{Max: max, Tenant: eviction.AnyTenant} }

// Residents are the resident handles, least recently used first.
func (h *Host) Residents() []eviction.Handle {
	out := slices.Clone(h.order)
	slices.SortFunc(out, func(a, b eviction.Handle) int { return int(int64(h.live[a].used) - int64(h.live[b].used)) })
	return out
}

// Swap fills a new instance by RESTORE, as a policy change does, and goes on with it.
func (h *Host) Swap(f eviction.Factory) {
	h.t.Helper()
	p, err := f.New(h.Spec)
	if err != nil {
		h.t.Fatalf("New: %v", err)
	}
	if err := h.P.Close(); err != nil {
		h.t.Fatalf("Close: %v", err)
	}
	h.P = p
	for _, hd := range h.Residents() {
		e := h.live[hd].e
		e.Kind, e.NowMS, e.Parent = eviction.Restore, h.now, 0
		e.Flags = e.Flags&^(eviction.FlagSoftPin|eviction.FlagHardPin) | h.live[hd].flags
		h.batch = append(h.batch, e)
		if len(h.batch) == 256 {
			h.apply()
		}
	}
	if len(h.batch) > 0 {
		h.apply()
	}
}

// Work is a random but repeatable mixture of chains being put, read again and evicted, from a universe of keys
// about three times what fits. ask is called at every step with a number that is the same in each run.
func (h *Host) Work(seed uint64, steps int, ask func(step int, r *rand.Rand)) {
	h.t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	universe := 3 * h.Spec.MaxHandles / 8
	var keys []uint64
	var hits []eviction.Handle
	for step := range steps {
		h.now += uint64(r.IntN(20))
		chain := uint64(r.IntN(int(universe)+1)) * uint64(r.IntN(4)) / 3
		keys, hits = keys[:0], hits[:0]
		for i := range 1 + r.IntN(8) {
			k := chain<<8 + uint64(i) + 1
			if hd, ok := h.byKey[k]; ok {
				hits = append(hits, hd)
			} else {
				keys = append(keys, k)
				h.Send(eviction.Ghost, 0, func(e *eviction.Event) { e.KeyHash = k })
			}
		}
		slices.Reverse(hits)
		h.Get(hits...)
		for h.Free() < len(keys) {
			vs := h.Victims(Any(1 + r.IntN(4)))
			if len(vs) == 0 {
				h.t.Fatalf("no victim among %d unpinned objects", h.Len())
			}
			for _, v := range vs {
				if r.IntN(16) == 0 {
					h.Reject(v, eviction.CodeLeased)
				} else {
					h.Remove(v, eviction.CodeEvicted)
				}
			}
		}
		if len(keys) > 0 {
			h.Put(keys, h.Spec.Capacity/uint64(h.Spec.MaxHandles), 1, 1+uint32(r.IntN(3)), 0)
		}
		if h.Len() > 0 && r.IntN(12) == 0 {
			h.Remove(h.Nth(r.IntN(1<<20)), eviction.CodeRemoved)
		}
		if ask != nil {
			ask(step, r)
		}
	}
}
