package policy

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/eviction"
)

// domain is a host in little: it keeps the contract and counts what goes wrong.
type domain struct {
	t        *testing.T
	p        eviction.Policy
	resident map[eviction.Handle]bool
	free     []eviction.Handle
	now      uint64
	longest  time.Duration // of one call
	rounds   int
}

const handles = 200

func newDomain(t *testing.T, f *Factory) *domain {
	t.Helper()
	p, err := f.New(eviction.Spec{Capacity: handles * 512, MaxHandles: handles, Tenant: eviction.AnyTenant})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, p) })
	d := &domain{t: t, p: p, resident: map[eviction.Handle]bool{}}
	for h := eviction.Handle(1); h <= handles; h++ {
		d.free = append(d.free, h)
	}
	return d
}

func (d *domain) timed(f func() error) {
	d.t.Helper()
	began := time.Now()
	if err := f(); err != nil {
		d.t.Fatal(err)
	}
	d.longest = max(d.longest, time.Since(began))
}

// round fills the domain and makes room again: every victim must be a resident object, and as many as asked for must come.
func (d *domain) round() {
	d.t.Helper()
	d.rounds++
	var events []eviction.Event
	for _, h := range d.free {
		d.now++
		events = append(events, eviction.Event{Kind: eviction.Insert, Handle: h, Size: 512, NowMS: d.now, KeyHash: uint64(h)})
		d.resident[h] = true
	}
	d.free = d.free[:0]
	d.timed(func() error { return d.p.Apply(events) })
	var victims []eviction.Handle
	d.timed(func() (err error) {
		victims, err = d.p.Victims(nil, eviction.Need{Max: 20, Tenant: eviction.AnyTenant})
		return err
	})
	if len(victims) != 20 {
		d.t.Fatalf("round %d: %d victims, 20 were asked for", d.rounds, len(victims))
	}
	events = events[:0]
	for _, h := range victims {
		if !d.resident[h] {
			d.t.Fatalf("round %d: victim %d is not resident, or named twice", d.rounds, h)
		}
		delete(d.resident, h)
		d.now++
		events = append(events, eviction.Event{Kind: eviction.Remove, Code: eviction.CodeEvicted, Handle: h, Size: 512, NowMS: d.now, KeyHash: uint64(h)})
		d.free = append(d.free, h)
	}
	d.timed(func() error { return d.p.Apply(events) })
}

func (d *domain) supervision() eviction.Supervision {
	return d.p.(eviction.Supervised).Supervision()
}

// until goes on until a condition holds.
func (d *domain) until(what string, ok func(eviction.Supervision) bool) {
	d.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(d.supervision()); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			d.t.Fatalf("never: %s: %+v", what, d.supervision())
		}
		d.round()
	}
}

// Whatever happens to the plugin, under load: each question is answered, with resident objects only, no call takes longer
// than the time for it, and the plugin serves again.
func TestFaultsUnderLoad(t *testing.T) {
	type change func(*Config)
	for name, c := range map[string]struct {
		fault, kind string
		change      change
	}{
		"exits":                    {"exit", faultEnded, nil},
		"panics":                   {"panic", faultEnded, nil},
		"stops":                    {"stop", faultTimeout, nil},
		"hangs in a call":          {"hang", faultTimeout, nil},
		"leaks to its limit":       {"leak", faultEnded, func(c *Config) { c.MemoryLimit = 512 * units.MiB; c.CallTimeout = 30 * time.Second }},
		"answers garbage":          {"garbage", faultAnswer, nil},
		"answers errors":           {"error", faultError, nil},
		"is stopped and not asked": {"", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			conf := configOf(t, faulty)
			conf.CallTimeout = 2 * time.Second
			conf.Config.Config = map[string]any{"fault": c.fault, "after": 50, "once": true}
			if c.change != nil {
				c.change(&conf)
			}
			d := newDomain(t, factory(t, conf))
			d.until("it is asked", func(s eviction.Supervision) bool { return s.Questions > 5 })
			if c.kind == "" {
				d.p.(*policy).guest.Fault(errors.New("reported by somebody else"))
				d.until("it is down", func(eviction.Supervision) bool { return d.p.(*policy).guest == nil })
			} else {
				d.until("the fault", func(s eviction.Supervision) bool { return s.Faults[c.kind] == 1 })
			}
			began := time.Now()
			if s := d.supervision(); s.State != eviction.GuestWaiting || s.Fallbacks == 0 {
				t.Errorf("after the fault: state %s, %d victims of the built-in order: %s", s.State, s.Fallbacks, s.Fault)
			}
			d.until("it serves again", func(s eviction.Supervision) bool { return s.State == eviction.GuestRunning && s.Instances == 2 })
			t.Logf("served again %v after the fault; %d rounds, the longest call took %v", time.Since(began).Round(time.Millisecond), d.rounds, d.longest.Round(time.Millisecond))
			questions := d.supervision().Questions
			d.until("it is asked again", func(s eviction.Supervision) bool { return s.Questions > questions+5 })
			if limit := conf.CallTimeout + 10*time.Second; d.longest > limit {
				t.Errorf("a call took %v", d.longest)
			}
		})
	}
}

