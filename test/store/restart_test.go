package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// TestMasterRestart kills the master under live clients and starts an empty one: the clients mount their
// segments again by themselves and go on. Their first calls on new connections may be any.
func TestMasterRestart(t *testing.T) {
	together := func(t *testing.T, versions ...string) {
		t.Parallel()
		s := startServer(t, versions[len(versions)-1])
		var all []*client
		for _, v := range versions {
			c := startClient(t, v, s.addr(v), options{segment: 16, env: mixedEnv(v)})
			c.put("before-"+v, 1000)
			c.check("before-"+v, "before-"+v, 1000)
			all = append(all, c)
		}
		for round := range 2 {
			s.Restart()
			for _, c := range all {
				k := fmt.Sprintf("after-%d-%s", round, c.wheel.Version)
				testenv.Eventually(t, late, func() error {
					// 0 too when an earlier try was stored although its answer was lost.
					if a := c.call("put", args{"key": k, "seed": k, "size": 1000, "config": args{"preferred_segment": c.host}}); a.RC != 0 {
						return fmt.Errorf("%s: put: %d", c.wheel.Version, a.RC)
					}
					return c.reads(k, k, 1000)
				})
			}
			s.waitSegments(t, late, len(all))
			for _, c := range all {
				for _, other := range all {
					k := fmt.Sprintf("after-%d-%s", round, other.wheel.Version)
					testenv.Eventually(t, late, func() error { return c.reads(k, k, 1000) })
					c.check("before-"+other.wheel.Version, "", 0) // the new master is empty
				}
			}
		}
		for _, c := range all {
			c.want(0, "close", nil)
		}
		s.waitSegments(t, soon, 0)
	}
	for _, v := range []string{"0.3.7.post2", "0.3.9", newest} {
		t.Run(v, func(t *testing.T) { together(t, v) })
	}
	t.Run("all", func(t *testing.T) {
		oursOnly(t, "serves one release only")
		together(t, testenv.StoreVersions...)
	})
}

// TestMasterPaused stops the master for longer than client_ttl. No client could reach it, so none may be
// taken for dead when it goes on.
func TestMasterPaused(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest, "--client_ttl=3")
	a := startClient(t, newest, s.addr(newest), options{segment: 16, env: []string{"MC_RPC_TIMEOUT_MS=2000"}})
	a.put("k", 1000)
	a.want(1, "is_exist", args{"key": "k"})
	s.Freeze()
	stopped := time.Now()
	const timedOut = -901
	a.want(timedOut, "is_exist", args{"key": "k"})
	// The pause is the input of the test: twice the time after which a silent client is dead.
	time.Sleep(time.Until(stopped.Add(6 * time.Second)))
	s.Thaw()
	testenv.Eventually(t, soon, func() error {
		if rc := a.call("is_exist", args{"key": "k"}).RC; rc < 0 {
			return fmt.Errorf("is_exist: %d", rc)
		}
		return nil
	})
	for range 5 { // for longer than a master needs to notice a dead client
		a.check("k", "k", 1000)
		time.Sleep(500 * time.Millisecond)
	}
	a.put("k2", 1000)
}
