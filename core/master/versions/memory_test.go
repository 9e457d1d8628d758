package versions

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// world is a memory with a clock of its own.
type world struct {
	t *testing.T
	*Memory
	at    time.Time
	ports uint16
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, Memory: New(nil), at: time.Unix(1_800_000_000, 0)}
	w.Memory.now = func() time.Time { return w.at }
	return w
}

func (w *world) pass(d time.Duration) { w.at = w.at.Add(d) }

// conn is a connection of a process that really speaks version v.
type conn struct {
	*world
	*caller
	speaks wire.Version
	dead   bool
}

func (w *world) dial(v wire.Version, addr string) *conn {
	w.ports++
	return &conn{world: w, speaks: v, caller: w.open(netip.AddrPortFrom(netip.MustParseAddr(addr), 1000+w.ports), 0, false)}
}

func (w *world) dialPinned(v, pinned wire.Version, addr string) *conn {
	w.ports++
	return &conn{world: w, speaks: v, caller: w.open(netip.AddrPortFrom(netip.MustParseAddr(addr), 1000+w.ports), pinned, true)}
}

// ask sends one request; if the answer is for another version the client hangs up 300 µs later, as the C++
// client does, and ask reports false.
func (c *conn) ask(m wire.AnyMethod, id wire.UUID) bool {
	c.t.Helper()
	if c.dead {
		c.t.Fatal("asking on a closed connection")
	}
	l, ok := m.Layout(c.speaks)
	if !ok {
		c.t.Fatalf("%s has no %s", c.speaks, m.Name())
	}
	set, ambiguous := m.Candidates(l.RequestCode)
	v := c.resolve(c.caller, m.ID(), id, set, ambiguous)
	if !set.Has(v) {
		c.t.Fatalf("%s of %s is taken for %s, which is none of %s", m.Name(), c.speaks, v, set)
	}
	got, _ := m.Layout(v)
	if got.ResponseCode == l.ResponseCode {
		return true
	}
	c.pass(300 * time.Microsecond)
	c.hangUp(m, 300*time.Microsecond)
	return false
}

func (c *conn) must(m wire.AnyMethod, id wire.UUID) {
	c.t.Helper()
	if !c.ask(m, id) {
		c.t.Errorf("%s of a %s client was answered for another version", m.Name(), c.speaks)
	}
}

func (c *conn) hangUp(last wire.AnyMethod, since time.Duration) {
	c.dead = true
	c.close(c.caller, rpc.CloseInfo{Reason: rpc.ClosedByPeer, Answered: true, LastFunction: last.ID(), SinceAnswer: since})
}

var none wire.UUID

func id(n uint64) wire.UUID { return wire.UUID{n, ^n} }

const a, b = "192.0.2.1", "192.0.2.2"

// Every version is served right from its first write on, on all connections of the client.
func TestClientsThatWriteAreKnown(t *testing.T) {
	for v := range wire.Version(wire.NumVersions) {
		t.Run(v.String(), func(t *testing.T) {
			w := newWorld(t)
			me := id(1)
			c1 := w.dial(v, a)
			if v == wire.V0_3_7 {
				c1 = w.dialPinned(v, v, a)
			}
			c1.must(wire.ServiceReady, none)
			if v == wire.V0_3_8 || v == wire.V0_3_9 { // these ping and remount without a segment, too
				c1.must(wire.Ping, me)
				c1.must(wire.ReMountSegment, me)
			}
			c1.must(wire.MountSegment, me)
			c1.must(wire.PutStart, me)
			c1.must(wire.PutEnd, me)
			c1.must(wire.GetReplicaList, none)
			c1.must(wire.BatchGetReplicaList, none)
			c1.must(wire.GetReplicaListByRegex, none)
			c2 := w.dial(v, a)
			c2.must(wire.Ping, me)
			c2.must(wire.GetReplicaList, none)
			if got := Label(c2.possible()); got != v.String() && v != wire.V0_3_7 {
				t.Errorf("the second connection is known as %s", got)
			}
			if n := w.made.Load(); n != 0 && v != wire.V0_3_8 { // 0.3.8's and 0.3.9's PutStart look the same
				t.Errorf("%d guesses", n)
			}
		})
	}
}

