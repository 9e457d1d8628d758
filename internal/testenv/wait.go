package testenv

import (
	"errors"
	"testing"
	"time"
)

// Eventually polls cond until it returns nil and fails the test with cond's last error when within
// has passed. Polling starts at 1 ms and slows down to 50 ms, so deadlines can be generous: a quick
// machine does not wait for them.
func Eventually(t testing.TB, within time.Duration, cond func() error) {
	t.Helper()
	if err := Poll(within, cond); err != nil {
		t.Fatalf("not within %v: %v", within, err)
	}
}

// Poll is Eventually for code without a test at hand: it returns cond's last error instead of failing.
func Poll(within time.Duration, cond func() error) error {
	deadline := time.Now().Add(within)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := cond()
		if err == nil {
			return nil
		}
		if time.Now().Add(pause).After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

// True turns a yes-or-no condition into one for Eventually; what says what did not become true.
func True(what string, cond func() bool) func() error {
	err := errors.New(what)
	return func() error {
		if cond() {
			return nil
		}
		return err
	}
}
