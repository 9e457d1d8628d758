package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/metadata"
)

func abilities(t T, s *suite) {
	b := s.open(t)
	if has := DeclaredBy(b); has != s.want {
		t.Fatalf("%T has %+v, declared %+v", b, has, s.want)
	}
}

func getAbsent(t T, s *suite) {
	b, key := s.open(t), s.prefix()+"absent"
	e, err := b.Get(within(t), key)
	wantError(t, "get", err, metadata.ErrNotFound)
	if e.Value != nil {
		t.Fatalf("an absent key has the value %q", e.Value)
	}
	if !strings.Contains(err.Error(), key) {
		t.Fatalf("the error does not name the key: %v", err)
	}
}

func putGet(t T, s *suite) {
	b, p := s.open(t), s.prefix()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for name, value := range map[string]string{
		"json":     `{"ip_or_host_name":"127.0.0.1","rpc_port":16048}`,
		"newline":  "{\"a\":1}\n",
		"no json":  "not json",
		"empty":    "",
		"bytes":    string(all),
		"unicode":  "é 𝄞 \u0000",
		"newlines": "\r\n\r\n",
	} {
		put(t, b, p+name, value)
		wantValue(t, b, p+name, value)
	}
}

func putReplaces(t T, s *suite) {
	b, key := s.open(t), s.prefix()+"k"
	for _, v := range []string{"one", "a longer value than before", "", "2"} {
		put(t, b, key, v)
		wantValue(t, b, key, v)
	}
}

func valuesAreCopied(t T, s *suite) {
	b, key := s.open(t), s.prefix()+"k"
	value := []byte("mine")
	if err := b.Put(within(t), key, value); err != nil {
		t.Fatal(err)
	}
	copy(value, "XXXX")
	got := get(t, b, key)
	copy(got.Value, "YYYY")
	wantValue(t, b, key, "mine")
}

func deleteIdempotent(t T, s *suite) {
	b, p := s.open(t), s.prefix()
	del(t, b, p+"never there")
	put(t, b, p+"k", "v")
	put(t, b, p+"kk", "v")
	del(t, b, p+"k")
	wantAbsent(t, b, p+"k")
	del(t, b, p+"k")
	wantValue(t, b, p+"kk", "v")
}

// Segment names are chosen by users: they may hold anything.
func oddKeys(t T, s *suite) {
	b, p := s.open(t), s.prefix()
	keys := []string{
		"my/seg", "my%2Fseg", "my%252Fseg", "my seg", "my+seg", "my%20seg", "a b@c+d~e_f.é%", "日本語/🙂",
		"a=b&c=d", "a?b#c", "[::1]:12345", "fe80::1%eth0", "UPPER", "upper", "trailing", " leading",
		"back\\slash", "quo\"te", "glob*?[a]", "tab\tnewline\nend", "nul\x00inside", "bad utf8 \xff\xfe", "a//b", "../a", "a/",
		strings.Repeat("k", 600),
	}
	if !s.svc.TrimsKeys {
		keys = append(keys, "trailing ")
	}
	for i, k := range keys {
		put(t, b, p+k, fmt.Sprint(i))
	}
	for i, k := range keys {
		wantValue(t, b, p+k, fmt.Sprint(i))
	}
	for i, k := range keys {
		if i%2 == 0 {
			del(t, b, p+k)
		}
	}
	for i, k := range keys {
		if i%2 == 0 {
			wantAbsent(t, b, p+k)
		} else {
			wantValue(t, b, p+k, fmt.Sprint(i))
		}
	}
}

func emptyKey(t T, s *suite) {
	b := s.open(t)
	_, err := b.Get(within(t), "")
	wantError(t, "get", err, metadata.ErrRefused)
	wantError(t, "put", b.Put(within(t), "", []byte("v")), metadata.ErrRefused)
	wantError(t, "delete", b.Delete(within(t), ""), metadata.ErrRefused)
	if c, ok := b.(metadata.Committer); ok {
		wantError(t, "commit", c.Commit(within(t), metadata.Write{Value: []byte("v")}), metadata.ErrRefused)
	}
}

func largeValues(t T, s *suite) {
	b, key := s.open(t), s.prefix()+"k"
	for _, n := range []int{4 << 10, 64<<10 + 1, s.svc.MaxValue} {
		v := string(bytes.Repeat([]byte("mooncake\n"), n/9+1)[:n])
		put(t, b, key, v)
		wantValue(t, b, key, v)
	}
}

func visibleToOthers(t T, s *suite) {
	a, b, key := s.open(t), s.open(t), s.prefix()+"k"
	put(t, a, key, "from a")
	wantValue(t, b, key, "from a")
	put(t, b, key, "from b")
	wantValue(t, a, key, "from b")
	del(t, a, key)
	wantAbsent(t, b, key)
}

