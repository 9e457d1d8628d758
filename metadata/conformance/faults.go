package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
)

// wiped: a service that lost everything (FLUSHALL, a restart without a disk) is noticed: the lease ends,
// watchers are told, and everything can be published again.
func wiped(t T, s *suite) {
	b, p := s.open(t), s.prefix()
	put(t, b, p+"plain", "v")
	var l metadata.Lease
	if s.want.Leaser {
		l = lease(t, b, 3*time.Second)
		leasePut(t, l, p+"leased", "v")
	}
	var v *view
	if s.want.Watcher {
		v = follow(t, b, p)
	}
	s.svc.Wipe(t)
	soon(t, func() error {
		if _, err := b.Get(within(t), p+"plain"); !errors.Is(err, metadata.ErrNotFound) {
			return fmt.Errorf("get after the wipe: %v", err)
		}
		return nil
	})
	if l != nil {
		wantEnded(t, l, "the service forgot it")
		wantError(t, "put on a lost lease", l.Put(within(t), p+"leased", nil), metadata.ErrLeaseLost)
		if err := l.Revoke(within(t)); err != nil {
			t.Fatalf("revoke of a lost lease: %v", err)
		}
		l = lease(t, b, time.Second)
		leasePut(t, l, p+"leased", "again")
		wantValue(t, b, p+"leased", "again")
		if err := l.Revoke(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	put(t, b, p+"plain", "again")
	if v != nil {
		soon(t, func() error { return v.check(map[string]string{p + "plain": "again"}) })
	}
}

// hanging: while the service answers nothing, calls end by their own deadline; afterwards all is well.
func hanging(t T, s *suite) {
	b, key := s.open(t), s.prefix()+"k"
	put(t, b, key, "before")
	s.svc.Pause(t)
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
	_, err := b.Get(ctx, key)
	cancel()
	took := time.Since(begin)
	begin = time.Now()
	_, errOwn := b.Get(context.Background(), key)
	tookOwn := time.Since(begin)
	s.svc.Resume(t)
	wantError(t, "get with a deadline", err, metadata.ErrUnavailable)
	wantError(t, "get with a deadline", err, context.DeadlineExceeded)
	wantError(t, "get without a deadline", errOwn, metadata.ErrUnavailable)
	if took > 3*time.Second {
		t.Fatalf("a call with a deadline of 700 ms took %v", took)
	}
	if tookOwn > s.svc.Timeout+3*time.Second {
		t.Fatalf("a call without a deadline took %v, the backend's timeout is %v", tookOwn, s.svc.Timeout)
	}
	recovers(t, b, key)
	wantValue(t, b, key, "after")
}

// away: while the service is down, calls fail with ErrUnavailable in time; a lease that could not be
// renewed for its ttl is over; when the service is back the same backend works.
func away(t T, s *suite) {
	b, p := s.open(t), s.prefix()
	put(t, b, p+"k", "before")
	var l metadata.Lease
	if s.want.Leaser {
		l = lease(t, b, 2*time.Second)
		leasePut(t, l, p+"leased", "v")
	}
	var v *view
	if s.want.Watcher {
		v = follow(t, b, p)
	}
	s.svc.Stop(t)
	begin := time.Now()
	_, err := b.Get(context.Background(), p+"k")
	tookOwn := time.Since(begin)
	begin = time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	errPut := b.Put(ctx, p+"k", []byte("lost"))
	cancel()
	took := time.Since(begin)
	if l != nil {
		wantEnded(t, l, "a ttl without the service")
	}
	s.svc.Start(t)
	wantError(t, "get", err, metadata.ErrUnavailable)
	wantError(t, "put", errPut, metadata.ErrUnavailable)
	if tookOwn > s.svc.Timeout+3*time.Second {
		t.Fatalf("a call without a deadline took %v, the backend's timeout is %v", tookOwn, s.svc.Timeout)
	}
	if took > 2*time.Second {
		t.Fatalf("a call with a deadline of 300 ms took %v", took)
	}
	if s.svc.Keeps {
		soon(t, func() error {
			e, err := b.Get(within(t), p+"k")
			if err != nil || string(e.Value) != "before" {
				return fmt.Errorf("after the restart: %q, %v", e.Value, err)
			}
			return nil
		})
	}
	recovers(t, b, p+"k")
	if v != nil {
		del(t, b, p+"leased")
		soon(t, func() error { return v.check(map[string]string{p + "k": "after"}) })
	}
}

// recovers waits until a put works again, for at most the 15 s that a node may be without its metadata
// service after that is back.
func recovers(t T, b metadata.Backend, key string) {
	t.Helper()
	soonWithin(t, 15*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		return b.Put(ctx, key, []byte("after"))
	})
}
