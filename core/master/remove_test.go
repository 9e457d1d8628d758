package master

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

func TestRegex(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	for _, k := range []string{"a1", "a2", "b1", "xa1x", "leased-a1"} {
		s.put(k, 100)
	}
	s.start(clientA, "a-processing", 100)
	s.get("leased-a1")
	list := func(p string) ([]string, wire.ErrorCode) {
		var r wire.Result[[]wire.Pair[string, []wire.Replica]]
		s.GetReplicaListByRegex(t.Context(), &wire.KeyRequest{Key: p, Tenant: "default"}, &r)
		var keys []string
		for _, e := range r.Value {
			if len(e.Value) != 1 || e.Value[0].Size != 100 {
				t.Errorf("%s: %+v", e.Key, e.Value)
			}
			keys = append(keys, e.Key)
		}
		slices.Sort(keys)
		return keys, r.Code
	}
	for _, tc := range []struct {
		pattern string
		want    []string
	}{{"^a", []string{"a1", "a2"}}, {"a1", []string{"a1", "leased-a1", "xa1x"}}, {"^[ab]1$", []string{"a1", "b1"}}, {"none", nil}} {
		if got, code := list(tc.pattern); code != wire.OK || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v %v, want %v", tc.pattern, code, got, tc.want)
		}
	}
	for _, bad := range []string{"[", "(?=x)", `(a)\1`} {
		_, code := list(bad)
		s.must("pattern "+bad, code, wire.ErrInvalidParams)
	}
	s.must("remove of what a pattern leased", s.del("a1", false), wire.ErrObjectHasLease)
	s.clock.Add(10_001)
	s.get("leased-a1")
	remove := func(p string, force bool) wire.Result[int64] {
		var r wire.Result[int64]
		s.RemoveByRegex(t.Context(), &wire.RemoveRequest{Key: p, Force: force, Tenant: "default"}, &r)
		return r
	}
	s.must("bad pattern", remove("[", true).Code, wire.ErrInvalidParams)
	if r := remove("a", false); r.Code != wire.OK || r.Value != 3 {
		t.Errorf("removed %+v, want a1, a2, xa1x", r)
	}
	if r := remove("a", true); r.Value != 1 {
		t.Errorf("removed by force %+v, want the leased one and not the unfinished", r)
	}
	s.check()
	if n := s.Counters().Keys.Load(); n != 2 {
		t.Errorf("%d keys left", n)
	}
}

func TestScansStopWithTheirContext(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, 16*mib, clientA)
	for i := range 5000 {
		s.put(fmt.Sprintf("k%d", i), 100)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var r wire.Result[int64]
	s.RemoveByRegex(ctx, &wire.RemoveRequest{Key: ".", Tenant: "default"}, &r)
	if r.Code != wire.OK || r.Value != 0 {
		t.Errorf("%+v", r)
	}
	var all int64
	s.RemoveAll(t.Context(), &wire.RemoveAllRequest{Tenant: "default"}, &all)
	if all != 5000 {
		t.Errorf("removed %d", all)
	}
	s.check()
}

func TestRemoveAllLeavesWhatIsInUse(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.put("free", 100)
	s.put("read", 100)
	s.get("read")
	s.start(clientA, "written", 100)
	var n int64
	if s.RemoveAll(t.Context(), &wire.RemoveAllRequest{}, &n); n != 1 {
		t.Errorf("removed %d", n)
	}
	if s.RemoveAll(t.Context(), &wire.RemoveAllRequest{Force: true}, &n); n != 1 {
		t.Errorf("removed %d by force", n)
	}
	s.check()
}