func concurrentUse(t T, s *suite) {
	b, p := s.open(t), s.prefix()
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
			defer cancel()
			for i := range 6 {
				key, value := fmt.Sprintf("%s%d", p, g), fmt.Sprintf("%d.%d", g, i)
				if err := b.Put(ctx, key, []byte(value)); err != nil {
					t.Errorf("goroutine %d: %v", g, err)
					return
				}
				if e, err := b.Get(ctx, key); err != nil || string(e.Value) != value {
					t.Errorf("goroutine %d: got %q, %v; want %q", g, e.Value, err, value)
					return
				}
			}
			if err := b.Delete(ctx, fmt.Sprintf("%s%d", p, g)); err != nil {
				t.Errorf("goroutine %d: %v", g, err)
			}
		})
	}
	wg.Wait()
}

// While one backend writes 1, 2, 3, ..., no reader ever sees the number fall.
func writesAreOrdered(t T, s *suite) {
	w, key := s.open(t), s.prefix()+"k"
	put(t, w, key, "0")
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		r := s.open(t)
		readers.Go(func() {
			for last := 0; ; {
				e, err := r.Get(context.Background(), key)
				var n int
				if err == nil {
					_, err = fmt.Sscan(string(e.Value), &n)
				}
				if err != nil || n < last {
					t.Errorf("read %q after %d: %v", e.Value, last, err)
					return
				}
				last = n
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := 1; i <= 100; i++ {
		put(t, w, key, fmt.Sprint(i))
		wantValue(t, w, key, fmt.Sprint(i))
	}
	close(done)
	readers.Wait()
}

func endedContext(t T, s *suite) {
	b, key := s.open(t), s.prefix()+"k"
	put(t, b, key, "v")
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	late, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	for name, ctx := range map[string]context.Context{"canceled": canceled, "late": late} {
		begin := time.Now()
		calls := map[string]error{
			"put":    b.Put(ctx, key, []byte("w")),
			"delete": b.Delete(ctx, key),
		}
		_, calls["get"] = b.Get(ctx, key)
		if l, ok := b.(metadata.Lister); ok {
			_, calls["list"] = l.List(ctx, key)
		}
		if c, ok := b.(metadata.Committer); ok {
			calls["commit"] = c.Commit(ctx, metadata.Write{Key: key})
		}
		if l, ok := b.(metadata.Leaser); ok {
			_, calls["lease"] = l.Lease(ctx, time.Second)
		}
		for call, err := range calls {
			wantError(t, name+" "+call, err, metadata.ErrUnavailable)
			wantError(t, name+" "+call, err, ctx.Err())
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Fatalf("%s: the calls took %v", name, took)
		}
	}
	wantValue(t, b, key, "v")
}

func callsAfterClose(t T, s *suite) {
	b, key := s.svc.Open(t), s.prefix()+"k"
	put(t, b, key, "v")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatalf("second close: %v", err)
	}
	ctx := within(t)
	_, err := b.Get(ctx, key)
	wantError(t, "get", err, metadata.ErrClosed)
	wantError(t, "put", b.Put(ctx, key, nil), metadata.ErrClosed)
	wantError(t, "delete", b.Delete(ctx, key), metadata.ErrClosed)
	if l, ok := b.(metadata.Lister); ok {
		_, err := l.List(ctx, key)
		wantError(t, "list", err, metadata.ErrClosed)
	}
	if c, ok := b.(metadata.Committer); ok {
		wantError(t, "commit", c.Commit(ctx, metadata.Write{Key: key}), metadata.ErrClosed)
	}
	if l, ok := b.(metadata.Leaser); ok {
		_, err := l.Lease(ctx, time.Second)
		wantError(t, "lease", err, metadata.ErrClosed)
	}
	if w, ok := b.(metadata.Watcher); ok {
		n := 0
		for _, err := range w.Watch(ctx, key) {
			wantError(t, "watch", err, metadata.ErrClosed)
			n++
		}
		if n != 1 {
			t.Fatalf("a watch after close yielded %d times, want one error", n)
		}
	}
	// Nothing was lost for others.
	wantValue(t, s.open(t), key, "v")
}

// nothingLeaks uses every ability once and then looks for goroutines.
func nothingLeaks(t T, s *suite) {
	before := goleak.IgnoreCurrent()
	b, p := s.svc.Open(t), s.prefix()
	put(t, b, p+"k", "v")
	wantValue(t, b, p+"k", "v")
	if w, ok := b.(metadata.Watcher); ok {
		for _, err := range w.Watch(within(t), p) {
			if err == nil {
				break
			}
		}
	}
	if l, ok := b.(metadata.Leaser); ok {
		lease, err := l.Lease(within(t), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Put(within(t), p+"leased", []byte("v")); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, err := b.Get(context.Background(), p+"k"); err != nil && !errors.Is(err, metadata.ErrClosed) {
				t.Errorf("get while closing: %v", err)
			}
		})
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if err := goleak.Find(before); err != nil {
		t.Fatal(err)
	}
}
