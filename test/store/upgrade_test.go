package store

import (
	"fmt"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// TestRollingUpgrade replaces clients of 0.3.12 by clients of 0.3.13, one by one, under load. Clients that
// write never lose anything; one that only reads may lose one get for each of its connections, because
// its version can be told only by an answer that does not suit it.
func TestRollingUpgrade(t *testing.T) {
	oursOnly(t, "serves one release only")
	for _, c := range []struct {
		name  string
		hosts bool // each client has an IP address of its own
	}{{"hosts", true}, {"one host", false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rollingUpgrade(t, c.hosts)
		})
	}
}

const (
	oldRelease = "0.3.12.post1"
	budget     = 3 // connections of a client, hence gets that a reader may lose
)

// role is a place in the cluster that one client fills and then its successor.
type role struct {
	name    string
	writes  bool
	release string
	client  *client
	relay   *relay
}

func rollingUpgrade(t *testing.T, hosts bool) {
	s := startServer(t, newest)
	// What readers read lies on a client that stays, and so does the space for writers: an upgrade takes the
	// data of the client with it, which is not what is tested here.
	keeper := startClient(t, newest, s.addr(newest), options{segment: 64})
	var reads [][]any
	for i := range 20 {
		k, size := fmt.Sprintf("kept-%d", i), 1000*(i+1)
		keeper.put(k, size, args{"hard_pin": true})
		reads = append(reads, []any{k, value(k, size)})
	}
	roles := []*role{{name: "writer-1", writes: true}, {name: "writer-2", writes: true}, {name: "reader-1"}, {name: "reader-2"}}
	start := func(r *role, release string) {
		addr := s.addr(release)
		if hosts {
			r.relay = startRelay(t, addr)
			addr = r.relay.addr
		}
		o := options{}
		if r.writes {
			o.segment = 16
		}
		r.release = release
		r.client = startClient(t, release, addr, o)
		if r.writes {
			r.client.call("load_start", args{"load": "l", "kind": "write", "prefix": r.name + release, "size": 2000, "force": true,
				"config": args{"preferred_segment": keeper.host}})
		} else {
			r.client.call("load_start", args{"load": "l", "kind": "read", "reads": reads})
		}
		r.progress(t, 200)
	}
	stop := func(r *role) {
		r.verdict(t, r.client.call("load_stop", args{"load": "l"}))
		r.client.want(0, "close", nil)
		r.client.Stop(soon)
	}
	for _, r := range roles {
		start(r, oldRelease)
	}
	for _, r := range roles {
		stop(r)
		start(r, newest)
		for _, other := range roles {
			other.progress(t, 200)
		}
	}
	for _, r := range roles {
		before := r.client.call("load_status", args{"load": "l"}).Failed
		r.progress(t, 500)
		if after := r.client.call("load_status", args{"load": "l"}).Failed; after != before {
			t.Errorf("%s: %d more failures after the upgrade had ended", r.name, after-before)
		}
	}
	for _, r := range roles {
		stop(r)
	}
}

// progress waits until the load has done n more operations.
func (r *role) progress(t testing.TB, n int) {
	t.Helper()
	from := r.client.call("load_status", args{"load": "l"}).Ops
	testenv.Eventually(t, late, func() error {
		if a := r.client.call("load_status", args{"load": "l"}); a.Ops < from+n {
			return fmt.Errorf("%s (%s): %d operations since, want %d; failed %d %v", r.name, r.release, a.Ops-from, n, a.Failed, a.Errors)
		}
		return nil
	})
}

func (r *role) verdict(t testing.TB, a answer) {
	t.Helper()
	allowed := 0
	if !r.writes {
		allowed = budget
		if r.relay != nil {
			allowed = min(allowed, int(r.relay.accepted.Load()))
		}
	}
	if a.Wrong > 0 || a.Failed > allowed {
		t.Errorf("%s (%s): of %d operations %d failed, %d with wrong content; allowed are %d: %q", r.name, r.release, a.Ops, a.Failed, a.Wrong, allowed, a.Errors)
		return
	}
	t.Logf("%s (%s): %d operations, %d failed, the longest took %.3f s", r.name, r.release, a.Ops, a.Failed, a.Longest)
}