// A flood in the log costs lines, not service.
func TestFloodOfLogs(t *testing.T) {
	conf := configOf(t, faulty)
	conf.Config.Config = map[string]any{"fault": "flood", "after": 20}
	f, err := Open(t.Context(), quietEnvironment(), conf)
	if err != nil {
		t.Fatal(err)
	}
	d := newDomain(t, f)
	d.until("lines are kept", func(eviction.Supervision) bool {
		lines := d.p.(*policy).plugin.Logs(1000)
		return len(lines) > 200 && strings.HasPrefix(lines[len(lines)-1].Text, "flood")
	})
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for time.Since(began) < 3*time.Second {
		d.round()
		time.Sleep(10 * time.Millisecond)
	}
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		t.Fatal(err)
	}
	t.Logf("%v of processor time in %v", time.Duration(after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano()), time.Since(began))
	if s := d.supervision(); s.State != eviction.GuestRunning || s.Instances != 1 {
		t.Errorf("state %s, %d instances: %s", s.State, s.Instances, s.Fault)
	}
	if n := len(d.p.(*policy).plugin.Logs(1_000_000)); n > 1000 {
		t.Errorf("%d lines are kept", n)
	}
}

// A plugin that crashes as soon as it runs: the built-in order serves, and the policy is quarantined when the breaker trips.
func TestCrashLoop(t *testing.T) {
	conf := configOf(t, faulty)
	conf.Config.Config = map[string]any{"fault": "exit", "after": 3}
	d := newDomain(t, factory(t, conf))
	d.until("three processes ended", func(s eviction.Supervision) bool { return s.Faults[faultEnded] >= 3 })
	if s := d.supervision(); s.Instances < 3 || s.Fallbacks == 0 {
		t.Errorf("%+v", s)
	}
}

// While it is filled for the first time a policy returns its faults, so that a swap to it fails.
func TestFirstFillFails(t *testing.T) {
	conf := configOf(t, faulty)
	conf.Config.Config = map[string]any{"fault": "error"}
	p, err := factory(t, conf).New(eviction.Spec{Capacity: 1, MaxHandles: 9, Tenant: eviction.AnyTenant})
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, p)
	if err := p.Apply([]eviction.Event{{Kind: eviction.Restore, Handle: 1, Size: 1}}); err == nil || !strings.Contains(err.Error(), "as told") {
		t.Errorf("Apply of RESTORE: %v", err)
	}
}

func TestConfigThatThePluginRefuses(t *testing.T) {
	conf := configOf(t, faulty)
	conf.Config.Config = map[string]any{"no_such_key": 1}
	_, err := factory(t, conf).New(eviction.Spec{Capacity: 1, MaxHandles: 9, Tenant: eviction.AnyTenant})
	if err == nil || !strings.Contains(err.Error(), "no_such_key") {
		t.Errorf("New: %v", err)
	}
}

func TestGrow(t *testing.T) {
	d := newDomain(t, factory(t, configOf(t, example)))
	d.round()
	before, err := d.p.Victims(nil, eviction.Need{Max: 1000, Tenant: eviction.AnyTenant})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.p.(eviction.Grower).Grow(10 * handles); err != nil {
		t.Fatal(err)
	}
	d.now++
	if err := d.p.Apply([]eviction.Event{{Kind: eviction.Insert, Handle: 9 * handles, Size: 1, NowMS: d.now}}); err != nil {
		t.Fatal(err)
	}
	after, err := d.p.Victims(nil, eviction.Need{Max: 1000, Tenant: eviction.AnyTenant})
	if err != nil || len(after) != len(before)+1 || after[len(after)-1] != 9*handles {
		t.Errorf("%d victims before, %d after, %v", len(before), len(after), err)
	}
	if s := d.supervision(); s.Instances != 2 || s.Fallbacks != 0 {
		t.Errorf("%d instances, %d victims of the built-in order", s.Instances, s.Fallbacks)
	}
}
