package store

import (
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// TestHostWithoutPort: clients that choose their port themselves. Those from 0.3.9 on try to set up twenty times, on
// new connections.
func TestHostWithoutPort(t *testing.T) {
	oursOnly(t, "serves one release only")
	t.Parallel()
	s := startServer(t, newest)
	var all []*client
	for _, v := range testenv.StoreVersions {
		c := startClient(t, v, s.addr(v), options{segment: 16, host: "127.0.0.1", env: mixedEnv(v)})
		c.settle = true
		all = append(all, c)
		for _, other := range all {
			k := other.wheel.Version + " to " + v
			other.put(k, 10_000, args{"preferred_segment": c.host})
			c.check(k, k, 10_000)
		}
	}
	for i, c := range all {
		c.want(0, "close", nil)
		s.waitSegments(t, soon, len(all)-1-i)
	}
}

// TestOldestOnTheSharedPort: 0.3.7 cannot be told from the others when it says hello, so on their port it is refused,
// at once and as by a master of another version, and nobody else is disturbed.
func TestOldestOnTheSharedPort(t *testing.T) {
	oursOnly(t, "serves one release only")
	t.Parallel()
	s := startServer(t, newest)
	a := startClient(t, newest, s.Addr, options{segment: 16})
	const oldest = "0.3.7.post2"
	old := startDriver(t, oldest)
	r := old.setup(s.Addr, options{segment: 16})
	if r.RC != badArgument || r.Seconds > 20 {
		t.Errorf("setup of %s on the shared port: %d after %.1f s, want %d", oldest, r.RC, r.Seconds, badArgument)
	}
	b := startClient(t, newest, s.Addr, options{segment: 16})
	a.put("k", 1000, args{"preferred_segment": b.host})
	b.check("k", "k", 1000)
	again := startClient(t, oldest, s.pinned, options{segment: 16})
	again.check("k", "k", 1000)
	again.put("old", 1000)
	a.settle = true
	a.check("old", "old", 1000)
}
