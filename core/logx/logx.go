// Package logx is what parts that may not import core/telemetry need for careful logging: one line for
// an error that repeats thousands of times a second.
package logx

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// maxKeys bounds the memory of a limiter: keys often come from peers.
const maxKeys = 1024

// Limiter lets one line per key and window pass and counts the rest. It may be used concurrently.
type Limiter struct {
	window time.Duration
	now    func() time.Time

	mu   sync.Mutex
	keys map[string]*slot
}

type slot struct {
	since   time.Time
	dropped int
}

// Every returns a limiter for windows of the given length.
func Every(window time.Duration) *Limiter {
	return &Limiter{window: window, now: time.Now, keys: map[string]*slot{}}
}

// Allow tells whether a line about key may be written now, and how many were dropped since the last
// one. Of more than 1,024 keys at once the ones with the oldest line are forgotten.
func (l *Limiter) Allow(key string) (dropped int, ok bool) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.keys[key]
	if s == nil {
		l.makeRoom(now)
		l.keys[key] = &slot{since: now}
		return 0, true
	}
	if now.Sub(s.since) < l.window {
		s.dropped++
		return 0, false
	}
	dropped = s.dropped
	*s = slot{since: now}
	return dropped, true
}

// makeRoom forgets keys whose window is over, and the oldest if none is.
func (l *Limiter) makeRoom(now time.Time) {
	if len(l.keys) < maxKeys {
		return
	}
	oldest := ""
	for k, s := range l.keys {
		if now.Sub(s.since) >= l.window {
			delete(l.keys, k)
		} else if oldest == "" || s.since.Before(l.keys[oldest].since) {
			oldest = k
		}
	}
	if len(l.keys) >= maxKeys {
		delete(l.keys, oldest)
	}
}

// Log writes the line if it may, with the attribute "dropped" when lines about the same key were left
// out before it. key is not written: it should be the cause and the peer, without what differs each time.
func (l *Limiter) Log(ctx context.Context, log *slog.Logger, level slog.Level, key, msg string, args ...any) {
	if !log.Enabled(ctx, level) {
		return
	}
	dropped, ok := l.Allow(key)
	if !ok {
		return
	}
	if dropped > 0 {
		args = append(args[:len(args):len(args)], "dropped", dropped)
	}
	log.Log(ctx, level, msg, args...)
}
