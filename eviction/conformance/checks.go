package conformance

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/mooncake-agent/mooncake/eviction"
)

// Options adapt the suite to what a policy promises beyond the contract.
type Options struct {
	// BytesPerKey is the greatest MemoryBytes() / MaxHandles at 100,000 handles; 0 does not check.
	BytesPerKey float64
	// ExactRestore says that a new instance filled by RESTORE goes on exactly like the old one.
	ExactRestore bool
	// Foreign policies (guests, other processes) have allocations and memory of their own: the checks of
	// Go's heap are left out.
	Foreign bool
	// Runs is how many instances are driven by chance; 0 is 60. Instances that are processes take their time to start.
	Runs int
}

// Spec is a domain with room for handles objects of 512 bytes.
func Spec(handles uint32) eviction.Spec {
	return eviction.Spec{Capacity: uint64(handles) * 512, MaxHandles: handles, BlockTokens: 16, Seed: 42, Tenant: eviction.AnyTenant, BatchMax: 256}
}

// Check is one property of the contract.
type Check struct {
	Name string
	Run  func(t T, f eviction.Factory, o Options)
}

// Checks are the properties that every policy has to have, but for [Model], which the caller drives.
func Checks() []Check {
	plain := func(run func(T, eviction.Factory)) func(T, eviction.Factory, Options) {
		return func(t T, f eviction.Factory, _ Options) { run(t, f) }
	}
	return []Check{
		{"bad spec is refused", plain(badSpec)},
		{"deterministic and Victims changes nothing", plain(determinism)},
		{"refusals are honoured", plain(refusals)},
		{"everything can be evicted", plain(drain)},
		{"late and unknown events are ignored", plain(late)},
		{"a bad handle is an error", plain(badHandle)},
		{"swap by RESTORE", swap},
		{"abilities", plain(abilities)},
		{"memory", memory},
	}
}

func badSpec(t T, f eviction.Factory) {
	for _, s := range []eviction.Spec{{Capacity: 1}, {MaxHandles: 1}} {
		if _, err := f.New(s); err == nil {
			t.Errorf("New(%+v) made a policy", s)
		}
	}
}