// A reader without id is served for the newest candidate, is wrong at most once for each connection, and its
// address is remembered.
func TestFlip(t *testing.T) {
	for v := wire.V0_3_8; int(v) < wire.NumVersions; v++ {
		t.Run(v.String(), func(t *testing.T) {
			w := newWorld(t)
			failures := 0
			for range 6 {
				c := w.dial(v, a)
				if !c.ask(wire.GetReplicaList, none) {
					failures++
					continue
				}
				w.pass(settle)
				c.must(wire.GetReplicaList, none)
			}
			// Candidates of 0.3.8's request are 0.3.7, 0.3.8, 0.3.9-10, 0.3.11, tried from the newest.
			want := map[wire.Version]int{wire.V0_3_8: 2, wire.V0_3_9: 1, wire.V0_3_10: 1, wire.V0_3_12: 1}[v]
			if failures != want {
				t.Errorf("%d failures, want %d", failures, want)
			}
			later := w.dial(v, a)
			later.must(wire.GetReplicaList, none)
			if w.rejected.Load() != uint64(want) || w.confirmed.Load() == 0 {
				t.Errorf("%d rejected, %d confirmed", w.rejected.Load(), w.confirmed.Load())
			}
		})
	}
}

// Only clients of 0.3.10 and later fetch tasks, so the call tells them from 0.3.9 even where 0.3.9 is at home.
func TestFetchTasksTells(t *testing.T) {
	w := newWorld(t)
	old := w.dial(wire.V0_3_9, a)
	old.must(wire.MountSegment, id(1))
	old.ask(wire.PutStart, id(1))
	c := w.dial(wire.V0_3_10, a)
	c.must(wire.FetchTasks, id(2))
	c.must(wire.MountSegment, id(2))
	if got := Label(c.possible()); got != "0.3.10 0.3.11" {
		t.Errorf("known as %s", got)
	}
}

func TestAddressCountsWhileItsClientsAgree(t *testing.T) {
	w := newWorld(t)
	writer := w.dial(wire.V0_3_12, a)
	writer.must(wire.PutStart, id(1))
	w.dial(wire.V0_3_12, a).must(wire.GetReplicaList, none) // told by the writer of the same address
	w.dial(wire.V0_3_13, b).must(wire.GetReplicaList, none) // another address: newest
	// A client of other versions on the same address is not this caller.
	w.dialPinned(wire.V0_3_7, wire.V0_3_7, a).must(wire.PutStart, none)
	w.dial(wire.V0_3_12, a).must(wire.GetReplicaList, none)
	// A second version makes the address useless; the connection still counts.
	w.dial(wire.V0_3_13, a).must(wire.PutStart, id(2))
	writer.must(wire.GetReplicaList, none)
	w.dial(wire.V0_3_13, a).must(wire.GetReplicaList, none) // newest
	c := w.dial(wire.V0_3_12, a)
	if c.ask(wire.GetReplicaList, none) {
		t.Error("guessed 0.3.12 on an address whose clients disagree")
	}
	w.dial(wire.V0_3_12, a).must(wire.GetReplicaList, none) // its next connection is flipped
	w.dial(wire.V0_3_13, a).must(wire.GetReplicaList, none) // but only that one
	c2 := w.dial(wire.V0_3_12, a)
	c2.must(wire.Ping, id(1)) // a client id decides
	c2.must(wire.GetReplicaList, none)
}

