package clients

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// soakTime is how long TestSoak runs: MOONCAKE_SOAK, which "make test-soak" sets, else a moment.
func soakTime(t *testing.T) time.Duration {
	t.Helper()
	s := os.Getenv("MOONCAKE_SOAK")
	if s == "" {
		return 15 * time.Second
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatalf("MOONCAKE_SOAK: %v", err)
	}
	return d
}

// Four nodes, clients that put, replace, read and remove at random, nodes that are killed, frozen and stopped, and a
// master that is restarted. Every byte that is read is right, in the end everything works, and nothing leaks.
func TestSoak(t *testing.T) {
	length := soakTime(t)
	m := testenv.StartMaster(t, "--client_ttl=2", "--default_kv_lease_ttl=2000", "--put_start_discard_timeout_sec=2", "--put_start_release_timeout_sec=5")
	s := &soak{t: t, m: m, quit: make(chan struct{})}
	witness := storeNode(t, m.Addr, "48MB") // it is never harmed, so that leaks show
	for range 3 {
		s.nodes = append(s.nodes, s.startNode())
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, %v", seed, length)
	for i := range 4 {
		c := goClient(t, m.Addr, func(o *client.Options) { o.RPCTimeout = 2 * time.Second })
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		s.wg.Go(func() { s.work(c, r) })
	}
	t.Cleanup(func() {
		s.end()
		s.wg.Wait()
	})
	watcher := goClient(t, m.Addr)
	s.trouble(rand.New(rand.NewPCG(seed, 99)), length/3)
	before := s.takeStock(witness.PID())
	s.trouble(rand.New(rand.NewPCG(seed, 100)), length-length/3)
	s.calm(watcher)
	after := s.takeStock(witness.PID())
	s.end()
	s.wg.Wait()
	t.Logf("%d puts, %d replacements, %d reads, %d removals, %d errors; %s", s.puts.Load(), s.upserts.Load(), s.reads.Load(), s.removes.Load(), s.failed.Load(), s.log)
	t.Logf("before: %+v\nafter:  %+v", before, after)
	for _, b := range s.bad[:min(len(s.bad), 10)] {
		t.Errorf("WRONG BYTES: %s", b)
	}
	if s.reads.Load() < 100 {
		t.Errorf("only %d reads", s.reads.Load())
	}
	for _, x := range []struct {
		what          string
		before, after int
		slack         int
	}{
		{"goroutines of the clients", before.goroutines, after.goroutines, 40},
		{"connections of the clients", before.sockets, after.sockets, 20},
		{"heap of the clients in MiB", before.heapMiB, after.heapMiB, 32},
		{"descriptors of a node", before.nodeFDs, after.nodeFDs, 40},
		{"memory of a node in MiB", before.nodeMiB, after.nodeMiB, 64},
		{"threads of a node", before.nodeThreads, after.nodeThreads, 20},
	} {
		if x.after > x.before+x.slack {
			t.Errorf("%s: %d after a third of the time, %d at the end", x.what, x.before, x.after)
		}
	}
}

type soak struct {
	t     *testing.T
	m     *testenv.StoreMaster
	nodes []*soakNode
	wg    sync.WaitGroup
	quit  chan struct{}
	log   string

	puts, upserts, reads, removes, failed atomic.Int64

	rest sync.RWMutex // held by a client during one operation, so that stock is taken while none runs

	mu  sync.Mutex
	bad []string
}

// soakNode is a node whose buffers and pipes in the test end with it, so that they do not look like a leak.
type soakNode struct {
	*testenv.Node
	*lifetime
}

func (s *soak) startNode() *soakNode {
	l := &lifetime{TB: s.t}
	s.t.Cleanup(l.end)
	return &soakNode{storeNode(l, s.m.Addr, "48MB"), l}
}

// lifetime ends before its test.
type lifetime struct {
	testing.TB
	cleanups []func()
}

func (l *lifetime) Cleanup(f func()) { l.cleanups = append(l.cleanups, f) }

func (l *lifetime) end() {
	for len(l.cleanups) > 0 {
		last := len(l.cleanups) - 1
		f := l.cleanups[last]
		l.cleanups[last], l.cleanups = nil, l.cleanups[:last] // it holds the node's buffers
		f()
	}
}

func (s *soak) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.quit:
	default:
		close(s.quit)
	}
}

// keys of the soak; each is put, replaced and removed by everybody.
const soakKeys = 300

// work is one client.
func (s *soak) work(c *client.Client, r *rand.Rand) {
	ctx := s.t.Context()
	for n := 0; ; n++ {
		select {
		case <-s.quit:
			return
		default:
		}
		s.rest.RLock()
		err := s.step(ctx, c, r)
		s.rest.RUnlock()
		if err != nil && !errors.Is(err, client.ErrNotFound) && !errors.Is(err, client.ErrExists) && !errors.Is(err, client.ErrLeased) && !errors.Is(err, client.ErrNotReady) {
			s.failed.Add(1)
			time.Sleep(time.Millisecond)
		}
	}
}

