package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

const fakeBase = goldenAddr

func TestClientAgainstIndependentServer(t *testing.T) {
	for _, proto := range []int{0, 1, 2, 3} { // 0 and 1 are v1; above 2 is v2
		for _, pool := range []bool{true, false} {
			t.Run(fmt.Sprintf("proto %d, pool %v", proto, pool), func(t *testing.T) {
				f := newFakeTarget(t, 16<<20, nil)
				c := newClient(t, f.descriptor(proto), func(c *Config) { c.ConnectionPool = pool })
				for i, size := range []int{1, 4096, 65536, 1<<20 + 3} {
					transporttest.Fill(c.local.Bytes()[:size], i+1)
					if err := c.write(t, fakeBase+77, size); err != nil {
						t.Fatal(err)
					}
					waitUntil(t, func() string { // a v1 write completes when it is sent
						if got := f.peek(77, size); string(got) != string(c.local.Bytes()[:size]) {
							return fmt.Sprintf("write of %d bytes has not arrived", size)
						}
						return ""
					})
					transporttest.Set(c.local.Bytes()[:size], 0)
					if err := c.read(t, fakeBase+77, size); err != nil {
						t.Fatal(err)
					}
					transporttest.CheckFill(t, "read", c.local.Bytes()[:size], i+1)
				}
			})
		}
	}
}

// TestForcedV1: MC_TCP_PROTO=1 makes us speak v1 to everyone.
func TestForcedV1(t *testing.T) {
	var v2 atomic.Int64
	f := newFakeTarget(t, 4096, func(_, _ int, h header, _ net.Conn) bool {
		if h.v2() {
			v2.Add(1)
		}
		return true
	})
	c := newClient(t, f.descriptor(2), func(c *Config) { c.Proto = "1" })
	if err := errors.Join(c.write(t, fakeBase, 100), c.read(t, fakeBase, 100)); err != nil {
		t.Fatal(err)
	}
	if n := v2.Load(); n != 0 {
		t.Errorf("%d requests were v2", n)
	}
}

// TestOneRequestServers: servers before 0.3.10 close after each request. No request may be lost, with
// v1 writes in particular, which get no answer.
func TestOneRequestServers(t *testing.T) {
	f := newFakeTarget(t, 1<<20, func(_, request int, _ header, _ net.Conn) bool { return request == 0 })
	c := newClient(t, f.descriptor(1), nil)
	for i := range 60 {
		transporttest.Fill(c.local.Bytes()[:4096], i)
		if err := c.write(t, fakeBase+uint64(i*4096), 4096); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	waitUntil(t, func() string {
		if _, n := f.counts(); n < 60 {
			return fmt.Sprintf("%d requests arrived", n)
		}
		return ""
	})
	for i := range 60 {
		if err := c.read(t, fakeBase+uint64(i*4096), 4096); err != nil {
			t.Fatalf("read %d: %v", i, err)
		}
		transporttest.CheckFill(t, fmt.Sprintf("block %d", i), c.local.Bytes()[:4096], i)
	}
}

// TestV1PeersGetPooledOnceProven: a v1 peer that serves several requests on a connection soon gets them.
func TestV1PeersGetPooledOnceProven(t *testing.T) {
	f := newFakeTarget(t, 1<<20, nil)
	c := newClient(t, f.descriptor(1), nil)
	if err := errors.Join(c.write(t, fakeBase, 64), c.read(t, fakeBase, 64), c.read(t, fakeBase, 64)); err != nil {
		t.Fatal(err)
	}
	before, _ := f.counts()
	for range 20 {
		if err := errors.Join(c.write(t, fakeBase, 64), c.read(t, fakeBase, 64)); err != nil {
			t.Fatal(err)
		}
	}
	if after, _ := f.counts(); after != before {
		t.Errorf("%d connections, then %d", before, after)
	}
}

func TestConnectionCounts(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		max    int
	}{
		{"sequential requests use one connection", nil, 1},
		{"without pool one each", func(c *Config) { c.ConnectionPool = false }, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeTarget(t, 4096, nil)
			cl := newClient(t, f.descriptor(2), c.change)
			for range 10 {
				if err := cl.write(t, fakeBase, 64); err != nil {
					t.Fatal(err)
				}
			}
			if n, _ := f.counts(); n != c.max {
				t.Errorf("%d connections, want %d", n, c.max)
			}
		})
	}
	t.Run("never more than lanes_per_peer", func(t *testing.T) {
		f := newFakeTarget(t, 8<<20, nil)
		cl := newClient(t, f.descriptor(2), func(c *Config) { c.LanesPerPeer = 3 })
		r := transporttest.NewRecorder(t)
		for i := range 500 {
			if err := r.Submit(context.Background(), cl.peer, cl.op(i%2 == 0, fakeBase, 1<<20, uint64(i))); err != nil {
				t.Fatal(err)
			}
		}
		r.Wait()
		if n, _ := f.counts(); n != 3 {
			t.Errorf("%d connections, want 3", n)
		}
		if v := testutil.ToFloat64(cl.tr.m.lanes); v != 3 {
			t.Errorf("mooncake_tcp_lanes = %v", v)
		}
	})
}