// Where clients disagree, one caller's failures add up until its version is found.
func TestFlipWhereClientsDisagree(t *testing.T) {
	for v := wire.V0_3_8; v <= wire.V0_3_11; v++ {
		w := newWorld(t)
		for n, u := range []wire.Version{wire.V0_3_8, wire.V0_3_9, wire.V0_3_10, wire.V0_3_11} {
			c := w.dial(u, a)
			c.must(wire.MountSegment, id(uint64(n+1)))
			for !c.ask(wire.PutStart, id(uint64(n+1))) {
				c = w.dial(u, a)
				c.must(wire.MountSegment, id(uint64(n+1)))
			}
		}
		failures := 0
		for !w.dial(v, a).ask(wire.GetReplicaList, none) {
			if failures++; failures > 3 {
				t.Fatalf("%s is not found", v)
			}
		}
	}
}

// An upgraded process on an address is newer than what the address was remembered for.
func TestUpgrade(t *testing.T) {
	w := newWorld(t)
	old := w.dial(wire.V0_3_12, a)
	if old.ask(wire.GetReplicaList, none) {
		t.Fatal("0.3.12 was guessed without a reason")
	}
	old = w.dial(wire.V0_3_12, a)
	old.must(wire.GetReplicaList, none)
	w.pass(time.Second)
	old.must(wire.GetReplicaList, none)
	old.hangUp(wire.GetReplicaList, time.Second)
	failures := 0
	for range 5 {
		c := w.dial(wire.V0_3_13, a)
		c.must(wire.ServiceReady, none)
		if !c.ask(wire.GetReplicaList, none) {
			failures++
		}
		w.pass(settle)
	}
	if failures > 1 {
		t.Errorf("%d gets of the new process failed", failures)
	}
	// One that writes loses nothing.
	c := w.dial(wire.V0_3_12, a)
	c.must(wire.PutStart, id(9))
	c.must(wire.GetReplicaList, none)
}

func TestWhatIsNoHangUp(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*world, *conn)
	}{
		{"half a second later", func(w *world, c *conn) {
			w.pass(500 * time.Millisecond)
			c.hangUp(wire.GetReplicaList, 500*time.Millisecond)
		}},
		{"closed by us", func(w *world, c *conn) {
			c.close(c.caller, rpc.CloseInfo{Reason: rpc.ClosedIdle, Answered: true, LastFunction: wire.GetReplicaList.ID()})
		}},
		{"after it was confirmed", func(w *world, c *conn) {
			w.pass(settle)
			c.must(wire.GetReplicaList, none)
			c.hangUp(wire.GetReplicaList, 0)
		}},
		{"after a call that tells everything", func(w *world, c *conn) {
			w.pass(hangUp + time.Millisecond)
			c.must(wire.PutStart, id(1))
			c.hangUp(wire.PutStart, 0)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			x := w.dial(wire.V0_3_13, a)
			x.must(wire.GetReplicaList, none)
			c.end(w, x)
			if n := w.rejected.Load(); n != 0 {
				t.Errorf("%d rejections", n)
			}
			w.dial(wire.V0_3_13, a).must(wire.GetReplicaList, none)
		})
	}
	t.Run("another call on the connection meanwhile", func(t *testing.T) {
		w := newWorld(t)
		x := w.dial(wire.V0_3_12, a)
		set, ambiguous := wire.GetReplicaList.Candidates(0x7cf91ed8)
		x.resolve(x.caller, wire.GetReplicaList.ID(), none, set, ambiguous)
		x.must(wire.ExistKey, none)
		w.pass(300 * time.Microsecond)
		x.hangUp(wire.ExistKey, 200*time.Microsecond)
		w.dial(wire.V0_3_12, a).must(wire.GetReplicaList, none)
	})
}

