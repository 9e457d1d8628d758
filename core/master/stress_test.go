package master

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Everything at once, with the background running: no call fails in a way it must not, accounts agree in
// the end, and the policy hears of everything in order.
func TestConcurrentUse(t *testing.T) {
	for _, policy := range []string{"", "lru", "lru aside"} {
		t.Run("policy "+policy, func(t *testing.T) {
			policy, aside := strings.CutSuffix(policy, " aside")
			var f *strictFactory
			s := newStore(t, func(o *Options) {
				if policy != "" {
					var use func(*Options)
					use, f = withStrict(t, policy)
					use(o)
					if p := o.Policies[anyTenant]; aside {
						p.Factory = outside{p.Factory}
						o.Policies[anyTenant] = p
					}
				}
				o.Clock = nil
				o.Config.LeaseTTL = 2 * time.Millisecond
				o.Config.PutDiscard, o.Config.PutRelease = 5*time.Millisecond, 20*time.Millisecond
				o.Config.ClientTTL = 50 * time.Millisecond
			})
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := s.Start(t.Context()); err == nil {
				t.Error("started twice")
			}
			for n := range 3 {
				s.mount(n, 512<<10, clientA)
			}
			stop := time.Now().Add(time.Second)
			if os.Getenv("CI") == "" {
				stop = time.Now().Add(500 * time.Millisecond)
			}
			var wg sync.WaitGroup
			for w := range 6 {
				wg.Go(func() { s.hammer(uint64(w), stop) })
			}
			wg.Go(func() {
				for i := 0; time.Now().Before(stop); i++ {
					s.ping(clientA)
					switch i % 40 {
					case 10:
						s.unmount(i%3, clientA)
					case 20:
						for n := range 3 {
							s.mountSeg(clientA, s.segmentOf(n, 512<<10))
						}
					case 30:
						s.Stats()
						s.SegmentDetails()
						s.Clients()
						s.ListKeys(nil, "default", "", 100)
					}
					time.Sleep(time.Millisecond)
				}
			})
			wg.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			faults := s.Counters().PolicyFaults.Load()
			if f != nil {
				// The background goes on: what it removes is counted a moment before its event is in the ring.
				testenv.Eventually(t, 10*time.Second, func() error {
					d := s.allDomains()[0]
					d.mu.Lock()
					d.drain(s.now())
					d.mu.Unlock()
					n, want := -1, int(d.known.Load())
					d.visit(10*time.Second, func(p eviction.Policy) { n = len(p.(*strict).resident) })
					if n != want {
						return fmt.Errorf("the policy thinks %d objects are resident, %d are", n, want)
					}
					return nil
				})
			}
			if err := s.Close(ctx); err != nil {
				t.Fatal(err)
			}
			s.sweepGone(ctx)
			s.check()
			if faults != 0 {
				t.Errorf("%d policy faults", faults)
			}
			if s.Counters().EvictedKeys.Load() == 0 {
				t.Error("nothing was evicted")
			}
		})
	}
}

// hammer calls what clients call.
func (s *store) hammer(seed uint64, stop time.Time) {
	r := rand.New(rand.NewPCG(seed, 5))
	me := wire.UUID{seed + 100, 1}
	key := func() string { return fmt.Sprintf("k%d", r.IntN(200)) }
	var lists []wire.Result[wire.ReplicaList]
	var ends []wire.Result[wire.Void]
	var starts []wire.Result[[]wire.Replica]
	var yes []wire.Result[bool]
	batch := func() []string {
		keys := make([]string, 1+r.IntN(20))
		for i := range keys {
			keys[i] = key()
		}
		return keys
	}
	for time.Now().Before(stop) {
		switch r.IntN(14) {
		case 0, 1, 2:
			k := key()
			c := config()
			c.Replicas = uint64(1 + r.IntN(2))
			if r.IntN(8) == 0 {
				c.GroupIDs = wire.Opt[[]string]{Value: []string{fmt.Sprintf("g%d", r.IntN(4))}, OK: true}
			}
			if r.IntN(8) == 0 {
				c.SoftPin, c.SoftPinTTLMS = wire.SoftPinEnable, wire.Opt[uint64]{Value: uint64(r.IntN(20)), OK: true}
			}
			var rs wire.Result[[]wire.Replica]
			req := wire.PutStartRequest{Client: me, Key: k, Length: uint64(1 + r.IntN(40<<10)), Config: c, Tenant: "default"}
			if r.IntN(4) == 0 {
				s.UpsertStart(&req, &rs)
			} else {
				s.PutStart(&req, &rs)
			}
			if rs.Code != wire.OK {
				continue
			}
			switch r.IntN(10) {
			case 0: // dies
			case 1:
				s.revokePut(me, k)
			default:
				s.end(me, k)
			}
		case 3, 4:
			if list, code := s.get(key()); code == wire.OK && len(list.Replicas) == 0 {
				s.Errorf("a get without replicas")
			}
		case 5:
			s.BatchGetReplicaList(&wire.KeysRequest{Keys: batch(), Tenant: "default"}, &lists)
		case 6:
			s.BatchExistKey(&wire.KeysRequest{Keys: batch(), Tenant: "default"}, &yes)
		case 7:
			keys := batch()
			req := wire.BatchPutStartRequest{Client: me, Keys: keys, Config: config(), Tenant: "default"}
			end := wire.BatchPutEndRequest{Client: me, Type: wire.ReplicaAll, Tenant: "default"}
			for range keys {
				req.Lengths = append(req.Lengths, uint64(1+r.IntN(8<<10)))
			}
			s.BatchPutStart(&req, &starts)
			for i := range starts {
				if starts[i].Code == wire.OK {
					end.Metas = append(end.Metas, wire.ObjectMeta{Key: keys[i]})
				}
			}
			s.BatchPutEnd(&end, &ends)
		case 8:
			s.del(key(), r.IntN(2) == 0)
		case 9:
			s.exists(key())
		case 10:
			k := key()
			var m wire.Result[wire.MoveTarget]
			s.MoveStart(&wire.MoveStartRequest{Client: me, Key: k, Tenant: "default", Source: "node0:1", Target: "node1:1"}, &m)
			if m.Code == wire.OK && r.IntN(4) > 0 {
				s.task(s.MoveEnd, k, me)
			}
		case 11:
			k := key()
			var cp wire.Result[wire.CopyTargets]
			s.CopyStart(&wire.CopyStartRequest{Client: me, Key: k, Tenant: "default", Source: "node1:1", Targets: []string{"node2:1", "node0:1"}}, &cp)
			if cp.Code == wire.OK {
				s.task(s.CopyEnd, k, me)
			}
		case 12:
			if r.IntN(50) == 0 {
				var n wire.Result[int64]
				s.RemoveByRegex(context.Background(), &wire.RemoveRequest{Key: fmt.Sprintf("k%d", r.IntN(10)), Tenant: "default"}, &n)
			}
		case 13:
			var tasks wire.Result[[]wire.TaskAssignment]
			s.FetchTasks(&wire.FetchTasksRequest{Client: me, Limit: 4}, &tasks)
		}
	}
}

func TestClosedServiceStillAnswers(t *testing.T) {
	s := newStore(t, func(o *Options) { o.Clock = nil; o.Policies = policies("lru") })
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.mount(0, mib, clientA)
	s.put("k", 100)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !s.exists("k") {
		t.Error("a closed service does not answer")
	}
	s.put("k2", mib-1024) // evicts
	s.check()
}
