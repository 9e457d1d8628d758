package master

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/plugins/wasm"
)

// WebAssembly modules that mean harm, in a store under load: nothing that is leased, pinned or in flight goes, puts find
// room, accounts agree, and the status says what happened.
func TestHostileGuests(t *testing.T) {
	code := filepath.Join(t.TempDir(), "code")
	const quarantined = string(eviction.GuestQuarantined)
	for name, want := range map[string]struct{ fault, state string }{ // "": any
		"spin":         {"out_of_fuel", quarantined},
		"spin_victims": {"out_of_fuel", quarantined},
		"recurse":      {"out_of_fuel", quarantined},
		"grab_memory":  {"", ""},
		"trap":         {"trap", quarantined},
		"too_many":     {"bad_return", quarantined},
		"unknown":      {"strikes", ""},
		"removed":      {"strikes", ""},
		"duplicate":    {"strikes", ""},
		"leased":       {"", "running"},
		"none":         {"", "running"},
		"moody":        {"", "running"},
	} {
		t.Run(name, func(t *testing.T) {
			c := wasm.DefaultConfig()
			c.Module, c.CacheDir = filepath.Join("..", "..", "plugins", "wasm", "testdata", name+".wasm"), code
			f, err := wasm.Open(t.Context(), c, nil)
			if err != nil {
				t.Fatal(err)
			}
			s := newStore(t, func(o *Options) {
				o.Config.LeaseTTL, o.Config.ClientTTL = time.Hour, time.Hour
				o.Policies = map[string]Policy{anyTenant: {Name: name, Factory: f, Guard: "off"}}
			})
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			for n := range 2 {
				s.mount(n, mib, clientA)
			}
			const kept = 8
			for i := range kept {
				s.put(fmt.Sprintf("leased%d", i), 1024)
				if _, code := s.get(fmt.Sprintf("leased%d", i)); code != wire.OK {
					t.Fatal(code)
				}
				s.put(fmt.Sprintf("pinned%d", i), 1024, withHardPin)
				if _, code := s.start(clientA, fmt.Sprintf("flying%d", i), 1024); code != wire.OK {
					t.Fatal(code)
				}
			}
			// How often a guest is asked, and how much of its answer is wrong, depends on how the machine runs the two.
			answered := func() bool {
				d := s.Policies()[0]
				return strings.Contains(d.Fault, want.fault) && (want.state == "" || d.State == want.state) && (name != "leased" || d.Refused["leased"] > 0)
			}
			var stored, full atomic.Int64
			var wg sync.WaitGroup
			for w := range 3 {
				wg.Go(func() {
					for i := 0; i < 250 || i < 10_000 && !answered(); i++ {
						s.clock.Add(10)
						key := fmt.Sprintf("w%d-%d", w, i)
						switch _, code := s.start(clientB, key, 30_000); code {
						case wire.OK:
							stored.Add(1)
							s.end(clientB, key)
						case wire.ErrNoAvailableHandle:
							full.Add(1)
						default:
							t.Errorf("put: %v", code)
						}
						if i%3 == 0 {
							s.exists(fmt.Sprintf("w%d-%d", w, i/2))
						}
						if i%7 == 0 {
							s.del(fmt.Sprintf("w%d-%d", w, i-5), true)
						}
					}
				})
			}
			wg.Wait()
			if stored.Load() < 20*full.Load() || s.Counters().EvictedKeys.Load() == 0 {
				t.Errorf("%d puts found room, %d did not, %d objects were evicted", stored.Load(), full.Load(), s.Counters().EvictedKeys.Load())
			}
			for i := range kept {
				if d, code := s.DescribeKey("default", fmt.Sprintf("leased%d", i)); code != wire.OK || d.LeaseMS <= s.now() {
					t.Errorf("leased%d: %v %+v", i, code, d)
				}
				if !s.there(fmt.Sprintf("pinned%d", i)) {
					t.Errorf("pinned%d is gone", i)
				}
				if code := s.end(clientA, fmt.Sprintf("flying%d", i)); code != wire.OK {
					t.Errorf("flying%d: %v", i, code)
				}
			}
			// A guest that fails while it is filled is the master's business, later its policy deals with it.
			d := s.Policies()[0]
			if d.Policy != name || !strings.Contains(d.Fault, want.fault) || want.state == "running" && d.Fault != "" {
				t.Errorf("%s: last fault %q, want kind %q", d.Policy, d.Fault, want.fault)
			}
			if name == "leased" && d.Refused["leased"] == 0 {
				t.Error("no leased victim was refused")
			}
			if want.state != "" && d.State != want.state {
				t.Errorf("the domain is %s, want %s", d.State, want.state)
			}
			if d.Fallback != (d.State != "running") {
				t.Errorf("fallback %v in state %s", d.Fallback, d.State)
			}
			if g := d.Supervision; g != nil && (string(g.State) != d.State || g.Questions == 0 && g.Events == 0) {
				t.Errorf("the domain is %s, its guest %+v", d.State, g)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if err := s.Close(ctx); err != nil {
				t.Fatal(err)
			}
			s.check()
		})
	}
}

// Modules that cannot start, offered to a store under load: the policy in force stays and serves, and the error says
// what is wrong.
func TestGuestsThatDoNotStartUnderLoad(t *testing.T) {
	s := newStore(t, func(o *Options) {
		o.Clock = nil
		o.Config.LeaseTTL, o.Config.ClientTTL = time.Millisecond, time.Hour
		o.Policies = policies("lru")
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.mount(0, mib, clientA)
	var stop atomic.Bool
	var stored atomic.Int64
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				key := fmt.Sprintf("w%d-%d", w, i)
				if _, code := s.start(clientA, key, 30_000); code != wire.OK {
					t.Errorf("put: %v", code)
					return
				}
				s.end(clientA, key)
				stored.Add(1)
			}
		})
	}
	for name, want := range map[string]string{
		"start_spin":        "start: out_of_fuel",
		"init_spin":         "policy_init: out_of_fuel",
		"init_recurse":      "policy_init: stack_overflow",
		"init_refuses":      "refused to start with code 7",
		"buffer_outside":    "policy_buffer: bad_buffer",
		"buffer_misaligned": "is not a multiple of 8",
	} {
		before := stored.Load()
		waitFor(t, func() bool { return stored.Load() > before+10 })
		err := s.SetPolicy(anyTenant, Policy{Name: name, Factory: openGuest(t, filepath.Join("..", "..", "plugins", "wasm", "testdata", name+".wasm"))})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "the old policy stays") {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if d := s.Policies()[0]; d.Policy != "lru" || d.State != "running" || d.Faults != 0 {
			t.Errorf("after %s: %s is %s with %d faults", name, d.Policy, d.State, d.Faults)
		}
	}
	before := stored.Load()
	waitFor(t, func() bool { return stored.Load() > before+10 })
	stop.Store(true)
	wg.Wait()
	if s.Counters().EvictedKeys.Load() == 0 {
		t.Error("nothing was evicted")
	}
}
