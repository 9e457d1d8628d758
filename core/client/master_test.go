package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/transports"
)

// quick makes a client notice within a moment that the master is silent.
func quick(o *client.Options) {
	o.RPCTimeout, o.ConnectTimeout, o.Heartbeat = 500*time.Millisecond, 300*time.Millisecond, 50*time.Millisecond
}

// Every call ends soon with a typed error, whatever way the master is missing.
func TestMasterUnreachable(t *testing.T) {
	m := startMaster(t)
	newNode(t, m.Addr, 16*mib)
	held, cut := testenv.NewTap(t, m.Addr), testenv.NewTap(t, m.Addr)
	for _, c := range []struct {
		name, addr string
		miss       func()
	}{
		{"refused", fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), func() {}},
		{"no answer to a connection", testenv.Blackhole(t), func() {}},
		{"accepts and resets", cut.Addr, cut.Cut},
		{"stops answering", held.Addr, held.Hold},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newClient(t, c.addr, quick)
			c.miss()
			ctx := deadline(t)
			for _, f := range []struct {
				name string
				call func() error
			}{
				{"connect", func() error { return x.Connect(ctx) }},
				{"get", func() error { _, err := x.Get(ctx, "k"); return err }},
				{"put", func() error { return x.Put(ctx, "k-"+c.name, []byte("v")) }},
				{"put batch", func() error { return x.PutBatch(ctx, objects(0, 2, 1))[1] }},
				{"exists", func() error { _, err := x.Exists(ctx, "k"); return err }},
				{"exists batch", func() error { _, err := x.ExistsBatch(ctx, []string{"k"}); return err }},
				{"get batch", func() error { _, errs := x.GetBatch(ctx, []string{"k", "l"}); return errs[1] }},
				{"remove", func() error { return x.Remove(ctx, "k", false) }},
			} {
				begin := time.Now()
				err := f.call()
				if !errors.Is(err, client.ErrUnavailable) {
					t.Errorf("%s: %v", f.name, err)
				}
				if got := client.Code(err); got != wire.ErrRPCTimeout && got != wire.ErrRPCFail {
					t.Errorf("%s: code %d", f.name, got)
				}
				if d := time.Since(begin); d > 5*time.Second {
					t.Errorf("%s took %v", f.name, d)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := x.Get(ctx, "k"); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled get: %v", err)
			}
		})
	}
}

// A put whose outcome is unknown leaves nothing behind, although the master comes back only later.
func TestUnknownPutIsRevoked(t *testing.T) {
	m := startMaster(t)
	newNode(t, m.Addr, 16*mib)
	line := testenv.NewTap(t, m.Addr)
	c := newClient(t, line.Addr, quick)
	if err := c.Put(deadline(t), "first", value("first", 1000)); err != nil {
		t.Fatal(err)
	}
	line.Hold()
	if err := c.Put(deadline(t), "k", value("k", 1000)); !errors.Is(err, client.ErrUnavailable) {
		t.Fatalf("put to a silent master: %v", err)
	}
	for i, err := range c.PutBatch(deadline(t), objects(0, 3, 1000)) {
		if !errors.Is(err, client.ErrUnavailable) {
			t.Fatalf("%d: %v", i, err)
		}
	}
	line.Release()
	testenv.Eventually(t, soon, func() error { return c.Put(deadline(t), "k", value("k", 1000)) })
	check(t, c, "k", 1000)
	testenv.Eventually(t, soon, func() error { return errors.Join(c.PutBatch(deadline(t), objects(0, 3, 1000), client.ExistsOK())...) })
	for i := range 3 {
		check(t, c, key(i), 1000)
	}
}

func TestMasterAddresses(t *testing.T) {
	m := startMaster(t)
	newNode(t, m.Addr, 16*mib)
	for _, c := range []struct {
		name  string
		addrs []string
	}{
		{"the first is down", []string{fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), m.Addr}},
		{"the second is down", []string{m.Addr, fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))}},
		{"the first is a black hole", []string{testenv.Blackhole(t), m.Addr}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newClient(t, m.Addr, quick, func(o *client.Options) { o.Master = c.addrs })
			for i := range 3 {
				k := fmt.Sprint(c.name, i)
				if err := x.Put(deadline(t), k, value(k, 10)); err != nil {
					t.Fatal(err)
				}
				check(t, x, k, 10)
			}
			if x.Master() != m.Addr {
				t.Errorf("master in use: %s", x.Master())
			}
		})
	}
	for _, addrs := range [][]string{nil, {""}, {"host"}, {":50051"}, {"a:1", "b"}} {
		if _, err := client.New(client.Options{Config: client.DefaultConfig(), Master: addrs}); err == nil || !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%q: %v", addrs, err)
		}
	}
}

