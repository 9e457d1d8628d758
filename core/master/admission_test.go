package master

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// choosy refuses objects of a size.
type choosy struct {
	eviction.Policy
	asked atomic.Int32
	slow  time.Duration
	last  eviction.Event
}

const unwanted = mib + 1

func (c *choosy) Admit(events []eviction.Event, refuse []bool) error {
	c.asked.Add(1)
	c.last = events[0]
	time.Sleep(c.slow)
	for i := range events {
		refuse[i] = events[i].Size == unwanted
	}
	return nil
}

func choosyStore(t *testing.T, change func(*Policy)) (*store, *choosy) {
	c := &choosy{}
	s := newStore(t, func(o *Options) {
		p := Policy{Name: "choosy", Admission: "on", Factory: eviction.FactoryFunc(func(spec eviction.Spec) (eviction.Policy, error) {
			var err error
			c.Policy, err = policies("lru")[anyTenant].Factory.New(spec)
			return c, err
		})}
		if change != nil {
			change(&p)
		}
		o.Policies = map[string]Policy{anyTenant: p}
	})
	s.mount(0, 16*mib, clientA)
	return s, c
}

func TestAdmission(t *testing.T) {
	s, c := choosyStore(t, nil)
	s.put("first", unwanted)
	s.fill(14)
	if n := c.asked.Load(); n != 0 {
		t.Errorf("asked %d times while there was room", n)
	}
	_, code := s.start(clientA, "big", unwanted)
	s.must("put of what is not wanted", code, wire.ErrNoAvailableHandle)
	if got := s.missing(14); got != "" {
		t.Errorf("evicted for nothing: %s", got)
	}
	if c.last.Kind != eviction.Insert || c.last.KeyHash != eviction.KeyHash("default", "big") || c.last.Size != unwanted {
		t.Errorf("asked about %+v", c.last)
	}
	s.put("n0", mib)
	s.put("n1", mib) // wanted
	if d := s.Policies()[0]; d.Admission != RefusedNoSpace || d.AdmitAsked < 2 || d.AdmitRefused != 1 || d.Evicted == 0 {
		t.Errorf("%+v", d)
	}
	var yes []wire.Result[bool]
	s.BatchExistKey(&wire.KeysRequest{Keys: []string{"big", "other"}, Tenant: "default"}, &yes)
	if d := s.Policies()[0]; d.RefusedAsked != 1 {
		t.Errorf("refused and then asked for: %d", d.RefusedAsked)
	}
	s.check()
}

func TestAdmissionStoredAllTheSame(t *testing.T) {
	s, _ := choosyStore(t, func(p *Policy) { p.Refused = RefusedEvict })
	s.fill(16)
	s.put("big", unwanted)
	if d := s.Policies()[0]; d.Admission != RefusedEvict || d.AdmitRefused != 1 {
		t.Errorf("%+v", d)
	}
	s.check()
}

func TestAdmissionOff(t *testing.T) {
	s, c := choosyStore(t, func(p *Policy) { p.Admission = "" })
	s.fill(16)
	s.put("big", unwanted)
	if c.asked.Load() != 0 || s.Policies()[0].Admission != "off" {
		t.Errorf("asked %d times", c.asked.Load())
	}
}

// An opinion that comes late, or not at all, counts as yes.
func TestAdmissionLate(t *testing.T) {
	s, c := choosyStore(t, nil)
	s.fill(16)
	c.slow = 2 * admitTime
	s.put("big", unwanted)
	if d := s.Policies()[0]; d.AdmitLate != 1 || d.AdmitRefused != 0 {
		t.Errorf("slow: %+v", d)
	}
	c.slow = 0
	d := s.allDomains()[0]
	d.mu.Lock() // somebody else has the domain
	done := make(chan bool)
	go func() {
		e := eviction.Event{Kind: eviction.Insert, Size: unwanted, KeyHash: 1}
		done <- d.admit(&e, s.now())
	}()
	if !<-done {
		t.Error("a busy domain refuses")
	}
	d.mu.Unlock()
	if n := d.count.admitLate.Load(); n != 2 {
		t.Errorf("%d late", n)
	}
}

// With tenants the question is asked where a quota makes the eviction necessary, too.
func TestAdmissionAtTheQuota(t *testing.T) {
	s, c := choosyStore(t, nil)
	s.cfg.MultiTenants = true
	s.must("quota", s.SetTenantQuota("a", 4*mib), wire.OK)
	for i := range 4 {
		s.must("put", s.putAs("a", fmt.Sprintf("k%d", i), mib), wire.OK)
	}
	if c.asked.Load() != 0 {
		t.Error("asked below the quota")
	}
	s.must("put of what is not wanted", s.putAs("a", "big", unwanted), wire.ErrTenantQuotaExceeded)
	s.must("put", s.putAs("a", "n", mib), wire.OK)
	if d := s.Policies()[0]; d.AdmitAsked != 2 || d.AdmitRefused != 1 {
		t.Errorf("%+v", d)
	}
	s.check()
}