func closePolicy(t T, h *Host) {
	if err := h.P.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

// determinism runs the same work three times: twice alike, once with many more questions.
func determinism(t T, f eviction.Factory) {
	run := func(curious bool) (log []eviction.Handle) {
		h := NewHost(t, f, Spec(200))
		defer closePolicy(t, h)
		h.Work(1, 1500, func(step int, r *rand.Rand) {
			if curious {
				for _, n := range []int{1, 3, 1000} {
					if a, b := h.Victims(Any(n)), h.Victims(Any(n)); !slices.Equal(a, b) {
						t.Fatalf("step %d: two questions in a row were answered %v and %v", step, a, b)
					}
				}
			}
			log = append(log, h.Victims(Any(5))...)
		})
		return log
	}
	first := run(false)
	if second := run(false); !slices.Equal(first, second) {
		t.Error("the same events were answered differently by a second instance")
	}
	if curious := run(true); !slices.Equal(first, curious) {
		t.Error("asking for victims more often changed later answers")
	}
}

func refusals(t T, f eviction.Factory) {
	const n = 40
	h := NewHost(t, f, Spec(n))
	defer closePolicy(t, h)
	for i := range n {
		h.Put([]uint64{uint64(i + 1)}, 512, 1, 1, 0)
	}
	for i := range 2 * n {
		h.Get(h.Nth(i * i))
	}
	codes := []eviction.Code{eviction.CodeLeased, eviction.CodePinned, eviction.CodeBusy, eviction.CodeUsed, eviction.CodeNotThere}
	refused := map[eviction.Handle]int{}
	for i := range n {
		v := h.Victims(Any(1))
		if len(v) != 1 {
			t.Fatalf("answer %d named nothing although %d objects were never refused", i, n-i)
		}
		if at, again := refused[v[0]]; again {
			t.Fatalf("answer %d named handle %d, refused after answer %d, before %d others", i, v[0], at, n-i)
		}
		refused[v[0]] = i
		h.Reject(v[0], codes[i%len(codes)])
	}
	if got := h.Victims(Any(n)); len(got) == 0 {
		t.Error("nothing is named once everything was refused")
	}
}

// drain checks that a policy forgets nothing: whatever was put can be evicted, pins included at the end.
func drain(t T, f eviction.Factory) {
	h := NewHost(t, f, Spec(150))
	defer closePolicy(t, h)
	h.Work(3, 800, nil)
	var soft []eviction.Handle
	for i := range 20 {
		hd := h.Nth(i * 37)
		fl := []eviction.Flags{eviction.FlagSoftPin, eviction.FlagHardPin}[i%2]
		h.live[hd].flags = fl
		h.Send(eviction.Pin, hd, func(e *eviction.Event) { e.Flags, e.Size = fl, 0 })
		if fl == eviction.FlagSoftPin {
			soft = append(soft, hd)
		}
	}
	take := func(flags eviction.NeedFlags) {
		for {
			n := Any(7)
			n.Flags = flags
			vs := h.Victims(n)
			if len(vs) == 0 {
				return
			}
			for _, v := range vs {
				h.Remove(v, eviction.CodeEvicted)
			}
		}
	}
	left := func() (free, soft, hard int) {
		for _, o := range h.live {
			switch {
			case o.flags&eviction.FlagHardPin != 0:
				hard++
			case o.flags != 0:
				soft++
			default:
				free++
			}
		}
		return
	}
	take(0)
	if free, s, _ := left(); free != 0 || (s == 0 && len(soft) > 0) {
		t.Errorf("after evicting all there is: %d unpinned objects left, %d soft-pinned; want 0 and some", free, s)
	}
	take(eviction.NeedSoftPins)
	if free, s, hard := left(); free+s != 0 || hard == 0 {
		t.Errorf("after evicting soft pins too: %d unpinned, %d soft, %d hard-pinned left; want 0, 0, some", free, s, hard)
	}
}

func late(t T, f eviction.Factory) {
	h := NewHost(t, f, Spec(10))
	defer closePolicy(t, h)
	h.Put([]uint64{1, 2, 3}, 512, 1, 1, 0)
	gone := h.Nth(1)
	h.Remove(gone, eviction.CodeRemoved)
	before := h.Victims(Any(10))
	for _, k := range []eviction.EventKind{eviction.Access, eviction.Probe, eviction.Remove, eviction.Reject, eviction.Pin, eviction.Unpin, eviction.Moved, 77, 255} {
		h.Send(k, gone, func(e *eviction.Event) { e.Flags = 0xff })
	}
	h.Send(200, h.Nth(0), nil)
	if after := h.Victims(Any(10)); !slices.Equal(before, after) {
		t.Errorf("events about a removed handle changed the answer from %v to %v", before, after)
	}
	h.Put([]uint64{4}, 512, 1, 1, 0) // takes the handle again
	if got := h.Victims(Any(10)); len(got) != 3 {
		t.Errorf("%d of 3 objects can be evicted", len(got))
	}
}

func badHandle(t T, f eviction.Factory) {
	for name, e := range map[string]eviction.Event{
		"INSERT 0":       {Kind: eviction.Insert, Handle: 0, Size: 1},
		"INSERT max + 1": {Kind: eviction.Insert, Handle: 11, Size: 1},
		"ACCESS huge":    {Kind: eviction.Access, Handle: 1 << 31},
	} {
		h := NewHost(t, f, Spec(10))
		if err := h.P.Apply([]eviction.Event{e}); !errors.Is(err, eviction.ErrBadEvent) {
			t.Errorf("%s: Apply = %v, want an error that wraps ErrBadEvent", name, err)
		}
		closePolicy(t, h)
	}
}

func swap(t T, f eviction.Factory, o Options) {
	h := NewHost(t, f, Spec(100))
	defer closePolicy(t, h)
	h.Work(9, 600, nil)
	want := h.Victims(Any(1000))
	h.Swap(f)
	got := h.Victims(Any(1000))
	if o.ExactRestore && !slices.Equal(want, got) {
		t.Errorf("order after RESTORE\n got %v\nwant %v", got, want)
	}
	sorted := slices.Sorted(slices.Values(got))
	if all := slices.Sorted(slices.Values(h.Residents())); !slices.Equal(sorted, all) {
		t.Errorf("after RESTORE %d of %d objects can be evicted", len(got), len(all))
	}
	h.Work(10, 300, nil)
}

func abilities(t T, f eviction.Factory) {
	h := NewHost(t, f, Spec(100))
	defer closePolicy(t, h)
	h.Work(5, 600, nil)
	if s, ok := h.P.(eviction.Statser); ok {
		var into map[string]any
		if raw, err := s.Stats(); err != nil || json.Unmarshal(raw, &into) != nil {
			t.Errorf("Stats() = %q, %v: not a JSON object", raw, err)
		}
	}
	if a, ok := h.P.(eviction.Admitter); ok {
		before := h.Victims(Any(50))
		events := make([]eviction.Event, 9)
		for i := range events {
			events[i] = eviction.Event{Kind: eviction.Insert, KeyHash: uint64(1<<40 + i), Depth: uint32(i), Added: 9, Size: 512, NowMS: h.now}
		}
		var a1, a2 [9]bool
		if err := errors.Join(a.Admit(events, a1[:]), a.Admit(events, a2[:])); err != nil || a1 != a2 {
			t.Errorf("Admit twice: %v, %v, error %v", a1, a2, err)
		}
		if after := h.Victims(Any(50)); !slices.Equal(before, after) {
			t.Error("Admit changed the answer of Victims")
		}
	}
	if s, ok := h.P.(eviction.StateSaver); ok {
		saveAndLoad(t, f, s)
	}
}

func saveAndLoad(t T, f eviction.Factory, old eviction.StateSaver) {
	state, err := old.Save([]byte("x"))
	if err != nil || len(state) == 0 || state[0] != 'x' || len(state) > eviction.MaxState+1 {
		t.Fatalf("Save appended %d bytes, error %v", len(state)-1, err)
	}
	state = state[1:]
	fresh := func() (*Host, eviction.StateSaver) {
		h := NewHost(t, f, Spec(100))
		return h, h.P.(eviction.StateSaver)
	}
	for name, c := range map[string]struct {
		state []byte
		taken bool
	}{
		"its own":          {state, true},
		"empty":            {nil, false},
		"another's":        {[]byte("LRUSTATE and more of it, long enough to look like something"), false},
		"cut off":          {state[:len(state)-1], false},
		"with an addition": {append(slices.Clone(state), 0), false},
	} {
		h, s := fresh()
		taken, err := s.Load(c.state)
		if err != nil || taken != c.taken {
			t.Errorf("Load of %s state = %v, %v; want %v, nil", name, taken, err, c.taken)
		}
		if again, err := s.Save(nil); taken && (err != nil || !slices.Equal(again, state)) {
			t.Errorf("Load then Save of %s state changed it (error %v)", name, err)
		}
		h.Work(6, 200, nil)
		closePolicy(t, h)
	}
	for i := range state { // damage anywhere must not break the instance
		if len(state) > 4096 && i%97 != 0 {
			continue
		}
		bad := slices.Clone(state)
		bad[i] ^= 0xff
		h, s := fresh()
		if _, err := s.Load(bad); err != nil {
			t.Errorf("Load of state with byte %d flipped: %v", i, err)
		}
		h.Work(6, 20, nil)
		closePolicy(t, h)
	}
}

func memory(t T, f eviction.Factory, o Options) {
	h := NewHost(t, f, Spec(500))
	defer closePolicy(t, h)
	h.Work(11, 2000, nil)
	m, ok := h.P.(eviction.MemoryUser)
	if ok {
		before := m.MemoryBytes()
		h.Work(12, 6000, nil)
		if after := m.MemoryBytes(); after > before+before/10+1024 {
			t.Errorf("memory grew from %d to %d bytes although no more objects were resident", before, after)
		}
	}
	if o.BytesPerKey == 0 {
		return
	}
	const n = 100_000
	big := Filled(t, f, n)
	defer big.Close()
	if m, ok := big.(eviction.MemoryUser); !ok {
		t.Error("a budget of bytes per key is set but the policy has no MemoryBytes")
	} else if got := float64(m.MemoryBytes()) / n; got > o.BytesPerKey {
		t.Errorf("%.1f bytes a key, budget %.1f", got, o.BytesPerKey)
	}
}
