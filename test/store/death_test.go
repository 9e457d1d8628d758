package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// absent waits until a key is gone.
func (c *client) absent(key string, within time.Duration) {
	c.t.Helper()
	testenv.Eventually(c.t, within, func() error {
		if a := c.call("is_exist", args{"key": key}); a.RC != 0 {
			return fmt.Errorf("is_exist %s: %d", key, a.RC)
		}
		return nil
	})
}

// TestWriterKilled kills a writer between PutStart and PutEnd, while its data are on their way to an owner that
// has been stopped. Until the discard timeout the key is taken; then the next put gets it.
func TestWriterKilled(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest, "--put_start_discard_timeout_sec=2", "--put_start_release_timeout_sec=3", "--client_ttl=60")
	owner := startClient(t, newest, s.addr(newest), options{segment: 16})
	other := startClient(t, newest, s.addr(newest), options{segment: 16})
	writer := startClient(t, newest, s.addr(newest), options{})
	to := args{"preferred_segment": owner.host}
	writer.put("warm", 1000, to) // the connection to the owner is there
	before, err := s.Metric("master_put_start_requests_total")
	if err != nil {
		t.Fatal(err)
	}
	owner.Freeze()
	writer.send("put", args{"key": "k", "seed": "lost", "size": 2 << 20, "config": to})
	testenv.Eventually(t, soon, func() error {
		n, err := s.Metric("master_put_start_requests_total")
		if err == nil && n != before+1 {
			err = fmt.Errorf("%v puts begun", n-before)
		}
		return err
	})
	writer.Kill()
	owner.Thaw()

	elsewhere := args{"preferred_segment": other.host}
	other.check("k", "", 0) // never half a value
	testenv.Eventually(t, soon, func() error {
		// A put of a key that is taken says 0 too and writes nothing.
		other.put("k", 3000, elsewhere)
		return other.reads("k", "k", 3000)
	})
	owner.check("k", "k", 3000)
	// The space of the lost put comes back: 2 MiB were taken of the owner's segment.
	testenv.Eventually(t, soon, func() error {
		a := owner.call("put", args{"key": "whole", "seed": "whole", "size": 15 << 20, "config": to})
		if a.RC != 0 {
			return fmt.Errorf("put of 15 MiB: %d", a.RC)
		}
		desc := owner.call("replicas", args{"key": "whole"}).Replicas
		if len(desc) != 1 || desc[0].Bytes != 15<<20 {
			return fmt.Errorf("replicas: %v", desc)
		}
		return nil
	})
	owner.check("k", "k", 3000)
}

// TestOwnerKilled kills the owner of a segment while others read from it. No read may give wrong bytes, a second
// replica is read instead, and after client_ttl the objects are gone and can be put again.
func TestOwnerKilled(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest, "--client_ttl=3")
	owner := startClient(t, newest, s.addr(newest), options{segment: 64})
	keeper := startClient(t, newest, s.addr(newest), options{segment: 64})
	reader := startClient(t, newest, s.addr(newest), options{env: []string{"MC_RPC_TIMEOUT_MS=5000"}})
	var single, double [][]any
	for i := range 8 {
		k := fmt.Sprintf("single-%d", i)
		keeper.put(k, 300_000, args{"preferred_segment": owner.host})
		single = append(single, []any{k, value(k, 300_000)})
		k = fmt.Sprintf("double-%d", i)
		keeper.put(k, 300_000, args{"replica_num": 2})
		double = append(double, []any{k, value(k, 300_000)})
	}
	reader.call("load_start", args{"load": "single", "kind": "read", "reads": single})
	reader.call("load_start", args{"load": "double", "kind": "read", "reads": double})
	busy := func(load string, n int) answer {
		from := reader.call("load_status", args{"load": load})
		var a answer
		testenv.Eventually(t, late, func() error {
			if a = reader.call("load_status", args{"load": load}); a.Ops < from.Ops+n {
				return fmt.Errorf("%s: %d reads since, want %d", load, a.Ops-from.Ops, n)
			}
			return nil
		})
		a.Failed -= from.Failed
		return a
	}
	for _, load := range []string{"single", "double"} {
		if a := busy(load, 50); a.Failed > 0 {
			t.Fatalf("%s: %d reads failed before anything happened: %q", load, a.Failed, a.Errors)
		}
	}
	owner.Kill()
	s.waitSegments(t, soon, 1)
	if a := busy("single", 8); a.Failed == 0 {
		t.Error("reads of a dead owner's memory succeeded")
	}
	// Once the master knows, only the replica that is left is offered.
	busy("double", 16)
	if a := busy("double", 50); a.Failed > 0 {
		t.Errorf("double: %d reads failed although a replica is left: %q", a.Failed, a.Errors)
	}
	for _, load := range []string{"single", "double"} {
		if a := reader.call("load_stop", args{"load": load}); a.Wrong > 0 {
			t.Errorf("%s: %d reads gave wrong content: %q", load, a.Wrong, a.Errors)
		}
	}
	for i := range single {
		k := fmt.Sprintf("single-%d", i)
		reader.absent(k, soon)
		keeper.put(k, 1000)
		reader.check(k, k, 1000)
	}
}

// TestClientStopped stops a client for less and for more than client_ttl: its segment stays, or goes and comes back
// empty when it goes on.
func TestClientStopped(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest, "--client_ttl=4")
	a := startClient(t, newest, s.addr(newest), options{segment: 16})
	b := startClient(t, newest, s.addr(newest), options{segment: 16})
	a.put("on b", 1000, args{"preferred_segment": b.host})
	a.put("on a", 1000, args{"preferred_segment": a.host})

	// The pause is the input of the test.
	b.Freeze()
	time.Sleep(1500 * time.Millisecond)
	b.Thaw()
	b.check("on b", "on b", 1000)
	a.check("on b", "on b", 1000)
	s.waitSegments(t, soon, 2)

	b.Freeze()
	s.waitSegments(t, soon, 1)
	a.check("on b", "", 0)
	a.put("during", 1000, args{"preferred_segment": b.host}) // goes elsewhere
	a.check("during", "during", 1000)
	b.Thaw()
	s.waitSegments(t, soon, 2)
	b.check("on b", "", 0)
	b.check("on a", "on a", 1000)
	a.put("on b", 2000, args{"preferred_segment": b.host})
	a.check("on b", "on b", 2000)
	b.check("on b", "on b", 2000)
}

// TestOwnerCloses is about data that go with the client that lent the memory, and about the second replica.
func TestOwnerCloses(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest)
	a := startClient(t, newest, s.addr(newest), options{segment: 16})
	b := startClient(t, newest, s.addr(newest), options{segment: 16})
	a.put("single", 1000, args{"preferred_segment": a.host})
	a.put("double", 1000, args{"replica_num": 2})
	a.want(0, "close", nil)
	a.Stop(soon)
	s.waitSegments(t, soon, 1)
	b.absent("single", soon)
	b.check("single", "", 0)
	b.check("double", "double", 1000)
}