// step is one operation.
func (s *soak) step(ctx context.Context, c *client.Client, r *rand.Rand) error {
	k := fmt.Sprintf("soak-%d", r.IntN(soakKeys))
	var err error
	switch what := r.IntN(100); {
	case what < 30:
		err = c.Put(ctx, k, s.content(k, r), client.Replicas(1+r.IntN(2)))
		count(&s.puts, err)
	case what < 35:
		err = c.Upsert(ctx, k, s.content(k, r))
		count(&s.upserts, err)
	case what < 80:
		var got []byte
		if got, err = c.Get(ctx, k); err == nil {
			s.compare(k, got)
		}
		count(&s.reads, err)
	case what < 90:
		keys := []string{k, fmt.Sprintf("soak-%d", r.IntN(soakKeys)), fmt.Sprintf("soak-%d", r.IntN(soakKeys))}
		values, errs := c.GetBatch(ctx, keys)
		for i := range keys {
			if errs[i] == nil {
				s.compare(keys[i], values[i])
			}
			count(&s.reads, errs[i])
		}
	default:
		err = c.Remove(ctx, k, r.IntN(4) == 0)
		count(&s.removes, err)
	}
	return err
}

func count(n *atomic.Int64, err error) {
	if err == nil {
		n.Add(1)
	}
}

// content of a key: any number of bytes that repeat a line with the key and a version.
func (s *soak) content(key string, r *rand.Rand) []byte {
	line := fmt.Sprintf("%s v%d|", key, r.Uint64())
	return pattern(line[:len(line)-1], 100+r.IntN(1<<r.IntN(19)+1))
}

// compare checks that a value is a content of its key, and of one version only.
func (s *soak) compare(key string, got []byte) {
	line, _, ok := bytes.Cut(got, []byte("|"))
	if ok && bytes.HasPrefix(line, []byte(key+" v")) && bytes.Equal(got, pattern(string(line), len(got))) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bad = append(s.bad, fmt.Sprintf("%s: %d bytes that begin with %q", key, len(got), got[:min(len(got), 60)]))
}

// trouble does harm, one thing after the other.
func (s *soak) trouble(r *rand.Rand, length time.Duration) {
	did := map[string]int{}
	for end := time.Now().Add(length); time.Now().Before(end); {
		i := r.IntN(len(s.nodes))
		n := s.nodes[i]
		switch what := r.IntN(10); {
		case what < 3:
			did["kill"]++
			n.Kill()
			n.end()
			s.nodes[i] = s.startNode()
		case what < 5:
			did["freeze"]++
			n.Freeze()
			time.Sleep(time.Duration(500+r.IntN(3000)) * time.Millisecond) // shorter and longer than client_ttl
			n.Thaw()
			waitSegment(s.t, n.Admin)
		case what < 7:
			did["stop"]++
			n.Stop(soon, syscall.SIGTERM)
			n.end()
			s.nodes[i] = s.startNode()
		case what < 8:
			did["restart of the master"]++
			s.m.Restart()
			s.allReady()
		default:
			time.Sleep(500 * time.Millisecond)
		}
	}
	s.log += fmt.Sprint(did, " ")
}

func (s *soak) allReady() {
	for _, n := range s.nodes {
		waitSegment(s.t, n.Admin)
	}
}

// calm waits until everything works again: a new object on two nodes can be put and read.
func (s *soak) calm(c *client.Client) {
	s.t.Helper()
	s.allReady()
	testenv.Eventually(s.t, soon, func() error {
		ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
		defer cancel()
		k := fmt.Sprint("calm-", time.Now().UnixNano())
		if err := c.Put(ctx, k, []byte("calm"), client.Replicas(2)); err != nil {
			return err
		}
		if rs, err := c.Replicas(ctx, k); err != nil || len(rs) != 2 {
			return fmt.Errorf("%+v, %v", rs, err)
		}
		_, err := c.Get(ctx, k)
		return err
	})
}

// stock is what could leak.
type stock struct {
	goroutines, sockets, heapMiB  int
	nodeFDs, nodeMiB, nodeThreads int
}

// takeStock counts while no client works, so that what they hold is what they keep.
func (s *soak) takeStock(node int) stock {
	t := s.t
	t.Helper()
	s.rest.Lock()
	defer s.rest.Unlock()
	runtime.GC()
	runtime.GC() // pools keep their content over one collection
	heap := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(heap)
	if dir := os.Getenv("MOONCAKE_SOAK_PROFILES"); dir != "" {
		s.profile(dir)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", node))
	if err != nil {
		t.Fatal(err)
	}
	field := func(name string) int {
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, name+":"); ok {
				n, err := strconv.Atoi(strings.Fields(rest)[0])
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		t.Fatalf("no %s in /proc/PID/status", name)
		return 0
	}
	return stock{runtime.NumGoroutine(), sockets(t), int(heap[0].Value.Uint64() >> 20), fds(t, strconv.Itoa(node)), field("RssAnon") >> 10, field("Threads")}
}

// profile writes what is on the heap, and the goroutines, for "go tool pprof".
func (s *soak) profile(dir string) {
	for _, what := range []string{"heap", "goroutine"} {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s-%d.pprof", what, time.Now().Unix())))
		if err == nil {
			err = errors.Join(pprof.Lookup(what).WriteTo(f, 0), f.Close())
		}
		if err != nil {
			s.t.Error(err)
		}
	}
}

// sockets of this process; its other descriptors belong to the processes that it has started.
func sockets(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range list {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

func fds(t *testing.T, pid string) int {
	t.Helper()
	list, err := os.ReadDir("/proc/" + pid + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
