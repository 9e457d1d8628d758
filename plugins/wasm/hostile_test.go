package wasm

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/evictiontest"
)

func spec(handles uint32) eviction.Spec {
	return eviction.Spec{Capacity: uint64(handles) * 512, MaxHandles: handles, Seed: 42, Tenant: eviction.AnyTenant, BatchMax: 256}
}

// Each guest misbehaves in its way while a small store puts, gets and evicts. Host checks that every victim is
// one that may go and that there always is one.
func TestHostileGuests(t *testing.T) {
	for name, want := range map[string]struct {
		kind  FaultKind // "": no fault
		state eviction.GuestState
		check func(t *testing.T, s eviction.Supervision)
	}{
		"spin":         {FaultFuel, eviction.GuestQuarantined, nil},
		"spin_victims": {FaultFuel, eviction.GuestQuarantined, nil},
		"log_spin":     {FaultFuel, eviction.GuestQuarantined, nil},
		"trap":         {FaultTrap, eviction.GuestQuarantined, nil},
		"trap_late":    {FaultTrap, eviction.GuestQuarantined, nil},
		"too_many":     {FaultReturn, eviction.GuestQuarantined, nil},
		"negative":     {FaultReturn, eviction.GuestQuarantined, nil},
		"exit":         {FaultExit, eviction.GuestQuarantined, nil},
		"log_outside":  {FaultBuffer, eviction.GuestQuarantined, nil},
		"unknown": {FaultStrikes, eviction.GuestQuarantined, func(t *testing.T, s eviction.Supervision) {
			if s.Strikes["unknown"] < maxFaults*maxStrikes {
				t.Errorf("%d strikes for unknown victims", s.Strikes["unknown"])
			}
		}},
		"removed": {FaultStrikes, eviction.GuestQuarantined, nil},
		"duplicate": {FaultStrikes, eviction.GuestQuarantined, func(t *testing.T, s eviction.Supervision) {
			if s.Strikes["duplicate"] == 0 {
				t.Error("no strikes for duplicates")
			}
		}},
		"leased": {"", eviction.GuestRunning, nil},
		"none":   {"", eviction.GuestRunning, nil},
		"moody":  {"", eviction.GuestRunning, nil},
		"chatty": {"", eviction.GuestRunning, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			f := open(t, config(t, name), slog.New(slog.NewTextHandler(&log, nil)))
			h := evictiontest.NewHost(t, f, spec(200))
			defer h.P.Close()
			h.Work(1, 6000, nil) // about a minute of now_ms
			s := h.P.(eviction.Supervised).Supervision()
			if s.State != want.state {
				t.Errorf("state %s, want %s; last fault: %s", s.State, want.state, s.Fault)
			}
			total := uint64(0)
			for k, n := range s.Faults {
				if total += n; n > 0 && k != string(want.kind) {
					t.Errorf("%d faults of kind %s: %s", n, k, s.Fault)
				}
			}
			if want.kind == "" {
				if total != 0 || s.Instances != 1 {
					t.Errorf("%d faults, %d instances: %s", total, s.Instances, s.Fault)
				}
				if name == "none" && (s.Fallbacks == 0 || s.Questions == 0) {
					t.Errorf("%d victims of %d questions came from the host", s.Fallbacks, s.Questions)
				}
			} else {
				if total != maxFaults || s.Instances != maxFaults {
					t.Errorf("%d faults and %d instances, want %d of each", total, s.Instances, maxFaults)
				}
				if !strings.Contains(s.Fault, string(want.kind)) || s.FaultMS == 0 {
					t.Errorf("status says %q at %d", s.Fault, s.FaultMS)
				}
				if text := log.String(); strings.Count(text, "guest failed; the built-in order serves") != maxFaults-1 || !strings.Contains(text, "stays off until") || !strings.Contains(text, "kind="+string(want.kind)) {
					t.Errorf("log:\n%s", text)
				}
				if s.Fallbacks == 0 {
					t.Error("no victim came from the host")
				}
			}
			// No call spent more than its budget: a batch of 256 at most, or a question for some.
			if most := (s.Batches + s.Questions) * (callFuel + 257*1000); s.Fuel > most+s.Instances*initFuel {
				t.Errorf("%d units in %d calls", s.Fuel, s.Batches+s.Questions)
			}
			if limit := f.memoryLimit(200) + 60<<20; s.MemoryBytes > limit {
				t.Errorf("%d bytes of memory, limit %d", s.MemoryBytes, limit)
			}
			if want.check != nil {
				want.check(t, s)
			}
		})
	}
}

