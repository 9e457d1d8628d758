package master

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// BenchmarkGuests is a full store under two workers that read and write, with the policies that ship, with guests that
// behave and with those that do not. One that has failed is set anew soon, so that it goes on failing.
// An operation is a read, and a put when the key is not there.
func BenchmarkGuests(b *testing.B) {
	for _, name := range []string{Native, "lru", "lru-c", "lru-rust", "score-c"} {
		b.Run(name, func(b *testing.B) { benchGuest(b, benchPolicy(b, name)) })
	}
	for _, name := range []string{"spin", "spin_victims", "slow", "recurse", "grab_memory", "trap", "too_many", "unknown", "duplicate", "leased", "none", "moody"} {
		b.Run("bad="+name, func(b *testing.B) {
			benchGuest(b, Policy{Name: name, Factory: openGuest(b, filepath.Join("..", "..", "plugins", "wasm", "testdata", name+".wasm")), Guard: "off"})
		})
	}
}

func benchPolicy(b *testing.B, name string) Policy {
	switch name {
	case Native:
		return Policy{Name: Native}
	case "lru":
		p := policies(name)[anyTenant]
		p.Guard = "off"
		return p
	}
	return Policy{Name: name, Factory: openGuest(b, exampleGuest(b, name)), Guard: "off"}
}

func benchGuest(b *testing.B, p Policy) {
	const resident, keys, size = 20_000, 40_000, 4096
	s := benchStore(b, 0, size, resident*size, func(o *Options) {
		o.Config.LeaseTTL, o.Config.ClientTTL, o.Config.WarmUp = time.Millisecond, 24*time.Hour, 0
		o.Config.FreeReserve = 0
		if p.Factory != nil {
			o.Policies = map[string]Policy{anyTenant: p}
		}
	})
	if err := s.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer s.Close(b.Context())
	fillKeys(s, 0, resident, size)
	stop := make(chan struct{})
	var nurse sync.WaitGroup
	before := 0 // faults of instances that were replaced, and of those that failed while they were filled
	nurse.Go(func() {
		t := time.NewTicker(100 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				d := s.Policies()[0]
				if p.Factory == nil || d.State == string(eviction.GuestRunning) {
					continue
				}
				if s.SetPolicy(anyTenant, p) != nil {
					before++
				} else {
					before += guestFaults(&d)
				}
			}
		}
	})
	names := benchKeys(keys)
	const workers = 2
	var took [workers]struct{ get, put []uint32 } // ns
	each := b.N/workers + 1
	b.ResetTimer()
	used := processorTime(b)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			get, list := wire.KeyRequest{Tenant: "default"}, wire.Result[wire.ReplicaList]{}
			out := &took[w]
			for range each {
				// Half of the reads go to an eighth of the keys.
				n := keys
				if r.IntN(2) == 0 {
					n = keys / 8
				}
				get.Key = names[r.IntN(n)]
				start := time.Now()
				s.GetReplicaList(&get, &list)
				out.get = append(out.get, uint32(time.Since(start)))
				if list.Code == wire.OK {
					continue
				}
				start = time.Now()
				if _, code := s.start(clientA, get.Key, size); code == wire.OK {
					s.end(clientA, get.Key)
					out.put = append(out.put, uint32(time.Since(start)))
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	used = processorTime(b) - used
	close(stop)
	nurse.Wait()
	var get, put []uint32
	for i := range took {
		get, put = append(get, took[i].get...), append(put, took[i].put...)
	}
	slices.Sort(get)
	slices.Sort(put)
	p99 := func(v []uint32) float64 { return float64(v[len(v)*99/100]) / 1000 }
	if len(put) > 0 {
		b.ReportMetric(p99(put), "put-p99-us")
	}
	b.ReportMetric(p99(get), "get-p99-us")
	b.ReportMetric(float64(len(get)+len(put))/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(float64(used.Nanoseconds())/float64(len(get)+len(put)), "cpu-ns/op")
	d := s.Policies()[0]
	b.ReportMetric(float64(int(d.Faults)+before+guestFaults(&d)), "faults")
	b.ReportMetric(100*float64(d.Fallbacks)/float64(max(1, d.Evicted)), "%built-in")
	if g := d.Supervision; g != nil && strings.HasPrefix(p.Name, "lru") && g.State != eviction.GuestRunning {
		b.Fatal(g.Fault)
	}
}

// processorTime is what this process has used, other programs' share of the machine aside.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// guestFaults are those that the guest's own host has counted.
func guestFaults(d *DomainStats) (n int) {
	if d.Supervision != nil {
		for _, k := range d.Supervision.Faults {
			n += int(k)
		}
	}
	return n
}