// A program that reads an object and ends is served right every time, and so is the next one.
func TestScriptsThatReadOnce(t *testing.T) {
	for _, end := range []time.Duration{4 * time.Millisecond, 10 * time.Millisecond, 15 * time.Millisecond} {
		w := newWorld(t)
		for range 50 {
			c := w.dial(wire.V0_3_13, a)
			c.must(wire.ServiceReady, none)
			c.must(wire.GetReplicaList, none)
			w.pass(end)
			c.hangUp(wire.GetReplicaList, end)
			w.pass(20 * time.Millisecond)
		}
		if n := w.rejected.Load(); n != 0 {
			t.Errorf("ends %v after its answer: %d rejections", end, n)
		}
	}
}

// A client on a slow machine that cannot decode an answer takes longer to hang up; that it asks on tells.
func TestSlowHangUp(t *testing.T) {
	w := newWorld(t)
	c := w.dial(wire.V0_3_12, a)
	c.must(wire.ServiceReady, none)
	set, ambiguous := wire.GetReplicaList.Candidates(0x7cf91ed8)
	c.resolve(c.caller, wire.GetReplicaList.ID(), none, set, ambiguous)
	w.pass(8 * time.Millisecond)
	c.hangUp(wire.GetReplicaList, 8*time.Millisecond)
	w.dial(wire.V0_3_12, a).must(wire.GetReplicaList, none)

	// An hour later it tells nothing.
	w = newWorld(t)
	c = w.dial(wire.V0_3_13, a)
	c.must(wire.GetReplicaList, none)
	w.pass(8 * time.Millisecond)
	c.hangUp(wire.GetReplicaList, 8*time.Millisecond)
	w.pass(2 * comeBack)
	w.dial(wire.V0_3_13, a).must(wire.GetReplicaList, none)
}

// Processes that end within a millisecond after a read look like hang-ups. They must not flip the guess back and
// forth for ever.
func TestShortLivedReaders(t *testing.T) {
	w := newWorld(t)
	failures := 0
	const runs = 200
	for range runs {
		c := w.dial(wire.V0_3_13, a)
		c.must(wire.ServiceReady, none)
		if !c.ask(wire.GetReplicaList, none) {
			failures++
			continue
		}
		w.pass(time.Millisecond)
		c.hangUp(wire.GetReplicaList, time.Millisecond)
	}
	if failures > runs/2+maxPatience {
		t.Errorf("%d of %d failed", failures, runs)
	}
	// One that stays settles it.
	for {
		c := w.dial(wire.V0_3_13, a)
		if c.ask(wire.GetReplicaList, none) {
			w.pass(settle)
			c.must(wire.GetReplicaList, none)
			break
		}
	}
	w.dial(wire.V0_3_13, a).must(wire.GetReplicaList, none)
}

func TestServiceReady(t *testing.T) {
	w := newWorld(t)
	for range 3 { // 0.3.7 on the default port is refused each time, never flipped
		c := w.dial(wire.V0_3_7, a)
		if c.ask(wire.ServiceReady, none) {
			t.Fatal("0.3.7 was served on the default port")
		}
	}
	if n := w.readyHangUps.Load(); n != 3 {
		t.Errorf("%d hang-ups counted", n)
	}
	w.dial(wire.V0_3_8, a).must(wire.ServiceReady, none)
	p := w.dialPinned(wire.V0_3_7, wire.V0_3_7, a)
	p.must(wire.ServiceReady, none)
	p.must(wire.GetReplicaList, none)
}

// A connection that contradicts itself (a proxy) is served by its latest request.
func TestContradiction(t *testing.T) {
	w := newWorld(t)
	c := w.dial(wire.V0_3_12, a)
	c.must(wire.PutStart, id(1))
	c.speaks = wire.V0_3_13
	c.must(wire.PutStart, id(2))
	c.must(wire.GetReplicaList, none)
	if w.contradictions.Load() == 0 {
		t.Error("not counted")
	}
	// A newer client on the pinned port is served too, but for ServiceReady.
	p := w.dialPinned(wire.V0_3_13, wire.V0_3_7, a)
	p.must(wire.PutStart, id(3))
	p.must(wire.GetReplicaList, none)
}

