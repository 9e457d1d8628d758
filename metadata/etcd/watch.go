package etcd

import (
	"context"
	"errors"
	"iter"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

// probeEvery is how long a watch may be silent before the cluster is asked whether it is still there and
// still the same.
const probeEvery = 5 * time.Second

// Watch implements metadata.Watcher with etcd's own watch.
func (b *Backend) Watch(ctx context.Context, prefix string) iter.Seq2[metadata.Event, error] {
	return func(yield func(metadata.Event, error) bool) {
		if b.life.Closed() {
			yield(metadata.Event{}, b.target.Fail("watch", prefix, metadata.ErrClosed, nil))
			return
		}
		ctx, done := b.life.Call(ctx, 0)
		defer done()
		wait := pause
		for {
			begun := time.Now()
			err := b.watchOnce(ctx, prefix, yield)
			if ctx.Err() != nil || errors.Is(err, errStopped) {
				return
			}
			kind := metadata.ErrUnavailable
			if definite, k, _ := classify(err, request{}); definite && k != nil {
				kind = k
			}
			if !yield(metadata.Event{}, b.target.Fail("watch", prefix, kind, explain(err))) {
				return
			}
			if time.Since(begun) > time.Minute {
				wait = pause
			}
			if !remote.Sleep(ctx, wait) {
				return
			}
			wait = min(2*wait, 2*time.Second)
		}
	}
}

// errStopped says that the consumer has left its loop.
var errStopped = errors.New("the consumer stopped")

// watchOnce watches through one connection until that ends. It returns errStopped, or why a new one is due.
func (b *Backend) watchOnce(ctx context.Context, prefix string, yield func(metadata.Event, error) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := b.take(ctx)
	if err != nil {
		return err
	}
	// The call below waits for etcd's confirmation.
	impatient := time.AfterFunc(b.attempt, cancel)
	ch := c.client.Watch(clientv3.WithRequireLeader(ctx), prefix,
		clientv3.WithPrefix(), clientv3.WithCreatedNotify(), clientv3.WithFragment())
	created, ok := <-ch
	if !impatient.Stop() || !ok || created.Err() != nil {
		err := created.Err()
		if err == nil {
			err = errors.New("no answer in time")
		}
		b.dropUnlessDefinite(c, err)
		return err
	}
	seen := created.Header.Revision
	cluster := created.Header.ClusterId
	if !yield(metadata.Event{Type: metadata.EventReset}, nil) {
		return errStopped
	}
	idle := time.NewTimer(probeEvery)
	defer idle.Stop()
	for {
		select {
		case resp, ok := <-ch:
			if !ok {
				return errors.New("the connection was replaced")
			}
			if err := resp.Err(); err != nil {
				b.dropUnlessDefinite(c, err)
				return err
			}
			seen = max(seen, resp.Header.Revision)
			for _, ev := range resp.Events {
				if !yield(event(ev), nil) {
					return errStopped
				}
			}
			idle.Reset(probeEvery)
		case <-idle.C:
			if err := b.probe(ctx, prefix, cluster, seen); err != nil {
				return err
			}
			idle.Reset(probeEvery)
		}
	}
}

// dropUnlessDefinite leaves a member that is cut off from its leader or does not answer.
func (b *Backend) dropUnlessDefinite(c *conn, err error) {
	if definite, _, _ := classify(err, request{}); !definite {
		b.drop(c, err)
	}
}

func event(ev *clientv3.Event) metadata.Event {
	if ev.Type == clientv3.EventTypeDelete {
		return metadata.Event{Type: metadata.EventDelete, Entry: metadata.Entry{Key: string(ev.Kv.Key)}}
	}
	return metadata.Event{Type: metadata.EventPut, Entry: metadata.Entry{
		Key: string(ev.Kv.Key), Value: ev.Kv.Value, Version: version(ev.Kv.ModRevision),
	}}
}

// errOther says that the cluster is not the one that was watched: a watch resumed there would wait for a
// revision that comes much later, in silence.
var errOther = errors.New("the cluster was replaced or restored from a backup")

// probe makes call find out that an endpoint is dead, also when nothing else uses this backend; it then
// replaces the connection, which ends the watch on it.
func (b *Backend) probe(ctx context.Context, prefix string, cluster uint64, seen int64) error {
	var resp *clientv3.GetResponse
	req := request{op: "watch", key: prefix, prefix: true, repeat: true}
	probe, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	err := b.call(probe, req, func(ctx context.Context, c *clientv3.Client) (err error) {
		resp, err = c.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
		return err
	})
	switch {
	case errors.Is(err, metadata.ErrUnavailable):
		return rpctypes.ErrTimeout
	case err == nil && (resp.Header.ClusterId != cluster || resp.Header.Revision < seen):
		return errOther
	}
	return nil // a refusal ends the watch by itself
}