// TestStaleLanes is scenario S3: connections that the peer has closed meanwhile are found out at first
// use, and the request is sent again on a fresh one; once.
func TestStaleLanes(t *testing.T) {
	t.Run("peer restarted on the same port", func(t *testing.T) {
		f := newFakeTarget(t, 8<<20, nil)
		c := newClient(t, f.descriptor(2), nil)
		for round := range 5 {
			r := transporttest.NewRecorder(t)
			for i := range 32 { // opens all lanes
				if err := r.Submit(context.Background(), c.peer, c.op(i%2 == 0, fakeBase, 1<<20, uint64(i))); err != nil {
					t.Fatal(err)
				}
			}
			r.Wait()
			for cookie, res := range r.Results() {
				if res.Err != nil {
					t.Fatalf("round %d, op %d: %v", round, cookie, res.Err)
				}
			}
			f.restart()
		}
	})
	t.Run("closed while the request is on its way", func(t *testing.T) {
		// The server answers one request and closes when the second arrives, as after an idle timeout
		// that fires at that moment.
		f := newFakeTarget(t, 4096, func(_, request int, _ header, _ net.Conn) bool { return request == 0 })
		c := newClient(t, f.descriptor(2), func(c *Config) { c.LanesPerPeer = 1 })
		for i := range 20 {
			if err := c.write(t, fakeBase, 64); err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
			if err := c.read(t, fakeBase, 64); err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
		}
		if v := testutil.ToFloat64(c.tr.m.retries.WithLabelValues("stale")); v == 0 {
			t.Error("lane_retries_total{reason=stale} is 0")
		}
	})
	t.Run("a fresh connection that dies is no reason to try again", func(t *testing.T) {
		f := newFakeTarget(t, 4096, func(int, int, header, net.Conn) bool { return false })
		c := newClient(t, f.descriptor(2), nil)
		if err := c.write(t, fakeBase, 64); !errors.Is(err, transports.ErrInterrupted) {
			t.Errorf("got %v, want ErrInterrupted", err)
		}
		if _, n := f.counts(); n != 1 {
			t.Errorf("%d requests arrived, want 1", n)
		}
	})
	t.Run("only once", func(t *testing.T) {
		var dead atomic.Bool
		f := newFakeTarget(t, 4096, func(int, int, header, net.Conn) bool { return !dead.Load() })
		c := newClient(t, f.descriptor(2), func(c *Config) { c.LanesPerPeer = 1 })
		if err := c.write(t, fakeBase, 64); err != nil {
			t.Fatal(err)
		}
		dead.Store(true)
		if err := c.write(t, fakeBase, 64); !errors.Is(err, transports.ErrInterrupted) {
			t.Errorf("got %v, want ErrInterrupted", err)
		}
		if _, n := f.counts(); n != 3 {
			t.Errorf("%d requests arrived, want 3: one answered, one lost, one tried again", n)
		}
	})
	t.Run("an answer that has begun is not asked for again", func(t *testing.T) {
		f := newFakeTarget(t, 4096, func(_, request int, h header, c net.Conn) bool {
			if request == 0 {
				return true
			}
			c.Write(append(statusBytes(statusOK), make([]byte, h.size/2)...))
			return false
		})
		c := newClient(t, f.descriptor(2), func(c *Config) { c.LanesPerPeer = 1 })
		if err := c.read(t, fakeBase, 64); err != nil {
			t.Fatal(err)
		}
		if err := c.read(t, fakeBase, 64); !errors.Is(err, transports.ErrInterrupted) {
			t.Errorf("got %v, want ErrInterrupted", err)
		}
		if _, n := f.counts(); n != 2 {
			t.Errorf("%d requests arrived, want 2", n)
		}
	})
}

