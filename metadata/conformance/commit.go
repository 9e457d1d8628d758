package conformance

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
)

func listed(t T, b metadata.Backend, prefix string) map[string]string {
	t.Helper()
	entries, err := b.(metadata.Lister).List(within(t), prefix)
	if err != nil {
		t.Fatalf("list %q: %v", prefix, err)
	}
	out := map[string]string{}
	for i, e := range entries {
		if i > 0 && entries[i-1].Key >= e.Key {
			t.Fatalf("list %q is not sorted: %q before %q", prefix, entries[i-1].Key, e.Key)
		}
		out[e.Key] = string(e.Value)
	}
	return out
}

func wantList(t T, b metadata.Backend, prefix string, want map[string]string) {
	t.Helper()
	if d := differ(listed(t, b, prefix), want); d != "" {
		t.Fatalf("list %q: %s", prefix, d)
	}
}

func list(t T, s *suite) {
	b, p := s.open(t), s.prefix()
	wantList(t, b, p, map[string]string{})
	want := map[string]string{}
	for i := range 300 {
		k := fmt.Sprintf("%sram/%d", p, i)
		put(t, b, k, fmt.Sprint(i))
		want[k] = fmt.Sprint(i)
	}
	put(t, b, p+"rpc_meta/1", "other")
	put(t, b, p+"ra", "shorter")
	wantList(t, b, p+"ram/", want)
	wantList(t, b, p+"rpc_meta/1", map[string]string{p + "rpc_meta/1": "other"})
	del(t, b, p+"ram/7")
	delete(want, p+"ram/7")
	wantList(t, b, p+"ram/", want)
}

func listOddPrefixes(t T, s *suite) {
	b, p := s.open(t), s.prefix()
	keys := []string{"a*b", "aXb", "a?b", "a[b]", "a\\b", "a^b", "é1", "é2", "\xff", "\xff\xff1", "nul\x00x"}
	for _, k := range keys {
		put(t, b, p+k, k)
	}
	for prefix, want := range map[string][]string{
		"a*": {"a*b"}, "a?": {"a?b"}, "a[": {"a[b]"}, "a\\": {"a\\b"}, "a^": {"a^b"}, "é": {"é1", "é2"},
		"\xff": {"\xff", "\xff\xff1"}, "nul\x00": {"nul\x00x"}, "none": nil, "a[b]": {"a[b]"},
	} {
		m := map[string]string{}
		for _, k := range want {
			m[p+k] = k
		}
		wantList(t, b, p+prefix, m)
	}
	all, err := b.(metadata.Lister).List(within(t), "")
	if err != nil || len(all) < len(keys) {
		t.Fatalf("list of everything: %d entries, %v", len(all), err)
	}
}

func commit(t T, b metadata.Backend, writes ...metadata.Write) error {
	t.Helper()
	return b.(metadata.Committer).Commit(within(t), writes...)
}

