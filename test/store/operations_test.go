package store

import (
	"fmt"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// TestOperations runs every operation of a release, with a second client of it on the other side.
func TestOperations(t *testing.T) {
	for _, v := range testenv.StoreVersions {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, v)
			a := startClient(t, v, s.addr(v), options{segment: 64})
			b := startClient(t, v, s.addr(v), options{segment: 64})
			r := startClient(t, v, s.addr(v), options{}) // only reads, only through TCP
			for _, step := range []struct {
				name string
				run  func(t *testing.T, a, b, r *client)
			}{
				{"values", values}, {"missing", missing}, {"exists", exists}, {"removing", removing}, {"batches", batches},
				{"buffers", buffers}, {"replicas", replicas}, {"pins", pins}, {"upserts", upserts}, {"many", many}, {"sweeps", sweeps},
			} {
				if !t.Run(step.name, func(t *testing.T) {
					a.t, b.t, r.t = t, t, t
					step.run(t, a, b, r)
				}) {
					return
				}
			}
			a.t, b.t, r.t = t, t, t
			if a.methods["health_check"] {
				a.want(0, "health_check", nil)
			}
			r.want(0, "close", nil)
			a.want(0, "close", nil)
			s.waitSegments(t, soon, 1)
			b.want(0, "close", nil)
			s.waitSegments(t, soon, 0)
			for _, c := range []*client{a, b, r} {
				c.Stop(soon)
			}
		})
	}
}

// force is the argument of removals that ignore leases; releases before 0.3.9 have none.
func force(c *client, a args) args {
	if c.wheel.AtLeast("0.3.9") {
		a["force"] = true
	}
	return a
}

func values(t *testing.T, a, b, r *client) {
	for _, size := range []int{1, 7, 300, 4096, 65537, 1 << 20, 8<<20 + 3} {
		k := fmt.Sprintf("value-%d", size)
		a.put(k, size, args{"preferred_segment": b.host}) // over TCP
		for _, c := range []*client{a, b, r} {
			c.check(k, k, size)
		}
		a.want(size, "get_size", args{"key": k})
	}
	// The second put of a key says yes and writes nothing.
	a.put("once", 100)
	b.want(0, "put", args{"key": "once", "seed": "other", "size": 50})
	r.check("once", "once", 100)

	a.want(0, "put", args{"key": "parts", "seed": "parts", "size": 1000, "how": "put_parts"})
	b.check("parts", "parts", 1000)
	if got := b.call("get", args{"key": "parts", "how": "get_buffer"}); got.SHA != value("parts", 1000) {
		t.Errorf("get_buffer: %d bytes of wrong content", got.Bytes)
	}
	for _, k := range []string{"\u00e4 b\n%", string(make([]byte, 2000))} {
		a.put(k, 10)
		r.check(k, k, 10)
	}
}

func missing(t *testing.T, a, b, r *client) {
	for _, c := range []*client{a, r} {
		c.check("no such", "", 0)
		c.want(notFound, "get_size", args{"key": "no such"})
		c.want(0, "is_exist", args{"key": "no such"})
		c.want(notFound, "remove", args{"key": "no such"})
	}
	a.want(badArgument, "put", args{"key": "", "seed": "x", "size": 1})
}

func exists(t *testing.T, a, b, r *client) {
	a.put("e1", 10)
	r.want(1, "is_exist", args{"key": "e1"})
	b.wantAll([]int{1, 0, 1}, "batch_is_exist", args{"keys": []string{"e1", "e2", "e1"}})
}

func removing(t *testing.T, a, b, r *client) {
	a.put("unread", 10)
	b.want(0, "remove", args{"key": "unread"})
	b.want(notFound, "remove", args{"key": "unread"})
	a.put("read", 10)
	b.check("read", "read", 10)
	a.want(leased, "remove", args{"key": "read"})
	a.check("read", "read", 10)
	if a.wheel.AtLeast("0.3.9") {
		a.want(0, "remove", args{"key": "read", "force": true})
		b.check("read", "", 0)
	}
	if a.methods["batch_remove"] {
		a.put("br1", 10)
		a.put("br2", 10)
		b.check("br2", "br2", 10)
		a.wantAll([]int{0, leased, notFound}, "batch_remove", args{"keys": []string{"br1", "br2", "br3"}})
		a.wantAll([]int{notFound, 0}, "batch_remove", args{"keys": []string{"br1", "br2"}, "force": true})
	}
}

func batches(t *testing.T, a, b, r *client) {
	keys, sizes := []string{"b1", "b2", "b3"}, []int{10, 70000, 1}
	a.want(0, "put_batch", args{"keys": keys, "seeds": keys, "sizes": sizes})
	for _, c := range []*client{a, b, r} {
		c.checkAll(keys, sizes)
	}
	// One key is there already: the batch says yes and stores the others.
	b.want(0, "put_batch", args{"keys": []string{"b1", "b4"}, "seeds": []string{"x", "b4"}, "sizes": []int{9, 40}})
	r.checkAll([]string{"b1", "b4", "b5"}, []int{10, 40, 0})
}

