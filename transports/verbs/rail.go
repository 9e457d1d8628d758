package verbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

const (
	// railErrors failures within railWindow pause a rail.
	railErrors = 5
	railWindow = 5 * time.Second
	// maxBackOff is the longest pause between two attempts to connect.
	maxBackOff = 5 * time.Second
	// pausedTry is how often a paused rail is tried all the same, when a peer has no other.
	pausedTry = time.Second
)

// rail is one pair of devices: one of ours and one of a peer. All peer handles that use the pair share it.
type rail struct {
	n            *nic
	path         string      // of the peer's device
	server, name string      // its parts
	refs         int         // guarded by the table
	trouble      atomic.Bool // there is something in the fields below

	mu       sync.Mutex
	errs     [railErrors]time.Time // of the last failures, a ring
	at       int
	backOff  time.Duration
	retryAt  time.Time
	paused   time.Time // until
	triedAt  time.Time
	lastErr  error
	identity string // of the peer's document that the failures belong to
}

// railTable holds a device's rails.
type railTable struct {
	n  *nic
	mu sync.Mutex
	m  map[string]*rail
}

// get returns the rail to a peer's device, held until put. identity tells the peer's runs apart: failures of a former
// one are forgiven.
func (t *railTable) get(server, name, identity string) *rail {
	path := nicPath(server, name)
	t.mu.Lock()
	if t.m == nil {
		t.m = map[string]*rail{}
	}
	r := t.m[path]
	if r == nil {
		r = &rail{n: t.n, path: path, server: server, name: name, identity: identity}
		t.m[path] = r
	}
	r.refs++
	t.mu.Unlock()
	r.mu.Lock()
	changed := r.identity != identity
	r.identity = identity
	r.mu.Unlock()
	if changed {
		r.forgive()
	}
	return r
}

func (t *railTable) put(r *rail) {
	t.mu.Lock()
	r.refs--
	t.mu.Unlock()
}

// find returns the rail to a peer's device if there is one.
func (t *railTable) find(path string) *rail {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.m[path]
}

// sweep drops rails that nobody holds and that have nothing to remember.
func (t *railTable) sweep(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for path, r := range t.m {
		if r.refs == 0 && r.usable(now) == nil {
			delete(t.m, path)
		}
	}
}

// forgive forgets all failures, after the device itself has come back.
func (t *railTable) forgive() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.m {
		r.forgive()
	}
}

func (r *rail) forgive() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs, r.backOff, r.retryAt, r.paused, r.lastErr = [railErrors]time.Time{}, 0, time.Time{}, time.Time{}, nil
	r.trouble.Store(false)
}

// failed counts a failure: there is a pause before the next attempt, and a long one after many failures.
func (r *rail) failed(err error) {
	now := time.Now()
	first := r.n.t.cfg.ConnectPause
	r.mu.Lock()
	r.trouble.Store(true)
	r.lastErr = err
	r.errs[r.at] = now
	r.at = (r.at + 1) % railErrors
	oldest := r.errs[r.at]
	r.backOff = min(max(2*r.backOff, first), max(maxBackOff, first))
	r.retryAt = now.Add(r.backOff)
	pause := !oldest.IsZero() && now.Sub(oldest) <= railWindow && now.After(r.paused)
	if pause {
		r.paused, r.triedAt = now.Add(r.n.t.cfg.RailPause), now
		r.errs = [railErrors]time.Time{}
	}
	r.mu.Unlock()
	if !pause {
		return
	}
	r.n.t.m.railPauses.Inc()
	if n, ok := r.n.t.logs.Allow("pause " + r.n.name + r.path); ok {
		r.n.t.log.Warn("a pair of devices keeps failing and is paused", "device", r.n.name, "peer", r.path, "pause", r.n.t.cfg.RailPause, "err", err, "not_shown_before", n)
	}
}

// worked ends the pauses after a completion. Failures stay in the window, so that a rail that works now and then is
// paused all the same.
func (r *rail) worked() {
	if !r.trouble.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.backOff, r.retryAt, r.paused = 0, time.Time{}, time.Time{}
	r.trouble.Store(false)
}

// pausedError says why a rail is not used now, and when it will be.
type pausedError struct {
	r     *rail
	until time.Time
	why   error
}

func (e *pausedError) Error() string {
	return fmt.Sprintf("verbs: %s to %s is paused for %v: %v", e.r.n.name, e.r.path, time.Until(e.until).Round(time.Millisecond), e.why)
}
func (e *pausedError) Unwrap() []error { return []error{transports.ErrUnreachable, e.why} }

// usable is nil when new work may take the rail.
func (r *rail) usable(now time.Time) error {
	if err := r.n.usable(); err != nil {
		return fmt.Errorf("verbs: %w: %w", err, transports.ErrUnreachable)
	}
	if _, why := r.n.t.servers.pause(r.server, now); why != nil {
		return why // it wraps ErrUnreachable
	}
	if !r.trouble.Load() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	until := r.retryAt
	if r.paused.After(until) {
		until = r.paused
	}
	if now.Before(until) {
		return &pausedError{r, until, r.lastErr}
	}
	return nil
}

// tryPaused allows one use of a paused rail now and then.
func (r *rail) tryPaused(now time.Time) bool {
	if r.n.usable() != nil {
		return false
	}
	if _, why := r.n.t.servers.pause(r.server, now); why != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Before(r.retryAt) || now.Sub(r.triedAt) < pausedTry {
		return false
	}
	r.triedAt = now
	return true
}

// servers remembers peers whose handshake daemon does not answer.
type servers struct {
	first time.Duration
	mu    sync.Mutex
	m     map[string]*absence
}

type absence struct {
	until time.Time
	pause time.Duration
	why   error
}

func (s *servers) failed(server string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = map[string]*absence{}
	}
	a := s.m[server]
	if a == nil {
		a = &absence{}
		s.m[server] = a
	}
	a.pause = min(max(2*a.pause, s.first), max(maxBackOff, s.first))
	a.until, a.why = time.Now().Add(a.pause), err
}

// answered ends the pause of a peer that was heard of.
func (s *servers) answered(server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, server)
}

func (s *servers) pause(server string, now time.Time) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.m[server]; a != nil && now.Before(a.until) {
		return a.until, a.why
	}
	return time.Time{}, nil
}

func (s *servers) sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, a := range s.m {
		if now.Sub(a.until) > time.Minute {
			delete(s.m, name)
		}
	}
}

// retryTime returns when it is worth trying again after err, if that is soon enough to wait for.
func retryTime(err error, now time.Time) (time.Time, bool) {
	var p *pausedError
	if !errors.As(err, &p) || p.until.Sub(now) > maxPark {
		return time.Time{}, false
	}
	return p.until, true
}
