package store

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// mixedEnv is what a release needs to reach segments of the others. Owners before 0.3.10 close the data
// connection after each transfer, which the pool of 0.3.13 does not expect.
func mixedEnv(version string) []string {
	if version == newest {
		return []string{"MC_TCP_ENABLE_CONNECTION_POOL=0"}
	}
	return nil
}

// TestTogether has clients of all releases live at once on one host, each with a segment, and every one
// reads what every one wrote into the segment of every one.
func TestTogether(t *testing.T) {
	oursOnly(t, "serves one release only")
	s := startServer(t, newest)
	var all []*client
	for _, v := range testenv.StoreVersions {
		c := startClient(t, v, s.addr(v), options{segment: 32, env: mixedEnv(v)})
		c.settle = true // some writers are old
		all = append(all, c)
	}
	s.waitSegments(t, soon, len(all))

	type object struct {
		key  string
		size int
	}
	var objects []object
	for _, writer := range all {
		for _, owner := range all {
			for _, size := range []int{5, 300_000, 1<<20 + 3} {
				o := object{fmt.Sprintf("%s/%s/%d", writer.wheel.Version, owner.wheel.Version, size), size}
				writer.put(o.key, o.size, args{"preferred_segment": owner.host})
				objects = append(objects, o)
			}
		}
	}
	keys, sizes := make([]string, len(objects)), make([]int, len(objects))
	for i, o := range objects {
		keys[i], sizes[i] = o.key, o.size
	}
	for _, reader := range all {
		for _, o := range objects {
			reader.check(o.key, o.key, o.size)
		}
		for i := 0; i < len(keys); i += 10 {
			end := min(i+10, len(keys))
			reader.checkAll(keys[i:end], sizes[i:end])
		}
		reader.wantAll([]int{1, 0, 1}, "batch_is_exist", args{"keys": []string{keys[0], "no such", keys[len(keys)-1]}})
		reader.want(sizes[1], "get_size", args{"key": keys[1]})
	}

	t.Run("replicas on owners of different releases", func(t *testing.T) {
		for _, c := range all {
			k := "r2-" + c.wheel.Version
			c.put(k, 4000, args{"replica_num": len(all)})
			for _, r := range all {
				r.check(k, k, 4000)
			}
			if !c.methods["get_replica_desc"] {
				continue
			}
			at := map[string]bool{}
			for _, r := range c.call("replicas", args{"key": k}).Replicas {
				at[r.Endpoint] = true
			}
			if len(at) != len(all) {
				t.Errorf("%s: replicas at %v", k, at)
			}
		}
	})
	t.Run("upserts", func(t *testing.T) {
		for i, c := range all {
			if !c.methods["upsert"] {
				continue
			}
			seed, size := fmt.Sprintf("upsert-%d", i), 100+i/2
			c.want(0, "put", args{"key": "shared", "seed": seed, "size": size, "how": "upsert"})
			for _, r := range all {
				r.check("shared", seed, size)
			}
		}
	})
	t.Run("removal", func(t *testing.T) {
		for i, c := range all {
			k := "gone-" + c.wheel.Version
			c.put(k, 10)
			other := all[(i+3)%len(all)]
			other.want(0, "remove", args{"key": k})
			for _, r := range all {
				r.want(0, "is_exist", args{"key": k})
			}
			c.put(k, 20)
			other.check(k, k, 20)
			other.want(leased, "remove", args{"key": k})
		}
	})
	t.Run("who speaks what", func(t *testing.T) {
		out, err := exec.Command(testenv.Mooncake(t), "clients", "--admin", s.Admin, "--json").Output()
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Clients []struct {
				ID, Version string
				Segments    []string
			}
		}
		if err := json.Unmarshal(out, &list); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		owners := map[string]int{}
		for _, c := range list.Clients {
			if len(c.Segments) > 0 {
				owners[c.Version]++
			}
		}
		for _, v := range testenv.StoreVersions {
			v, _, _ = strings.Cut(v, ".post")
			if owners[v] != 1 {
				t.Errorf("%d clients of %s own a segment", owners[v], v)
			}
		}
		if t.Failed() {
			t.Logf("%s", out)
		}
	})
	t.Run("readers", func(t *testing.T) { readers(t, s, keys, sizes) })
	t.Run("closing", func(t *testing.T) {
		for i, c := range all {
			c.want(0, "close", nil)
			s.waitSegments(t, soon, len(all)-i-1)
			c.Stop(soon)
		}
	})
}

// readers adds clients that only read. They cannot be told from each other until an answer does not suit
// them: each may lose one get on each of its connections, of which it has three at most, and none after.
func readers(t *testing.T, s *server, keys []string, sizes []int) {
	const budget = 3
	for _, v := range testenv.StoreVersions {
		r := startClient(t, v, s.addr(v), options{env: mixedEnv(v)})
		lost := 0
		for i := 0; i < 2*len(keys); i++ {
			k := i % len(keys)
			err := r.reads(keys[k], keys[k], sizes[k])
			if err == nil {
				continue
			}
			if lost++; lost > budget || i >= len(keys) {
				t.Fatalf("get %d: %v", i, err)
			}
		}
		if lost > 0 {
			t.Logf("%s: %d gets lost", v, lost)
		}
		r.want(0, "close", nil)
		r.Stop(soon)
	}
}