// A call pays 8,192 units a page, so a hungry guest runs out of fuel; the budget for RESTORE lets it have its limit.
func TestHungryGuest(t *testing.T) {
	f := guest(t, "grab_memory")
	h := evictiontest.NewHost(t, f, spec(200))
	defer h.P.Close()
	h.Work(1, 3000, nil)
	s := status(h.P)
	if s.Faults["out_of_fuel"] == 0 {
		t.Errorf("memory was for nothing: %v", s.Faults)
	}
	if limit := f.memoryLimit(200) + 60<<20; s.MemoryBytes > limit {
		t.Errorf("%d bytes of memory, limit %d", s.MemoryBytes, limit)
	}
}

// A guest that wants all the memory there is gets what the limit says, if it can pay for the pages.
func TestMemoryLimit(t *testing.T) {
	c := config(t, "grab_memory")
	c.MemoryLimit = 1 << 20
	c.FuelPerEvent = 1_000_000
	f := open(t, c, nil)
	p := instanceOf(t, f, spec(10)).(*policy)
	if err := p.Apply([]eviction.Event{{Kind: eviction.Insert, Handle: 1, Size: 1}, {Kind: eviction.Tick, NowMS: 1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Victims(nil, evictiontest.Any(1)); err != nil {
		t.Fatal(err)
	}
	if p.guest == nil || p.guest.mem.Size() != 1<<20 {
		t.Fatalf("the guest has not got exactly its limit: %s", p.told.Fault)
	}
	c = config(t, "memory_min")
	c.MemoryLimit = 1 << 20
	if _, err := open(t, c, nil).New(spec(10)); err == nil || !strings.Contains(err.Error(), "memory_limit") {
		t.Errorf("a guest that wants 256 MiB from the start: %v", err)
	}
}

// What New reports: the guest never runs.
func TestGuestsThatDoNotStart(t *testing.T) {
	for name, want := range map[string]string{
		"start_spin":        "start: out_of_fuel: used up its budget of 50000000 units",
		"init_spin":         "policy_init: out_of_fuel",
		"init_recurse":      "policy_init: stack_overflow",
		"init_refuses":      "policy_init: init_refused: the guest refused to start with code 7",
		"features":          "mooncake_eviction_v1: bad_return: the guest needs features 0x4",
		"buffer_outside":    "policy_buffer: bad_buffer: events buffer: 16384 bytes at 2147483632 do not fit",
		"buffer_misaligned": "policy_buffer: bad_buffer: events buffer: address 1028 is not a multiple of 8",
	} {
		t.Run(name, func(t *testing.T) {
			p, err := guest(t, name).New(spec(10))
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("New = %v, want %q", err, want)
			}
			if p != nil {
				t.Error("New returned a policy beside its error")
			}
		})
	}
}

// An instance for many objects has arrays to fill: its start has fuel for each.
func TestStartBudgetGrowsWithTheObjects(t *testing.T) {
	f := guest(t, "init_spin")
	for handles, want := range map[uint32]string{1000: " 50000000 units", 1_000_000: " 64000000 units"} {
		if _, err := f.New(spec(handles)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d objects: %v, want%s", handles, err, want)
		}
	}
}

// The guest's lines: not too many of them, on one line each, without control characters.
func TestGuestLog(t *testing.T) {
	var log bytes.Buffer
	f := open(t, config(t, "chatty"), slog.New(slog.NewTextHandler(&log, nil)))
	h := evictiontest.NewHost(t, f, spec(50))
	defer h.P.Close()
	h.Work(1, 3000, nil)
	now := h.P.(*policy).order.Now
	n := strings.Count(log.String(), "I am  [31mred and two lines")
	if most := int(logLines * (now/logWindow + 1)); n == 0 || n > most || !strings.Contains(log.String(), "lines_left_out=") {
		t.Errorf("%d lines in %d ms, want at most %d; log begins:\n%.500s", n, now, most, log.String())
	}
	if i := strings.IndexFunc(log.String(), func(r rune) bool { return r < ' ' && r != '\n' }); i >= 0 {
		t.Errorf("a control character got into the log at %d", i)
	}
}

// Recursion without end uses up the fuel of a call; with that of a start, see above, the stack's ceiling comes first.
func TestEndlessRecursion(t *testing.T) {
	h := evictiontest.NewHost(t, guest(t, "recurse"), spec(200))
	defer h.P.Close()
	h.Work(1, 3000, nil)
	s := status(h.P)
	if s.State != eviction.GuestQuarantined || s.Faults["out_of_fuel"] != maxFaults {
		t.Errorf("%s, %v", s.State, s.Faults)
	}
}
