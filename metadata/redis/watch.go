package redis

import (
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

// pollEvery is the pause between two looks of a watch. A look that takes long is followed by a pause of ten
// times that, so that a watch in a large database costs the server at most a tenth of its time.
const pollEvery = time.Second

// sumsScript returns the SHA-1 of each key's value, "" for a key that is gone or not a string.
var sumsScript = redis.NewScript(`
local out = {}
for i, key in ipairs(KEYS) do
  local now = redis.pcall('GET', key)
  out[i] = type(now) == 'string' and redis.sha1hex(now) or ''
end
return out`)

// WatchPolls implements metadata.PollingWatcher.
func (b *Backend) WatchPolls() {}

// Watch implements metadata.Watcher by polling: values are compared on the server, and a change of any
// yields a reset.
func (b *Backend) Watch(ctx context.Context, prefix string) iter.Seq2[metadata.Event, error] {
	return func(yield func(metadata.Event, error) bool) {
		if b.life.Closed() {
			yield(metadata.Event{}, b.target.Fail("watch", prefix, metadata.ErrClosed, nil))
			return
		}
		ctx, done := b.life.Call(ctx, 0)
		defer done()
		var known map[string]string
		for {
			now, took, err := b.snapshot(ctx, prefix)
			pause := max(pollEvery, 10*took)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				known = nil
				if !yield(metadata.Event{}, err) {
					return
				}
			case known == nil || !maps.Equal(known, now):
				known = now
				if !yield(metadata.Event{Type: metadata.EventReset}, nil) {
					return
				}
			}
			if !remote.Sleep(ctx, pause) {
				return
			}
		}
	}
}

// snapshot returns the SHA-1 of the value of each key below prefix, and how long the server worked for it:
// the wait for a server that is away does not count. took is 0 after an error.
func (b *Backend) snapshot(ctx context.Context, prefix string) (sums map[string]string, took time.Duration, err error) {
	const batch = 128
	out := map[string]string{}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	var begun time.Time
	err = b.call(ctx, request{op: "watch", key: prefix, prefix: true, repeat: true}, func(ctx context.Context) error {
		begun = time.Now()
		clear(out)
		keys, err := b.keys(ctx, prefix)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(keys, batch) {
			sums, err := sumsScript.Run(ctx, b.client, some).StringSlice()
			if err != nil {
				return err
			}
			for i, sum := range sums {
				if sum != "" {
					out[some[i]] = sum
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return out, time.Since(begun), nil
}