// A master that is replaced by an empty one gets the segment back by itself, and what was there before is refused:
// writers and readers who know the old address do not touch what is stored next.
func TestRemountAfterRestart(t *testing.T) {
	m := startMaster(t)
	n := newNode(t, m.Addr, 16*mib, quick)
	c := newClient(t, m.Addr, quick)
	if err := c.Put(deadline(t), "old", value("old", mib)); err != nil {
		t.Fatal(err)
	}
	stale, err := c.Replicas(deadline(t), "old")
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Open(deadline(t), "old")
	if err != nil {
		t.Fatal(err)
	}
	before := n.Mount.Segment()
	m.Kill()
	testenv.Eventually(t, soon, func() error {
		if n.Client.Health() == nil {
			return errors.New("healthy without a master")
		}
		return nil
	})
	if _, err := c.Get(deadline(t), "old"); !errors.Is(err, client.ErrUnavailable) {
		t.Errorf("get without a master: %v", err)
	}
	m.Start()
	testenv.Eventually(t, soon, n.Client.Health)
	after := n.Mount.Segment()
	if after.Base == before.Base || after.ID == before.ID || after.Size != before.Size || after.Name != before.Name {
		t.Errorf("segment before %+v, after %+v", before, after)
	}
	testenv.Eventually(t, soon, func() error { return c.Put(deadline(t), "new", value("new", 15*mib), client.HardPin()) })

	// The new object lies where the old one was.
	e := c.Engine()
	s, err := e.Open(deadline(t), stale[0].Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Write(deadline(t), s, make([]byte, mib), stale[0].Address); !errors.Is(err, transports.ErrRejected) {
		t.Errorf("a writer with the old address: %v", err)
	}
	if err := e.Read(deadline(t), s, make([]byte, mib), stale[0].Address); !errors.Is(err, transports.ErrRejected) {
		t.Errorf("a reader with the old address: %v", err)
	}
	if got, err := r.Read(make([]byte, mib)); err == nil {
		t.Errorf("a Reader of before got %d bytes", got)
	}
	check(t, c, "new", 15*mib)
	if _, err := c.Get(deadline(t), "old"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("old object: %v", err)
	}
	for range 3 { // and again
		m.Restart()
		testenv.Eventually(t, soon, func() error {
			if err := n.Client.Health(); err != nil {
				return err
			}
			return c.Put(deadline(t), "again", value("again", mib), client.ExistsOK())
		})
		check(t, c, "again", mib)
	}
}

// A node that does not reach the master for longer than client_ttl is forgotten and comes back empty.
func TestExpiredNodeComesBack(t *testing.T) {
	m := startMaster(t, "--client_ttl=1")
	line := testenv.NewTap(t, m.Addr)
	n := newNode(t, line.Addr, 16*mib, quick)
	c := newClient(t, m.Addr)
	if err := c.Put(deadline(t), "k", value("k", mib)); err != nil {
		t.Fatal(err)
	}
	before := n.Mount.Segment()
	for name, miss := range map[string][2]func(){"cut": {line.Cut, line.Mend}, "held": {line.Hold, line.Release}} {
		t.Run(name, func(t *testing.T) {
			miss[0]()
			testenv.Eventually(t, soon, func() error {
				if _, err := c.Get(deadline(t), "k"); !errors.Is(err, client.ErrNotFound) {
					return fmt.Errorf("the object of a silent node: %v", err)
				}
				return nil
			})
			if err := c.Put(deadline(t), "k", value("k", mib)); !errors.Is(err, client.ErrNoSpace) {
				t.Errorf("put without a node: %v", err)
			}
			miss[1]()
			testenv.Eventually(t, soon, func() error { return c.Put(deadline(t), "k", value("k", mib)) })
			check(t, c, "k", mib)
			if after := n.Mount.Segment(); after.Base == before.Base {
				t.Error("the segment came back at its old address")
			}
			before = n.Mount.Segment()
		})
	}
}

// Without a master at the start the node keeps trying, and says so.
func TestMountWaitsForTheMaster(t *testing.T) {
	m := startMaster(t)
	m.Kill()
	n := prepareNode(t, m.Addr, 16*mib, quick)
	var err error
	if n.Mount, err = n.Client.Mount(client.SegmentSpec{Region: n.region}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := n.Mount.Wait(ctx); !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %v", err)
	}
	m.Start()
	if err := n.Mount.Wait(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := n.Client.Put(deadline(t), "k", value("k", mib)); err != nil {
		t.Fatal(err)
	}
	check(t, n.Client, "k", mib)
}

func segments(t testing.TB, m *testenv.StoreMaster) []string {
	t.Helper()
	_, body, err := m.Get("/get_all_segments")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(body)
}

// After an orderly end nothing dangles: the segment is gone at once, other nodes' replicas stay.
func TestUnmount(t *testing.T) {
	m := startMaster(t)
	a, b := newNode(t, m.Addr, 16*mib), newNode(t, m.Addr, 16*mib)
	c := newClient(t, m.Addr)
	for i := range 10 {
		if err := c.Put(deadline(t), key(i), value(key(i), mib/2), client.Replicas(2)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Put(deadline(t), "only a", value("only a", 100), client.Prefer(a.name())); err != nil {
		t.Fatal(err)
	}
	if err := a.Mount.Unmount(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if got := segments(t, m); len(got) != 1 || got[0] != b.name() {
		t.Errorf("segments after Unmount: %q", got)
	}
	if err := a.Mount.Unmount(deadline(t)); err != nil {
		t.Errorf("second Unmount: %v", err)
	}
	for i := range 10 {
		check(t, c, key(i), mib/2)
	}
	if _, err := c.Get(deadline(t), "only a"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("object without a replica: %v", err)
	}
	begin := time.Now()
	if err := b.Client.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("close took %v", d)
	}
	if got := segments(t, m); len(got) != 0 {
		t.Errorf("segments after Close: %q", got)
	}
	if _, err := b.Client.Get(deadline(t), key(0)); !errors.Is(err, client.ErrClosed) {
		t.Errorf("get after Close: %v", err)
	}
	if err := b.Client.Put(deadline(t), "k", []byte("v")); !errors.Is(err, client.ErrClosed) {
		t.Errorf("put after Close: %v", err)
	}
	if _, err := b.Client.Mount(client.SegmentSpec{Region: b.region}); !errors.Is(err, client.ErrClosed) {
		t.Errorf("mount after Close: %v", err)
	}
	// The master is gone: the end does not wait for it.
	d := newNode(t, m.Addr, mib, quick)
	m.Kill()
	begin = time.Now()
	if err := d.Client.Close(deadline(t)); !errors.Is(err, client.ErrUnavailable) {
		t.Errorf("close without a master: %v", err)
	}
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("close without a master took %v", d)
	}
}

// The master lets the owner of a replica copy and move it.
func TestTasks(t *testing.T) {
	m := startMaster(t)
	fast := func(o *client.Options) { o.TaskInterval = 30 * time.Millisecond }
	a, b := newNode(t, m.Addr, 16*mib, fast), newNode(t, m.Addr, 16*mib, fast)
	c := newClient(t, m.Addr)
	ctx := deadline(t)
	for _, k := range []string{"copied", "moved"} {
		if err := c.Put(ctx, k, value(k, 3*mib+1), client.Prefer(a.name())); err != nil {
			t.Fatal(err)
		}
	}
	finish := func(id wire.UUID, err error) client.Task {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		var task client.Task
		testenv.Eventually(t, soon, func() error {
			if task, err = c.Task(ctx, id); err == nil && !task.Finished() {
				err = fmt.Errorf("%+v", task)
			}
			return err
		})
		return task
	}
	if task := finish(c.Copy(ctx, "copied", b.name())); task.State != "success" || task.Kind != "copy" || task.Node != a.Client.ID() {
		t.Errorf("%+v", task)
	}
	if rs, err := c.Replicas(ctx, "copied"); err != nil || len(rs) != 2 {
		t.Errorf("replicas after the copy: %+v, %v", rs, err)
	}
	if task := finish(c.Move(ctx, "moved", a.name(), b.name())); task.State != "success" || task.Kind != "move" {
		t.Errorf("%+v", task)
	}
	if rs, err := c.Replicas(ctx, "moved"); err != nil || len(rs) != 1 || rs[0].Endpoint != b.name() {
		t.Errorf("replicas after the move: %+v, %v", rs, err)
	}
	if err := a.Mount.Unmount(ctx); err != nil {
		t.Fatal(err)
	}
	check(t, c, "copied", 3*mib+1)
	check(t, c, "moved", 3*mib+1)

	if _, err := c.Copy(ctx, "missing", b.name()); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("copy of a missing object: %v", err)
	}
	if _, err := c.Copy(ctx, "moved", "no such segment"); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("copy to nowhere: %v", err)
	}
	if _, err := c.Task(ctx, wire.UUID{1, 2}); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("unknown task: %v", err)
	}
	// A target without room: the task fails, and the object can be removed: nothing holds it any more.
	small := newNode(t, m.Addr, mib, fast)
	if task := finish(c.Copy(ctx, "moved", small.name())); task.State != "failed" || task.Message == "" {
		t.Errorf("%+v", task)
	}
	if err := c.Remove(ctx, "moved", true); err != nil {
		t.Errorf("remove after a failed copy: %v", err)
	}
}
