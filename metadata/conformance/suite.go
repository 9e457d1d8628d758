// Package conformance holds what every metadata backend has to do, one small function per property of the contract
// in package metadata; whoever reads the properties knows what callers may rely on. It needs nothing of package
// testing: `go test` runs them through package metadatatest, `mooncake plugin check` through [conform.Run].
package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/internal/conform"
	"github.com/mooncake-agent/mooncake/metadata"
)

// T is told what is wrong.
type T = conform.T

// Declared says which abilities a backend claims besides the four basic calls.
type Declared struct{ Lister, Committer, Watcher, Leaser bool }

// DeclaredBy returns what b claims by its methods.
func DeclaredBy(b metadata.Backend) (d Declared) {
	_, d.Lister = b.(metadata.Lister)
	_, d.Committer = b.(metadata.Committer)
	_, d.Watcher = b.(metadata.Watcher)
	_, d.Leaser = b.(metadata.Leaser)
	return d
}

// Service is a running metadata service as the suite sees it. Properties that need a hook are checked
// where it is not nil.
type Service struct {
	// Open returns a new backend on the service, as another process would have it. The suite closes it.
	Open func(t T) metadata.Backend
	// Timeout is the backend's own bound of a call without a deadline; 0 means 5 s.
	Timeout time.Duration
	// MaxValue is the size of the largest value that must pass; 0 means 1 MiB.
	MaxValue int
	// TrimsKeys says that the service ignores blanks at the end of a key.
	TrimsKeys bool
	// Stop makes the service go away, Start brings it back on the same address.
	Stop, Start func(t T)
	// Keeps says that keys survive Stop and Start.
	Keeps bool
	// Pause makes the service hang while its connections stay open, Resume ends that.
	Pause, Resume func(t T)
	// Wipe makes the service forget all keys and leases while backends are connected.
	Wipe func(t T)
}

// Check is one property of the contract.
type Check struct {
	Name string
	Run  func(t T)
}

// Checks are the properties that a backend with the declared abilities has to have on a service. They are run one
// after the other; the last one, which looks for what is left running, expects that nothing else starts goroutines.
func Checks(svc Service, want Declared) []Check {
	if svc.MaxValue == 0 {
		svc.MaxValue = 1 << 20
	}
	if svc.Timeout == 0 {
		svc.Timeout = 5 * time.Second
	}
	s := &suite{svc: svc, want: want}
	var checks []Check
	for _, p := range []struct {
		name string
		need bool
		run  func(t T, s *suite)
	}{
		{"abilities are exactly those declared", true, abilities},
		{"get of an absent key", true, getAbsent},
		{"put then get", true, putGet},
		{"put replaces", true, putReplaces},
		{"values are copied", true, valuesAreCopied},
		{"delete is idempotent", true, deleteIdempotent},
		{"odd keys are distinct", true, oddKeys},
		{"the empty key is refused", true, emptyKey},
		{"large values", true, largeValues},
		{"another backend sees it", true, visibleToOthers},
		{"64 goroutines", true, concurrentUse},
		{"writes of one key are ordered", true, writesAreOrdered},
		{"an ended context", true, endedContext},
		{"calls after close", true, callsAfterClose},
		{"list", want.Lister, list},
		{"list with odd prefixes", want.Lister, listOddPrefixes},
		{"versions", want.Lister && want.Committer, versions},
		{"commit is all or nothing", want.Committer, commitAllOrNothing},
		{"commit with conditions", want.Committer, commitConditions},
		{"commit refuses repeated keys", want.Committer, commitRepeatedKeys},
		{"commit races have one winner", want.Committer, commitRaces},
		{"watch begins with a reset", want.Watcher, watchBeginsWithReset},
		{"watch follows", want.Watcher, watchFollows},
		{"watch keeps the order of a key", want.Watcher, watchKeepsOrder},
		{"watch sees only its prefix", want.Watcher, watchPrefix},
		{"watch ends", want.Watcher, watchEnds},
		{"lease keeps and revoke removes", want.Leaser, leaseKeeps},
		{"lease expires after its owner", want.Leaser, leaseExpires},
		{"put detaches from the lease", want.Leaser, leaseDetach},
		{"lease arguments", want.Leaser, leaseArguments},
		{"a wiped service", svc.Wipe != nil, wiped},
		{"a hanging service", svc.Pause != nil, hanging},
		{"a service that is away", svc.Stop != nil, away},
		{"nothing leaks", true, nothingLeaks},
	} {
		if p.need {
			checks = append(checks, Check{p.name, func(t T) { p.run(t, s) }})
		}
	}
	return checks
}

type suite struct {
	svc  Service
	want Declared
	n    atomic.Int64
}

// open returns a fresh backend that the test closes.
func (s *suite) open(t T) metadata.Backend {
	t.Helper()
	b := s.svc.Open(t)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// prefix returns a key prefix that no other property uses.
func (s *suite) prefix() string { return fmt.Sprintf("mooncake/suite/%d/", s.n.Add(1)) }

// within is the context of a call that should succeed.
func within(t T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func put(t T, b metadata.Backend, key, value string) {
	t.Helper()
	if err := b.Put(within(t), key, []byte(value)); err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
}

func del(t T, b metadata.Backend, key string) {
	t.Helper()
	if err := b.Delete(within(t), key); err != nil {
		t.Fatalf("delete %q: %v", key, err)
	}
}

func get(t T, b metadata.Backend, key string) metadata.Entry {
	t.Helper()
	e, err := b.Get(within(t), key)
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	return e
}

func wantValue(t T, b metadata.Backend, key, want string) {
	t.Helper()
	if e := get(t, b, key); string(e.Value) != want || e.Key != key {
		t.Fatalf("get %q: key %q, value %s; want %s", key, e.Key, clip(string(e.Value)), clip(want))
	}
}

func wantAbsent(t T, b metadata.Backend, key string) {
	t.Helper()
	if e, err := b.Get(within(t), key); !errors.Is(err, metadata.ErrNotFound) {
		t.Fatalf("get %q: %s, %v; want ErrNotFound", key, clip(string(e.Value)), err)
	}
}

func wantError(t T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: %v; want an error that wraps %q", what, err, want)
	}
}

// differ tells how two sets of keys and values differ, or "".
func differ(got, want map[string]string) string {
	var d []string
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if v, ok := got[k]; !ok {
			d = append(d, fmt.Sprintf("%q is missing", k))
		} else if v != want[k] {
			d = append(d, fmt.Sprintf("%q has the value %s, want %s", k, clip(v), clip(want[k])))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[k]; !ok {
			d = append(d, fmt.Sprintf("%q should not be there", k))
		}
	}
	const shown = 10
	if len(d) > shown {
		d = append(d[:shown], fmt.Sprintf("and %d more", len(d)-shown))
	}
	return strings.Join(d, "; ")
}

func clip(s string) string {
	if len(s) > 60 {
		return fmt.Sprintf("%q... (%d bytes)", s[:60], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// soon polls cond, for up to 30 s.
func soon(t T, cond func() error) {
	t.Helper()
	soonWithin(t, 30*time.Second, cond)
}

func soonWithin(t T, limit time.Duration, cond func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", limit, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
