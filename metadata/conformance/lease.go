package conformance

import (
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
)

func lease(t T, b metadata.Backend, ttl time.Duration) metadata.Lease {
	t.Helper()
	l, err := b.(metadata.Leaser).Lease(within(t), ttl)
	if err != nil {
		t.Fatalf("lease: %v", err)
	}
	return l
}

func leasePut(t T, l metadata.Lease, key, value string) {
	t.Helper()
	if err := l.Put(within(t), key, []byte(value)); err != nil {
		t.Fatalf("lease put %q: %v", key, err)
	}
}

func alive(l metadata.Lease) bool {
	select {
	case <-l.Alive():
		return false
	default:
		return true
	}
}

func wantEnded(t T, l metadata.Lease, why string) {
	t.Helper()
	select {
	case <-l.Alive():
	case <-time.After(30 * time.Second):
		t.Fatalf("the lease is still alive after %s", why)
	}
}

func leaseKeeps(t T, s *suite) {
	b, other, p := s.open(t), s.open(t), s.prefix()
	const ttl = 3 * time.Second // a busy machine may delay a renewal by a second
	l := lease(t, b, ttl)
	leasePut(t, l, p+"a", "1")
	leasePut(t, l, p+"b", "1")
	leasePut(t, l, p+"b", "2")
	leasePut(t, l, p+"deleted", "1")
	del(t, b, p+"deleted")
	// More than twice the ttl: only renewals keep the keys.
	for end := time.Now().Add(2*ttl + time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		wantValue(t, other, p+"a", "1")
		wantValue(t, other, p+"b", "2")
	}
	if !alive(l) {
		t.Fatal("the lease ended by itself")
	}
	if err := l.Revoke(within(t)); err != nil {
		t.Fatalf("revoke: %v", err)
	}
	if alive(l) {
		t.Fatal("a revoked lease is alive")
	}
	wantAbsent(t, other, p+"a")
	wantAbsent(t, other, p+"b")
	wantAbsent(t, other, p+"deleted")
	if err := l.Revoke(within(t)); err != nil {
		t.Fatalf("second revoke: %v", err)
	}
	wantError(t, "put on a revoked lease", l.Put(within(t), p+"a", []byte("3")), metadata.ErrLeaseLost)
	wantAbsent(t, other, p+"a")
}

// Close without Revoke stands in for the death of the owner: both end the renewals.
func leaseExpires(t T, s *suite) {
	const ttl = 2 * time.Second
	owner, other, p := s.svc.Open(t), s.open(t), s.prefix()
	l := lease(t, owner, ttl)
	leasePut(t, l, p+"leased", "v")
	put(t, owner, p+"plain", "v")
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	died := time.Now()
	wantEnded(t, l, "its backend was closed")
	wantValue(t, other, p+"leased", "v") // a crash is not a revoke
	soon(t, func() error {
		_, err := other.Get(within(t), p+"leased")
		if errors.Is(err, metadata.ErrNotFound) {
			return nil
		}
		return fmt.Errorf("the leased key is still there: %v", err)
	})
	// The contract's ttl + 1 s, and as much again for a busy machine.
	if took := time.Since(died); took > 2*(ttl+time.Second) {
		t.Fatalf("the key vanished %v after its owner; the ttl is %v", took, ttl)
	}
	wantValue(t, other, p+"plain", "v")
}

// A wheel engine of the same name overwrites our key without a lease. That entry is then not ours.
func leaseDetach(t T, s *suite) {
	b, foreign, p := s.open(t), s.open(t), s.prefix()
	l := lease(t, b, 2*time.Second)
	leasePut(t, l, p+"k", "ours")
	leasePut(t, l, p+"ours", "ours")
	put(t, foreign, p+"k", "theirs")
	for end := time.Now().Add(4500 * time.Millisecond); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		wantValue(t, foreign, p+"k", "theirs")
	}
	if !alive(l) {
		t.Fatal("the lease ended because somebody overwrote a key")
	}
	if err := l.Revoke(within(t)); err != nil {
		t.Fatal(err)
	}
	wantValue(t, foreign, p+"k", "theirs")
	wantAbsent(t, foreign, p+"ours")
}

func leaseArguments(t T, s *suite) {
	b := s.open(t)
	for _, ttl := range []time.Duration{-time.Second, 999 * time.Millisecond} {
		_, err := b.(metadata.Leaser).Lease(within(t), ttl)
		wantError(t, fmt.Sprint("ttl ", ttl), err, metadata.ErrRefused)
	}
	if l := lease(t, b, 0); !alive(l) {
		t.Error("the lease of the default ttl is not alive")
	}
	l := lease(t, b, 1500*time.Millisecond)
	wantError(t, "empty key", l.Put(within(t), "", nil), metadata.ErrRefused)
	if err := l.Revoke(within(t)); err != nil {
		t.Fatal(err)
	}
}
