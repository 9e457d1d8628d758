package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/plugins/external"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

// list is metadata.Lister's.
func (b *backend) list(ctx context.Context, prefix string) (out []metadata.Entry, err error) {
	what := fmt.Sprintf("list %.100q", prefix)
	err = b.do(ctx, what, func(ctx context.Context, c pluginv1.MetadataServiceClient) (*pluginv1.Error, error) {
		ctx, cancel := context.WithCancel(ctx) // ends the stream in any case
		defer cancel()
		stream, err := c.List(ctx, &pluginv1.ListRequest{Prefix: []byte(prefix)})
		if err != nil {
			return nil, err
		}
		size := 0
		for {
			resp, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil, nil
			}
			if err != nil || resp.Error != nil {
				return resp.GetError(), err
			}
			for _, e := range resp.Entries {
				entry, err := b.entry(e)
				switch {
				case err != nil:
					return nil, err
				case !strings.HasPrefix(entry.Key, prefix) || len(out) > 0 && out[len(out)-1].Key >= entry.Key:
					return nil, badAnswer("List of %.60q: key %.60q is not of the prefix or not in order", prefix, entry.Key)
				}
				if size += len(entry.Key) + len(entry.Value); size > maxList {
					return nil, badAnswer("List of %.60q: more than %d bytes", prefix, maxList)
				}
				out = append(out, entry)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// commit is metadata.Committer's.
func (b *backend) commit(ctx context.Context, writes ...metadata.Write) error {
	what := fmt.Sprintf("commit of %d writes", len(writes))
	req := &pluginv1.CommitRequest{}
	seen, size := map[string]bool{}, 0
	for _, w := range writes {
		if err := b.refuse(what, checkSize(w.Key, w.Value)); err != nil {
			return err
		}
		if seen[w.Key] {
			return b.errorf("%s: the key %.60q is there twice: %w", what, w.Key, metadata.ErrRefused)
		}
		seen[w.Key] = true
		if size += len(w.Key) + len(w.Value); size > maxValue {
			return b.errorf("%s: %d bytes, the limit of a message to a plugin is %d: %w", what, size, maxValue, metadata.ErrTooLarge)
		}
		req.Writes = append(req.Writes, &pluginv1.Write{Key: []byte(w.Key), Value: w.Value, Delete: w.Delete, IfVersion: w.If})
	}
	if err := b.refuse(what, nil); err != nil || len(writes) == 0 {
		return err
	}
	return b.do(ctx, what, func(ctx context.Context, c pluginv1.MetadataServiceClient) (*pluginv1.Error, error) {
		resp, err := c.Commit(ctx, req)
		return resp.GetError(), err
	})
}

// The pauses between attempts of a watch to go on.
const (
	firstWatchPause = 50 * time.Millisecond
	maxWatchPause   = 5 * time.Second
)

// watch is metadata.Watcher's.
func (b *backend) watch(ctx context.Context, prefix string) iter.Seq2[metadata.Event, error] {
	return func(yield func(metadata.Event, error) bool) {
		if err := b.refuse(fmt.Sprintf("watch %.100q", prefix), nil); err != nil {
			yield(metadata.Event{}, err)
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(b.ctx, cancel)()
		pause := firstWatchPause
		for ctx.Err() == nil {
			events, err := b.follow(ctx, prefix, yield)
			if errors.Is(err, errStopped) || ctx.Err() != nil {
				return
			}
			if !yield(metadata.Event{}, b.errorf("watch %.100q: %w", prefix, err)) {
				return
			}
			if events {
				pause = firstWatchPause
			}
			if !sleep(ctx, pause) {
				return
			}
			pause = min(maxWatchPause, 2*pause)
		}
	}
}

// errStopped says that the consumer of a watch wants no more.
var errStopped = errors.New("stopped")

// follow yields what one stream brings. events is true if there was any.
func (b *backend) follow(ctx context.Context, prefix string, yield func(metadata.Event, error) bool) (events bool, err error) {
	starting, end := b.bound(ctx)
	p, err := b.process(starting)
	end()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var stopped error
	err = b.on(ctx, p, func(ctx context.Context, c pluginv1.MetadataServiceClient) (*pluginv1.Error, error) {
		stream, err := c.Watch(ctx, &pluginv1.WatchRequest{Prefix: []byte(prefix)})
		if err != nil {
			return nil, err
		}
		for {
			resp, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				stopped = errStream
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			for _, e := range resp.Events {
				event, err := b.event(e, prefix, events)
				if err != nil {
					return nil, err
				}
				events = true
				if !yield(event, nil) {
					stopped = errStopped
					return nil, nil
				}
			}
			if e := resp.Error; e != nil {
				if e.Code != pluginv1.ErrorCode_ERROR_CODE_UNAVAILABLE {
					return e, nil
				}
				if !yield(metadata.Event{}, b.errorf("watch %.100q: %.1000q: %w", prefix, e.Message, metadata.ErrUnavailable)) {
					stopped = errStopped
					return nil, nil
				}
			}
		}
	})
	switch {
	case err != nil:
		return events, err
	case errors.Is(stopped, errStream):
		return events, fmt.Errorf("%w: %w", metadata.ErrUnavailable, stopped)
	}
	return events, stopped
}

// event checks what a plugin says that has happened. begun is false for the first of a stream.
func (b *backend) event(e *pluginv1.WatchEvent, prefix string, begun bool) (out metadata.Event, err error) {
	switch e.Type {
	case pluginv1.WatchEventType_WATCH_EVENT_TYPE_RESET:
		return metadata.Event{Type: metadata.EventReset}, nil
	case pluginv1.WatchEventType_WATCH_EVENT_TYPE_PUT:
		out.Type = metadata.EventPut
		out.Entry, err = b.entry(e.Entry)
	case pluginv1.WatchEventType_WATCH_EVENT_TYPE_DELETE:
		out = metadata.Event{Type: metadata.EventDelete, Entry: metadata.Entry{Key: string(e.Entry.GetKey())}}
	default:
		err = badAnswer("Watch: an event of type %d", e.Type)
	}
	if err == nil && (!begun || out.Entry.Key == "" || !strings.HasPrefix(out.Entry.Key, prefix)) {
		err = badAnswer("Watch of %.60q: an event of key %.60q, or one before the first reset", prefix, out.Entry.Key)
	}
	return out, err
}

// lease is metadata.Leaser's.
func (b *backend) lease(ctx context.Context, ttl time.Duration) (metadata.Lease, error) {
	what := "lease"
	if ttl > 0 { // 0: as long as the backend likes
		what = fmt.Sprintf("lease of %v", ttl)
	}
	var bad error
	if ttl < 0 || ttl > 0 && ttl < time.Second {
		bad = fmt.Errorf("less than 1s: %w", metadata.ErrRefused)
	}
	if err := b.refuse(what, bad); err != nil {
		return nil, err
	}
	ctx, end := b.bound(ctx)
	defer end()
	p, err := b.process(ctx)
	if err != nil {
		return nil, b.errorf("%s: %w", what, err)
	}
	l := &lease{b: b, p: p, alive: make(chan struct{}), granted: make(chan error, 1)}
	var life context.Context
	life, l.cancel = context.WithCancel(b.ctx)
	if !b.goOn(func() { l.live(life, ttl) }) {
		l.cancel()
		return nil, b.errorf("%s: %w", what, metadata.ErrClosed)
	}
	select {
	case err = <-l.granted:
	case <-ctx.Done():
		l.cancel()
		err = b.ended(ctx)
	}
	if err != nil {
		return nil, b.errorf("%s: %w", what, err)
	}
	return l, nil
}

// lease lives as long as its stream.
type lease struct {
	b       *backend
	p       *external.Process
	cancel  context.CancelFunc
	granted chan error
	id      string        // after granted
	alive   chan struct{} // closed at the end
}

var _ metadata.Lease = (*lease)(nil)

// live holds the stream that keeps the lease.
func (l *lease) live(ctx context.Context, ttl time.Duration) {
	defer close(l.alive)
	defer l.cancel()
	told := false
	err := l.b.on(ctx, l.p, func(ctx context.Context, c pluginv1.MetadataServiceClient) (*pluginv1.Error, error) {
		stream, err := c.Lease(ctx, &pluginv1.LeaseRequest{TtlMs: uint64(ttl.Milliseconds())})
		if err != nil {
			return nil, err
		}
		for {
			resp, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil, nil
			}
			if err != nil || resp.Error != nil {
				return resp.GetError(), err
			}
			if told {
				continue // nothing is defined yet
			}
			if resp.LeaseId == "" {
				return nil, badAnswer("Lease: the first message has no id")
			}
			l.id, told = resp.LeaseId, true
			l.granted <- nil
		}
	})
	if !told {
		if err == nil {
			err = fmt.Errorf("%w: %w", metadata.ErrUnavailable, errStream)
		}
		l.granted <- err
	}
}

// Alive implements metadata.Lease.
func (l *lease) Alive() <-chan struct{} { return l.alive }

func (l *lease) over() bool {
	select {
	case <-l.alive:
		return true
	default:
		return false
	}
}

// Put implements metadata.Lease.
func (l *lease) Put(ctx context.Context, key string, value []byte) error {
	what := fmt.Sprintf("lease put %.100q", key)
	if err := l.b.refuse(what, checkSize(key, value)); err != nil {
		return err
	}
	if l.over() {
		return l.b.errorf("%s: %w", what, metadata.ErrLeaseLost)
	}
	ctx, end := l.b.bound(ctx)
	defer end()
	err := l.b.on(ctx, l.p, func(ctx context.Context, c pluginv1.MetadataServiceClient) (*pluginv1.Error, error) {
		resp, err := c.LeasePut(ctx, &pluginv1.LeasePutRequest{LeaseId: l.id, Key: []byte(key), Value: value})
		return resp.GetError(), err
	})
	if err != nil {
		return l.b.errorf("%s: %w", what, err)
	}
	return nil
}

// Revoke implements metadata.Lease. For a lease that was lost there is nothing to do: its keys are gone, or vanish when
// its time to live is over.
func (l *lease) Revoke(ctx context.Context) error {
	if err := l.b.refuse("revoke", nil); err != nil {
		return err
	}
	if l.over() {
		return nil
	}
	ctx, end := l.b.bound(ctx)
	defer end()
	err := l.b.on(ctx, l.p, func(ctx context.Context, c pluginv1.MetadataServiceClient) (*pluginv1.Error, error) {
		resp, err := c.LeaseRevoke(ctx, &pluginv1.LeaseRevokeRequest{LeaseId: l.id})
		return resp.GetError(), err
	})
	if err != nil {
		return l.b.errorf("revoke: %w", err)
	}
	l.cancel()
	<-l.alive
	return nil
}