// TestIdleLanesAreRetired: our own idle connections close, and the next request opens one again.
func TestIdleLanesAreRetired(t *testing.T) {
	f := newFakeTarget(t, 4096, nil)
	c := newClient(t, f.descriptor(2), func(c *Config) { c.IdleTimeout = 60 * time.Millisecond })
	for range 2 {
		if err := c.write(t, fakeBase, 64); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, func() string {
			if v := testutil.ToFloat64(c.tr.m.lanes); v != 0 {
				return fmt.Sprintf("%v lanes open", v)
			}
			return ""
		})
	}
	if n, _ := f.counts(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// TestRejectedAmongPipelined: one rejected request fails alone; what was pipelined behind it arrives.
func TestRejectedAmongPipelined(t *testing.T) {
	for _, write := range []bool{true, false} {
		for _, size := range []int{64, 4 << 20} {
			t.Run(fmt.Sprintf("write=%v, %d bytes", write, size), func(t *testing.T) {
				f := newFakeTarget(t, 1<<20, nil)
				c := newClient(t, f.descriptor(2), func(c *Config) { c.LanesPerPeer = 1; c.PipelineBytes = 64 << 20 })
				transporttest.Fill(c.local.Bytes(), 5)
				var ops []transports.Op
				for i := range 50 {
					o := c.op(true, fakeBase+uint64(i*1000), 1000, uint64(i))
					o.Offset = uint64(i * 1000)
					if i == 25 {
						o = c.op(write, 4096, size, 25)
					}
					ops = append(ops, o)
				}
				r := transporttest.NewRecorder(t)
				if err := r.Submit(context.Background(), c.peer, ops...); err != nil {
					t.Fatal(err)
				}
				r.Wait()
				for i, res := range r.Results() {
					if (i == 25) != errors.Is(res.Err, transports.ErrRejected) || (i != 25 && res.Err != nil) {
						t.Errorf("op %d: %v", i, res.Err)
					}
				}
				got := f.peek(0, 50_000)
				transporttest.CheckFill(t, "before", got[:25_000], 5)
				transporttest.CheckAll(t, "rejected", got[25_000:26_000], 0)
				if string(got[26_000:]) != string(c.local.Bytes()[26_000:50_000]) {
					t.Error("ops behind the rejected one have not arrived")
				}
			})
		}
	}
}

// TestBadAnswers: what the protocol does not allow ends the connection and the request.
func TestBadAnswers(t *testing.T) {
	status2 := statusBytes(2)
	for _, c := range []struct {
		name   string
		answer []byte
		want   error
		say    string
	}{
		{"other status", status2, transports.ErrRejected, "status 2"},
		{"no magic", []byte("HTTP/1.1 400 Bad"), transports.ErrProtocol, "magic"},
		{"half a status", status2[:4], transports.ErrInterrupted, ""},
		{"status before the payload was sent", statusBytes(statusOK), transports.ErrProtocol, "not completely sent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeTarget(t, 4096, func(_, _ int, _ header, conn net.Conn) bool {
				conn.Write(c.answer)
				if c.want == transports.ErrProtocol {
					conn.Read(make([]byte, 1)) // leave the connection open until the client ends it
					for {
						if _, err := conn.Read(make([]byte, 1<<16)); err != nil {
							return false
						}
						time.Sleep(time.Millisecond)
					}
				}
				return false
			})
			cl := newClient(t, f.descriptor(2), func(c *Config) { c.SendBuffer = 64 << 10 })
			err := cl.write(t, fakeBase, 4<<20)
			if c.want == transports.ErrInterrupted {
				err = cl.read(t, fakeBase, 64)
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.say) {
				t.Errorf("got %v, want %v with %q", err, c.want, c.say)
			}
		})
	}
	t.Run("bytes that nobody asked for", func(t *testing.T) {
		f := newFakeTarget(t, 4096, func(_, request int, _ header, conn net.Conn) bool {
			if request == 0 {
				conn.Write(append(statusBytes(statusOK), make([]byte, 64+8)...))
			}
			return request > 0
		})
		c := newClient(t, f.descriptor(2), nil)
		if err := c.read(t, fakeBase, 64); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, func() string {
			if v := testutil.ToFloat64(c.tr.m.lanes); v != 0 {
				return "the connection is still in use"
			}
			return ""
		})
	})
}