func mustCommit(t T, b metadata.Backend, writes ...metadata.Write) {
	t.Helper()
	if err := commit(t, b, writes...); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

// The version that Get and List report is the same, and fits Write.If.
func versions(t T, s *suite) {
	b, p := s.open(t), s.prefix()
	put(t, b, p+"k", "v")
	got := get(t, b, p+"k")
	entries, err := b.(metadata.Lister).List(within(t), p)
	if err != nil || len(entries) != 1 {
		t.Fatalf("list: %v, %v", entries, err)
	}
	if got.Version == "" || got.Version != entries[0].Version {
		t.Fatalf("versions: get %q, list %q", got.Version, entries[0].Version)
	}
	mustCommit(t, b, metadata.Write{Key: p + "k", Value: []byte("w"), If: &entries[0].Version})
	if now := get(t, b, p+"k"); now.Version == got.Version {
		t.Fatalf("the version %q did not change with the value", now.Version)
	}
}

func commitAllOrNothing(t T, s *suite) {
	b, p := s.open(t), s.prefix()
	mustCommit(t, b)
	put(t, b, p+"old", "old")
	put(t, b, p+"gone", "gone")
	mustCommit(t, b,
		metadata.Write{Key: p + "new", Value: []byte("new")},
		metadata.Write{Key: p + "old", Value: []byte("newer")},
		metadata.Write{Key: p + "gone", Delete: true},
		metadata.Write{Key: p + "never", Delete: true},
		metadata.Write{Key: p + "empty"},
	)
	wantValue(t, b, p+"new", "new")
	wantValue(t, b, p+"old", "newer")
	wantValue(t, b, p+"empty", "")
	wantAbsent(t, b, p+"gone")
	absent := ""
	err := commit(t, b,
		metadata.Write{Key: p + "other", Value: []byte("x")},
		metadata.Write{Key: p + "new", Delete: true},
		metadata.Write{Key: p + "old", Value: []byte("x"), If: &absent},
	)
	wantError(t, "commit", err, metadata.ErrConflict)
	wantAbsent(t, b, p+"other")
	wantValue(t, b, p+"new", "new")
	wantValue(t, b, p+"old", "newer")
}

func commitConditions(t T, s *suite) {
	b, key := s.open(t), s.prefix()+"k"
	absent := ""
	mustCommit(t, b, metadata.Write{Key: key, Value: []byte("1"), If: &absent})
	first := get(t, b, key).Version
	mustCommit(t, b, metadata.Write{Key: key, Value: []byte("2"), If: &first})
	wantError(t, "stale version", commit(t, b, metadata.Write{Key: key, Value: []byte("3"), If: &first}), metadata.ErrConflict)
	wantError(t, "stale delete", commit(t, b, metadata.Write{Key: key, Delete: true, If: &first}), metadata.ErrConflict)
	second := get(t, b, key).Version
	mustCommit(t, b, metadata.Write{Key: key, Delete: true, If: &second})
	wantAbsent(t, b, key)
	wantError(t, "deleted", commit(t, b, metadata.Write{Key: key, Value: []byte("4"), If: &second}), metadata.ErrConflict)
	mustCommit(t, b, metadata.Write{Key: key, Value: []byte("5"), If: &absent})
	wantValue(t, b, key, "5")
	odd := "no version"
	wantError(t, "foreign version", commit(t, b, metadata.Write{Key: key, Value: []byte("6"), If: &odd}), metadata.ErrConflict)
	// An empty value is a value: the key is not absent.
	put(t, b, key, "")
	wantError(t, "empty value", commit(t, b, metadata.Write{Key: key, Value: []byte("7"), If: &absent}), metadata.ErrConflict)
	empty := get(t, b, key).Version
	mustCommit(t, b, metadata.Write{Key: key, Value: []byte("8"), If: &empty})
}

func commitRepeatedKeys(t T, s *suite) {
	b, p := s.open(t), s.prefix()
	err := commit(t, b, metadata.Write{Key: p + "k", Value: []byte("1")}, metadata.Write{Key: p + "k", Delete: true})
	wantError(t, "commit", err, metadata.ErrRefused)
	wantAbsent(t, b, p+"k")
}

// Eight writers add one to a counter ten times each, by reading it and committing on its version.
func commitRaces(t T, s *suite) {
	const writers, each = 8, 10
	a, b, key := s.open(t), s.open(t), s.prefix()+"k"
	put(t, a, key, "0")
	var wg sync.WaitGroup
	for w := range writers {
		own := a
		if w%2 == 1 {
			own = b
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
			defer cancel()
			for n := 0; n < each; {
				e, err := own.Get(ctx, key)
				if err != nil {
					t.Errorf("get: %v", err)
					return
				}
				v, _ := strconv.Atoi(string(e.Value))
				err = own.(metadata.Committer).Commit(ctx,
					metadata.Write{Key: key, Value: []byte(strconv.Itoa(v + 1)), If: &e.Version})
				switch {
				case err == nil:
					n++
				case !errors.Is(err, metadata.ErrConflict):
					t.Errorf("commit: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	wantValue(t, a, key, strconv.Itoa(writers*each))
}