func TestBatchRemoveAndClear(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, mib, clientA)
	s.mount(1, mib, clientA)
	s.put("a", 100)
	s.put("b", 100)
	s.get("b")
	var out []wire.Result[wire.Void]
	s.BatchRemove(&wire.BatchRemoveRequest{Keys: []string{"a", "b", "none", "a"}, Tenant: "default"}, &out)
	for i, want := range []wire.ErrorCode{wire.OK, wire.ErrObjectHasLease, wire.ErrObjectNotFound, wire.ErrObjectNotFound} {
		s.must("remove", out[i].Code, want)
	}
	s.put("c", 100, replicas(2))
	s.put("d", 100)
	s.start(clientA, "p", 100)
	clear := func(client wire.UUID, segment string, keys ...string) []string {
		var r wire.Result[[]string]
		s.BatchReplicaClear(&wire.BatchReplicaClearRequest{Keys: keys, Client: client, Segment: segment}, &r)
		s.must("clear", r.Code, wire.OK)
		return r.Value
	}
	if got := clear(clientB, "", "c", "d"); len(got) != 0 {
		t.Errorf("cleared another's: %v", got)
	}
	if got := clear(clientA, "", "b", "p", "none", ""); len(got) != 0 {
		t.Errorf("cleared what is leased, written or not there: %v", got)
	}
	if got := clear(clientA, "node0:1", "c"); !slices.Equal(got, []string{"c"}) {
		t.Errorf("cleared %v", got)
	}
	if list, code := s.get("c"); code != wire.OK || len(list.Replicas) != 1 || list.Replicas[0].Endpoint != node(1) {
		t.Errorf("c: %v %+v", code, list)
	}
	if got := clear(clientA, "node0:1", "c"); len(got) != 0 {
		t.Errorf("cleared again: %v", got)
	}
	if got := clear(clientA, "", "d"); !slices.Equal(got, []string{"d"}) || s.there("d") {
		t.Errorf("cleared %v", got)
	}
	s.check()
}

func TestListKeys(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, 64*mib, clientA)
	want := map[string]bool{}
	for i := range 3000 {
		k := fmt.Sprintf("key-%d", i)
		s.put(k, 100)
		want[k] = true
	}
	s.start(clientA, "unfinished", 100)
	for _, limit := range []int{1000, 7, 1 << 20} {
		got := map[string]bool{}
		cursor, pages := "", 0
		for {
			var keys []string
			var err error
			if keys, cursor, err = s.ListKeys(nil, "", cursor, limit); err != nil || len(keys) > limit {
				t.Fatalf("%d keys, %v", len(keys), err)
			}
			for _, k := range keys {
				if got[k] || !want[k] {
					t.Fatalf("%s is listed twice or should not be", k)
				}
				got[k] = true
			}
			if pages++; cursor == "" {
				break
			}
		}
		if len(got) != len(want) || pages < len(want)/limit {
			t.Errorf("limit %d: %d keys on %d pages", limit, len(got), pages)
		}
	}
	for _, bad := range []string{"zz", "ffffffffffffffff", "1"} {
		if _, _, err := s.ListKeys(nil, "", bad, 1); (err == nil) != (bad == "1") {
			t.Errorf("cursor %q: %v", bad, err)
		}
	}
}

// A store that was emptied gives its memory back and goes on.
func TestEmptiedStore(t *testing.T) {
	s := newStore(t, nil)
	s.mount(0, 1<<40, clientA)
	for round := range 2 {
		fillKeys(s, 0, 2*keepObjects*numShards/3*2, 64)
		s.start(clientA, "written", 10)
		if n := s.RemoveEverything(t.Context(), "", true); n != int64(2*keepObjects*numShards/3*2+round) {
			t.Fatalf("round %d: removed %d", round, n)
		}
		s.ping(clientA)
		s.pass(1)
		s.must("end", s.end(clientA, "written"), wire.OK)
		s.must("remove", s.del("written", true), wire.OK)
		large := 0
		for i := range s.shards {
			if s.shards[i].objects.next > keepObjects {
				large++
			}
		}
		if large != 0 {
			t.Errorf("round %d: %d empty shards keep their memory", round, large)
		}
		s.put("k", 100)
		s.check()
	}
	// The same when unfinished writes are given up.
	for i := range 2 * keepObjects * numShards / 64 {
		s.start(clientA, fmt.Sprintf("w%d", i), 10)
	}
	s.clock.Add(600_001)
	s.Poll()
	s.check()
}
