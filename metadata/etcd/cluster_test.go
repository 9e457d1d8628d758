package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
)

// recovery is how long a node may be without etcd when the leader is lost.
const recovery = 15 * time.Second

// A backend that sits on the leader keeps its lease, its watch and its calls when the leader hangs or
// dies, and can revoke.
func TestLeaderIsLost(t *testing.T) {
	cluster := testenv.EtcdCluster(t, 3)
	var addrs []string
	for _, s := range cluster {
		addrs = append(addrs, s.Addr)
	}
	for name, c := range map[string]struct{ lose, restore func(*testenv.Server) }{
		"SIGSTOP": {
			func(s *testenv.Server) { s.Signal(syscall.SIGSTOP) },
			func(s *testenv.Server) { s.Signal(syscall.SIGCONT) },
		},
		"SIGKILL": {(*testenv.Server).Stop, (*testenv.Server).Start},
	} {
		t.Run(name, func(t *testing.T) {
			leader := testenv.Leader(t, cluster)
			b := open(t, func(c *Config) { c.Endpoints = addrs })
			b.next = slices.Index(addrs, leader.Addr)
			ctx := timeout(t, 2*time.Minute)
			p := "mooncake/" + name + "/"
			l, err := b.Lease(ctx, 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Put(ctx, p+"leased", []byte("v")); err != nil {
				t.Fatal(err)
			}
			seen := make(chan string, 100)
			watching, stopWatch := context.WithCancel(ctx)
			var watcher sync.WaitGroup
			watcher.Go(func() {
				for ev, err := range b.Watch(watching, p+"n") {
					if err == nil {
						seen <- fmt.Sprint(ev.Type, " ", string(ev.Entry.Value))
					}
				}
			})
			if got := <-seen; got != fmt.Sprint(metadata.EventReset, " ") {
				t.Errorf("first event %q", got)
			}

			c.lose(leader)
			lost := time.Now()
			for {
				err := b.Put(context.Background(), p+"n", []byte("after"))
				if err == nil {
					break
				}
				if time.Since(lost) > recovery {
					t.Errorf("no write within %v: %v", recovery, err)
					break
				}
			}
			t.Logf("the first write succeeded after %v", time.Since(lost))
			for got := ""; got != fmt.Sprint(metadata.EventPut, " after"); {
				select {
				case got = <-seen:
					if got == fmt.Sprint(metadata.EventReset, " ") { // what was missed is there to be read
						if e, err := b.Get(ctx, p+"n"); err == nil && string(e.Value) == "after" {
							got = fmt.Sprint(metadata.EventPut, " after")
						}
					}
				case <-time.After(max(time.Second, recovery-time.Since(lost))):
					t.Errorf("the watch saw nothing within %v", recovery)
					got = fmt.Sprint(metadata.EventPut, " after")
				}
			}
			t.Logf("the watch went on after %v", time.Since(lost))
			select { // past the ttl: only renewals on another member can have kept it
			case <-l.Alive():
				t.Error("the lease was lost")
			case <-time.After(time.Until(lost.Add(11 * time.Second))):
			}
			if _, err := b.Get(ctx, p+"leased"); err != nil {
				t.Errorf("the leased key: %v", err)
			}
			begin := time.Now()
			if err := l.Revoke(ctx); err != nil {
				t.Errorf("revoke: %v", err)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("revoke took %v", took)
			}
			if _, err := b.Get(ctx, p+"leased"); !errors.Is(err, metadata.ErrNotFound) {
				t.Errorf("the leased key after revoke: %v", err)
			}
			stopWatch()
			watcher.Wait()
			c.restore(leader)
		})
	}
}

// Revoke is the last call of a node that stops: it must not wait for the ping timeout of a connection that
// has died silently.
func TestRevokeOnADeadConnection(t *testing.T) {
	server := testenv.Etcd(t)
	relay := newRelay(t, server.Addr)
	b := open(t, func(c *Config) {
		c.Endpoints, c.Timeout = []string{relay.addr, server.Addr}, 4*time.Second
	})
	b.next = 0
	ctx := timeout(t, time.Minute)
	l, err := b.Lease(ctx, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Put(ctx, "k", nil); err != nil {
		t.Fatal(err)
	}
	relay.hang.Store(true)
	begin := time.Now()
	if err := l.Revoke(ctx); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 4*time.Second {
		t.Fatalf("revoke took %v", took)
	}
	if _, err := b.Get(ctx, "k"); !errors.Is(err, metadata.ErrNotFound) {
		t.Fatal(err)
	}
}

// Callers that are always in a hurry leave a dead endpoint too.
func TestShortDeadlinesLeaveADeadEndpoint(t *testing.T) {
	server := testenv.Etcd(t)
	b := open(t, func(c *Config) {
		c.Endpoints, c.Timeout = []string{testenv.Blackhole(t), server.Addr}, 2*time.Second
	})
	b.next = 0
	testenv.Eventually(t, 10*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		return b.Put(ctx, "k", nil)
	})
}

// While nothing is called, the client must not ping: etcd answers pings without a stream with GOAWAY
// too_many_pings. A watch is kept honest by its own probes and draws no GOAWAY either.
func TestPingsOnTheWire(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: -short; needs a ping interval of 10 s, the least that gRPC allows")
	}
	server := testenv.Etcd(t)
	idle, watching := newRelay(t, server.Addr), newRelay(t, server.Addr)
	ctx := timeout(t, time.Minute)
	a := open(t, func(c *Config) { c.Endpoints = []string{idle.addr} })
	b := open(t, func(c *Config) { c.Endpoints = []string{watching.addr} })
	if err := a.Put(ctx, "k", nil); err != nil {
		t.Fatal(err)
	}
	w, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	ready := make(chan struct{})
	watcher.Go(func() {
		for ev, err := range b.Watch(w, "k") {
			if err != nil || ev.Type != metadata.EventReset {
				t.Errorf("watch: %v, %v", ev, err)
				continue
			}
			close(ready)
		}
	})
	<-ready
	time.Sleep(time.Second) // gRPC pings once more to measure the bandwidth of a fresh connection
	idle.pings.Store(0)
	time.Sleep(pingTime + 2*time.Second)
	if n := idle.pings.Load(); n != 0 {
		t.Errorf("%d pings in %v without a stream", n, pingTime)
	}
	if n := idle.goaways.Load() + watching.goaways.Load(); n != 0 {
		t.Errorf("%d GOAWAY frames from etcd", n)
	}
	stop()
	watcher.Wait()
}

// relay is a TCP proxy that looks at HTTP/2 frames and can fall silent.
type relay struct {
	addr           string
	hang           atomic.Bool
	pings, goaways atomic.Int64
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: ln.Addr().String()}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, client, server)
			mu.Unlock()
			wg.Go(func() { r.pump(server, client, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), &r.pings, 6) })
			wg.Go(func() { r.pump(client, server, 0, &r.goaways, 7) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return r
}

// pump copies frames and counts those of one type that are not acknowledgements.
func (r *relay) pump(dst, src net.Conn, preface int, count *atomic.Int64, typ byte) {
	defer dst.Close()
	if _, err := io.CopyN(dst, src, int64(preface)); err != nil {
		return
	}
	head := make([]byte, 9)
	for {
		if _, err := io.ReadFull(src, head); err != nil {
			return
		}
		if head[3] == typ && head[4]&1 == 0 {
			count.Add(1)
		}
		body := make([]byte, binary.BigEndian.Uint32(append([]byte{0}, head[:3]...)))
		if _, err := io.ReadFull(src, body); err != nil {
			return
		}
		if r.hang.Load() {
			continue
		}
		if _, err := dst.Write(append(head, body...)); err != nil {
			return
		}
	}
}