func buffers(t *testing.T, a, b, r *client) {
	for _, c := range []*client{a, b} {
		c.want(0, "register", args{"buffer": "buf", "size": 4 << 20})
	}
	a.want(0, "put_from", args{"buffer": "buf", "key": "f1", "seed": "f1", "size": 100000, "at": 4096, "config": args{"preferred_segment": b.host}})
	for _, c := range []*client{a, b} {
		if err := c.settled(func() error {
			got := c.call("get_into", args{"buffer": "buf", "key": "f1", "at": 1 << 20, "size": 100000})
			if got.RC != 100000 {
				return fmt.Errorf("get_into: %d", got.RC)
			}
			return c.same("get_into", seen{got.Bytes, got.SHA}, "f1", 100000)
		}); err != nil {
			t.Error(err)
		}
	}
	if got := a.call("get_into", args{"buffer": "buf", "key": "no such", "size": 10}); got.RC >= 0 {
		t.Errorf("get_into of a missing key: %d", got.RC)
	}
	keys, sizes := []string{"f2", "f3"}, []int{5000, 1 << 20}
	a.wantAll([]int{0, 0}, "batch_put_from", args{"buffer": "buf", "keys": keys, "seeds": keys, "sizes": sizes})
	if err := b.settled(func() error {
		got := b.call("batch_get_into", args{"buffer": "buf", "keys": append(keys, "no such"), "sizes": append(sizes, 10)})
		if len(got.Codes) != 3 || got.Codes[0] != 5000 || got.Codes[1] != 1<<20 || got.Codes[2] >= 0 {
			return fmt.Errorf("batch_get_into: %v", got.Codes)
		}
		for i, k := range keys {
			if err := b.same("batch_get_into "+k, got.Values[i], k, sizes[i]); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	for _, c := range []*client{a, b} {
		c.want(0, "unregister", args{"buffer": "buf"})
	}
}

func replicas(t *testing.T, a, b, r *client) {
	for n := 1; n <= 3; n++ { // two segments: the third replica is not made, without a word
		k := fmt.Sprintf("replicas-%d", n)
		a.put(k, 1000, args{"replica_num": n})
		r.check(k, k, 1000)
		if !a.methods["get_replica_desc"] {
			continue
		}
		got := a.call("replicas", args{"key": k}).Replicas
		if len(got) != min(n, 2) || len(got) == 2 && got[0].Endpoint == got[1].Endpoint {
			t.Errorf("%s: replicas %v", k, got)
		}
	}
}

func pins(t *testing.T, a, b, r *client) {
	for _, c := range []struct {
		name, field string
		config      args
	}{
		{"soft", "with_soft_pin", args{"soft_pin": true}}, {"soft", "soft_pin_action", args{"soft_pin": true}},
		{"hard", "with_hard_pin", args{"hard_pin": true}}, {"group", "group_ids", args{"group_ids": []string{"g"}}},
		{"segments", "preferred_segments", args{"preferred_segments": []string{b.host, a.host}}},
	} {
		if !a.config[c.field] {
			continue
		}
		k := "pin-" + c.name
		a.put(k, 500, c.config)
		r.check(k, k, 500)
		b.want(1, "is_exist", args{"key": k})
	}
}

func upserts(t *testing.T, a, b, r *client) {
	if !a.methods["upsert"] {
		t.Logf("%s has no upsert", a.wheel.Version)
		return
	}
	for i, size := range []int{100, 100, 5000, 3} {
		seed := fmt.Sprintf("upsert-%d", i)
		a.want(0, "put", args{"key": "u1", "seed": seed, "size": size, "how": "upsert"})
		b.check("u1", seed, size)
		r.check("u1", seed, size)
	}
	keys, sizes := []string{"u1", "u2"}, []int{3, 4}
	a.want(0, "put_batch", args{"keys": keys, "seeds": keys, "sizes": sizes, "how": "upsert_batch"})
	b.checkAll(keys, sizes)
	a.want(0, "put", args{"key": "u3", "seed": "u3", "size": 30, "how": "upsert_parts"})
	a.want(0, "register", args{"buffer": "ups", "size": 1 << 20})
	a.want(0, "put_from", args{"buffer": "ups", "key": "u4", "seed": "u4", "size": 40, "how": "upsert_from"})
	a.wantAll([]int{0}, "batch_put_from", args{"buffer": "ups", "keys": []string{"u5"}, "seeds": []string{"u5"}, "sizes": []int{50}, "how": "batch_upsert_from"})
	b.checkAll([]string{"u3", "u4", "u5"}, []int{30, 40, 50})
	a.want(0, "unregister", args{"buffer": "ups"})
}

// many needs 16-bit lengths on the wire.
func many(t *testing.T, a, b, r *client) {
	const n = 300
	keys, sizes, ones := make([]string, n), make([]int, n), make([]int, n)
	for i := range keys {
		keys[i], sizes[i], ones[i] = fmt.Sprintf("many-%d", i), i+1, 1
	}
	a.want(0, "put_batch", args{"keys": keys, "seeds": keys, "sizes": sizes})
	r.checkAll(keys, sizes)
	b.wantAll(ones, "batch_is_exist", args{"keys": keys})
}

func sweeps(t *testing.T, a, b, r *client) {
	for i := range 5 {
		a.put(fmt.Sprintf("sweep-%d", i), 10)
	}
	b.check("sweep-0", "sweep-0", 10)
	a.want(0, "remove_by_regex", args{"pattern": "^no such"})
	a.want(2, "remove_by_regex", args{"pattern": "^sweep-[34]"})
	a.want(2, "remove_by_regex", args{"pattern": "^sweep"}) // 0 is leased
	r.check("sweep-0", "sweep-0", 10)
	if bad := a.call("remove_by_regex", args{"pattern": "["}); bad.RC >= 0 {
		t.Errorf("remove_by_regex of a bad pattern: %d", bad.RC)
	}
	a.put("unread-1", 10)
	a.put("unread-2", 10)
	if n := a.call("remove_all", force(a, args{})).RC; n < 2 {
		t.Errorf("remove_all: %d", n)
	}
	r.check("unread-1", "", 0)
	if a.wheel.AtLeast("0.3.9") {
		r.check("sweep-0", "", 0)
		r.want(0, "remove_all", args{"force": true})
	}
}