// TestUnmappedLocalMemory fails the op, not the process, and not its neighbours.
func TestUnmappedLocalMemory(t *testing.T) {
	for _, write := range []bool{true, false} {
		for _, size := range []int{64, 1 << 20} {
			t.Run(fmt.Sprintf("write=%v, %d bytes", write, size), func(t *testing.T) {
				f := newFakeTarget(t, 1<<20, nil)
				c := newClient(t, f.descriptor(2), func(c *Config) { c.LanesPerPeer = 1 })
				gone := transporttest.NewRegion(t, 1<<20, transports.ReadWrite)
				gone.Revoke(t)
				r := transporttest.NewRecorder(t)
				bad := transports.Op{Write: write, Local: gone, Remote: fakeBase, Len: uint64(size), Cookie: 7}
				if err := r.Submit(context.Background(), c.peer, c.op(true, fakeBase, 64, 1), bad, c.op(false, fakeBase, 64, 2)); err != nil {
					t.Fatal(err)
				}
				r.Wait()
				for i, res := range r.Results() {
					if (i == 7) != (res.Err != nil) {
						t.Errorf("op %d: %v", i, res.Err)
					}
				}
			})
		}
	}
}

// TestBlackhole is scenario S5: a peer whose address swallows connection attempts costs the connect
// timeout, once, and leaves a healthy peer's latency alone.
func TestBlackhole(t *testing.T) {
	host, port, err := net.SplitHostPort(testenv.Blackhole(t))
	if err != nil {
		t.Fatal(err)
	}
	f := newFakeTarget(t, 4096, nil)
	c := newClient(t, f.descriptor(2), func(c *Config) { c.ConnectTimeout = 300 * time.Millisecond })
	d := &transports.Descriptor{Name: "gone", Protocol: "tcp", TCPDataHost: host, TCPProtoVersion: 2}
	fmt.Sscan(port, &d.TCPDataPort)
	gone := c.DialDescriptor(t, d)
	r := transporttest.NewRecorder(t)
	start := time.Now()
	for i := range 100 {
		if err := r.Submit(context.Background(), gone, c.op(true, fakeBase, 64, uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(start); d > 200*time.Millisecond {
		t.Errorf("submitting took %v", d)
	}
	var worst time.Duration
	healthy := 0
	for r.Count() == 0 {
		s := time.Now()
		if err := c.write(t, fakeBase, 64); err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(s))
		healthy++
	}
	r.Wait()
	if d := time.Since(start); d < 250*time.Millisecond || d > 5*time.Second {
		t.Errorf("gave up after %v, want about the connect timeout of 300ms", d)
	}
	if healthy < 50 || worst > 200*time.Millisecond {
		t.Errorf("%d requests to the healthy peer meanwhile, the slowest took %v", healthy, worst)
	}
	for i, res := range r.Results() {
		if !errors.Is(res.Err, transports.ErrUnreachable) {
			t.Errorf("op %d: %v, want ErrUnreachable", i, res.Err)
		}
	}
	start = time.Now()
	again := c.DialDescriptor(t, d) // the pause belongs to the address
	if err := transporttest.Move(t, again, c.op(true, fakeBase, 64, 1)); !errors.Is(err, transports.ErrUnreachable) || !strings.Contains(err.Error(), "next attempt in") {
		t.Errorf("during the pause: %v", err)
	}
	if d := time.Since(start); d > 100*time.Millisecond {
		t.Errorf("during the pause: took %v", d)
	}
}

// TestPauseEnds: after the pause a peer that has come back is used again.
func TestPauseEnds(t *testing.T) {
	f := newFakeTarget(t, 4096, nil)
	c := newClient(t, f.descriptor(2), func(c *Config) { c.ReconnectPause = 100 * time.Millisecond })
	f.close()
	if err := c.write(t, fakeBase, 64); !errors.Is(err, transports.ErrUnreachable) {
		t.Fatalf("got %v, want ErrUnreachable", err)
	}
	f.restart()
	waitUntil(t, func() string {
		if err := c.write(t, fakeBase, 64); err != nil {
			return err.Error()
		}
		return ""
	})
	if v := testutil.ToFloat64(c.tr.m.connectErrs); v < 1 {
		t.Errorf("connect_failures_total = %v", v)
	}
}
