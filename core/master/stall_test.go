package master

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A master that stood still (stopped, suspended, out of CPU) heard nobody in that time. It must not take its
// clients for dead when it goes on, only if they stay silent.
func TestStandstillIsForgiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var jump atomic.Int64
		s := newStore(t, func(o *Options) {
			o.Clock = ClockFunc(func() int64 { return time.Now().UnixMilli() + jump.Load() })
		})
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.mount(0, mib, clientA)
		s.put("k", 100)
		time.Sleep(time.Second)
		jump.Add(time.Minute.Milliseconds())
		s.ping(clientB) // heard before the timers notice
		time.Sleep(time.Second)
		if got := s.SegmentNames(); len(got) != 1 || s.Counters().ClientsExpired.Load() != 0 {
			t.Errorf("after a standstill: segments %v, %d clients expired", got, s.Counters().ClientsExpired.Load())
		}
		time.Sleep(s.cfg.ClientTTL)
		if got := s.SegmentNames(); len(got) != 0 || s.Counters().ClientsExpired.Load() != 2 {
			t.Errorf("clients that stay silent: segments %v, %d expired", got, s.Counters().ClientsExpired.Load())
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