// Client and connection that disagree (one id on connections of two versions) never leave a request without a version.
func TestDisjointKnowledge(t *testing.T) {
	w := newWorld(t)
	x, y := w.dial(wire.V0_3_12, a), w.dial(wire.V0_3_13, a)
	x.must(wire.Ping, id(1))
	y.must(wire.Ping, id(1))
	x.must(wire.PutStart, id(2))
	y.must(wire.PutStart, id(1))
	x.must(wire.PutEnd, id(1))
	x.must(wire.GetReplicaList, none)
	for range 3 {
		x.must(wire.PutStart, id(1))
		y.must(wire.PutStart, id(1))
		x.must(wire.ExistKey, none)
		y.must(wire.ExistKey, none)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	w := newWorld(t)
	addr := netip.MustParseAddr("10.0.0.0")
	for range maxHosts + 1000 {
		addr = addr.Next()
		c := w.open(netip.AddrPortFrom(addr, 1), 0, false)
		w.close(c, rpc.CloseInfo{Reason: rpc.ClosedByPeer})
	}
	if len(w.hosts) > maxHosts {
		t.Errorf("%d addresses", len(w.hosts))
	}
	c := w.dial(wire.V0_3_13, a)
	for n := range maxClients + 1000 {
		c.must(wire.Ping, id(uint64(n+1)))
	}
	if len(w.clients) > maxClients {
		t.Errorf("%d clients", len(w.clients))
	}
	if n := len(w.Clients()); n != 1 {
		t.Errorf("%d clients are listed", n)
	}
}

func TestForgetting(t *testing.T) {
	w := newWorld(t)
	c := w.dial(wire.V0_3_12, a)
	c.ask(wire.GetReplicaList, none)
	w.pass(forget + time.Second)
	w.dial(wire.V0_3_13, a).must(wire.GetReplicaList, none)
}

func TestList(t *testing.T) {
	w := newWorld(t)
	w.dial(wire.V0_3_12, a).must(wire.PutStart, id(7))
	w.dial(wire.V0_3_12, a).must(wire.Ping, id(7))
	w.dial(wire.V0_3_13, a).must(wire.ExistKey, none)
	w.dial(wire.V0_3_13, b)
	var got []string
	for _, c := range w.Clients() {
		got = append(got, fmt.Sprintf("%s %s %s %d", c.Address, c.ID, Label(c.Versions), c.Connections))
	}
	want := []string{
		a + " 0-0 0.3.12 0.3.13 1",
		a + " 7-18446744073709551608 0.3.12 2",
		b + " 0-0 unknown 1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(w.Memory)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, f := range families {
		for _, m := range f.GetMetric() {
			fmt.Fprintf(&text, "%s %v\n", f.GetName(), m)
		}
	}
	for _, want := range []string{`value:"0.3.12"`, `value:"unknown"`, `value:"made"`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%s is missing in\n%s", want, text.String())
		}
	}
}

func BenchmarkResolveKnown(b *testing.B) {
	m := New(nil)
	c := m.open(netip.MustParseAddrPort("192.0.2.1:1"), 0, false)
	set, ambiguous := wire.PutStart.Candidates(0xe385bd0e)
	m.resolve(c, wire.PutStart.ID(), id(1), set, ambiguous)
	set, ambiguous = wire.GetReplicaList.Candidates(0x7cf91ed8)
	for b.Loop() {
		m.resolve(c, wire.GetReplicaList.ID(), none, set, ambiguous)
	}
}

func BenchmarkResolveGuessed(b *testing.B) {
	m := New(nil)
	c := m.open(netip.MustParseAddrPort("192.0.2.1:1"), 0, false)
	set, ambiguous := wire.GetReplicaList.Candidates(0x7cf91ed8)
	for b.Loop() {
		m.resolve(c, wire.GetReplicaList.ID(), none, set, ambiguous)
	}
}
