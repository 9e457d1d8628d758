package master

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/mooncake-agent/mooncake/eviction"
)

func TestRecordSizes(t *testing.T) {
	if n := unsafe.Sizeof(object{}); n != 128 {
		t.Errorf("an object takes %d bytes, want 128", n)
	}
	if n := unsafe.Sizeof(replica{}); n != 32 {
		t.Errorf("a replica takes %d bytes, want 32", n)
	}
}

func TestArena(t *testing.T) {
	var a arena
	r := rand.New(rand.NewPCG(1, 2))
	type entry struct {
		at  uint32
		key string
	}
	var live []entry
	for i := range 20000 {
		if len(live) > 0 && r.IntN(3) == 0 {
			j := r.IntN(len(live))
			a.remove(live[j].at)
			live[j] = live[len(live)-1]
			live = live[:len(live)-1]
			continue
		}
		n := r.IntN(300)
		if r.IntN(50) == 0 {
			n = r.IntN(40000)
		}
		key := fmt.Sprintf("%d:", i) + strings.Repeat("x", n)
		at, ok := a.add(key)
		if !ok {
			t.Fatal("the arena is full")
		}
		live = append(live, entry{at, key})
	}
	for _, e := range live {
		if got := string(a.get(e.at, uint32(len(e.key)))); got != e.key {
			t.Fatalf("got %.40q, want %.40q", got, e.key)
		}
	}
	for n := range 20000 {
		class, size := arenaClassOf(n)
		if size < n || class >= arenaClasses || n > 16 && n <= largestSlot && size > n+n/4+smallStep {
			t.Fatalf("%d bytes get a slot of %d in class %d", n, size, class)
		}
	}
}

func TestIndex(t *testing.T) {
	var x index
	r := rand.New(rand.NewPCG(3, 4))
	want := map[uint32]uint64{}
	next := uint32(1)
	find := func(hash uint64, object uint32) bool {
		if len(x.slots) == 0 {
			return false
		}
		mask := uint32(len(x.slots) - 1)
		for i := uint32(hash) & mask; x.slots[i].object != 0; i = (i + 1) & mask {
			if x.slots[i].object == object {
				return true
			}
		}
		return false
	}
	for step := range 60000 {
		grow := step < 20000 || step > 40000 && step < 45000
		if len(want) == 0 || r.IntN(10) < 7 == grow {
			h := uint64(r.IntN(500)) << 3 // many collisions
			if r.IntN(2) == 0 {
				h = r.Uint64()
			}
			x.insert(h, next)
			want[next] = h
			next++
			continue
		}
		for o, h := range want {
			x.remove(h, o)
			delete(want, o)
			break
		}
	}
	if x.used != len(want) {
		t.Errorf("%d in use, want %d", x.used, len(want))
	}
	for o, h := range want {
		if !find(h, o) {
			t.Fatalf("object %d is lost", o)
		}
	}
	for o, h := range want {
		x.remove(h, o)
	}
	if x.used != 0 || len(x.slots) > 64 {
		t.Errorf("%d slots for nothing", len(x.slots))
	}
}

func TestHostLRU(t *testing.T) {
	var l hostLRU
	l.grow(6)
	for h := eviction.Handle(1); h <= 6; h++ {
		l.apply(&eviction.Event{Kind: eviction.Insert, Handle: h})
	}
	order := func(place uint8) string { return fmt.Sprint(l.victims(nil, place, 10)) }
	expect := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	expect("inserted", order(lruMain), "[1 2 3 4 5 6]")
	l.apply(&eviction.Event{Kind: eviction.Access, Handle: 2})
	l.apply(&eviction.Event{Kind: eviction.Remove, Handle: 4})
	l.apply(&eviction.Event{Kind: eviction.Pin, Handle: 5, Flags: eviction.FlagSoftPin})
	expect("used, removed, pinned", order(lruMain), "[1 3 6 2]")
	expect("pinned", order(lruSoft), "[5]")
	l.park(1, false, 100)
	l.park(3, false, 50)
	l.park(6, true, 70)
	expect("after refusals", order(lruMain), "[2]")
	expect("refused for a probe", order(lruProbed), "[6]")
	l.unpark(49)
	expect("before the first comes back", order(lruMain), "[2]")
	l.apply(&eviction.Event{Kind: eviction.Access, Handle: 6})
	expect("a read ends a refusal", order(lruMain), "[2 6]")
	l.unpark(100)
	expect("they come back as the oldest", order(lruMain), "[3 1 2 6]")
	l.apply(&eviction.Event{Kind: eviction.Unpin, Handle: 5})
	expect("unpinned", order(lruMain), "[3 1 2 6 5]")
	var all []eviction.Handle
	all = l.order(all)
	expect("all", fmt.Sprint(all), "[3 1 2 6 5]")
	l.apply(&eviction.Event{Kind: eviction.Access, Handle: 99}) // not known: ignored
	if l.size[lruMain] != 5 {
		t.Errorf("counts %v", l.size)
	}
}

func TestRoundUpAgreesWithTheAllocator(t *testing.T) {
	g, err := newSegment(newStore(t, nil).segmentOf(0, 1<<31), clientA)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint64{1, 7, 8, 10, 15, 16, 17, 100, 200, 1000, 4096, 5000, mib, mib + 1, 3*mib - 1, 1 << 30} {
		if got, want := roundUp(n), g.space.Rounded(n); got != want {
			t.Errorf("%d bytes: %d, the allocator takes %d", n, got, want)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"cluster_id":                    func(c *Config) { c.ClusterID = "a/b" },
		"default_kv_soft_pin_ttl":       func(c *Config) { c.SoftPinTTL = c.MaxSoftPinTTL + 1 },
		"eviction_ratio":                func(c *Config) { c.EvictionRatio = 1.5 },
		"eviction_high_watermark_ratio": func(c *Config) { c.Watermark = -0.1 },
		"client_ttl":                    func(c *Config) { c.ClientTTL = 0 },
		"client_suspect_ttl":            func(c *Config) { c.ClientSuspectTTL = c.ClientTTL + 1 },
		"offloading_queue_limit":        func(c *Config) { c.Offload, c.OffloadQueue = true, 0 },
		"promotion_admission_threshold": func(c *Config) { c.Promotion, c.PromoteAfter = true, 256 },
		"probe_lease":                   func(c *Config) { c.ProbeLease = "some" },
		"eviction_mode":                 func(c *Config) { c.EvictionMode = "x" },
		"memory_allocator":              func(c *Config) { c.Allocator = "x" },
		"allocation_strategy":           func(c *Config) { c.Strategy = "x" },
		"preferred_segment_full":        func(c *Config) { c.PreferredFull = "x" },
		"upsert_in_place":               func(c *Config) { c.UpsertInPlace = "x" },
		"dynamic_replication_mode":      func(c *Config) { c.DynamicCopies = "enforce" },
	} {
		c := DefaultConfig()
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name+": ") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := New(Options{Config: c}); err == nil {
			t.Errorf("New with a bad %s", name)
		}
	}
}
