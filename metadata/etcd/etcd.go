package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

func init() {
	module.Define(metadata.Kind, "etcd", "etcd v3, shared with upstream engines", defaultConfig(), New)
}

// Backend is a client of one etcd cluster.
type Backend struct {
	cfg    Config
	set    settings
	tls    *tls.Config
	log    *slog.Logger
	life   *remote.Life
	target remote.Target
	// attempt bounds one try at one endpoint.
	attempt time.Duration

	// lock is a mutex that can be waited for with a context; it guards conn and next.
	lock chan struct{}
	conn *conn
	next int // index of the endpoint of the next conn
}

var (
	_ metadata.Backend   = (*Backend)(nil)
	_ metadata.Lister    = (*Backend)(nil)
	_ metadata.Committer = (*Backend)(nil)
	_ metadata.Watcher   = (*Backend)(nil)
	_ metadata.Leaser    = (*Backend)(nil)
)

// New builds a backend. It reads the TLS files and does not dial.
func New(_ context.Context, env module.Env, c Config) (metadata.Backend, error) {
	return newBackend(env, c)
}

func newBackend(env module.Env, c Config) (*Backend, error) {
	set, err := c.resolve()
	if err != nil {
		return nil, err
	}
	tlsConfig, err := c.TLS.Config(set.secure)
	if err != nil {
		return nil, err
	}
	log := env.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if c.TLS.InsecureSkipVerify {
		log.Warn("etcd: tls.insecure_skip_verify accepts any server certificate")
	}
	n := len(set.endpoints)
	return &Backend{
		cfg: c, set: set, tls: tlsConfig, log: log, life: remote.NewLife(),
		target: remote.Target{
			Name: "etcd", Addr: strings.Join(set.endpoints, ","), Secrets: []string{set.password},
		},
		attempt: min(c.Timeout, max(c.Timeout/time.Duration(n), time.Second)),
		lock:    make(chan struct{}, 1),
		next:    rand.IntN(n),
	}, nil
}

// Get implements metadata.Backend.
func (b *Backend) Get(ctx context.Context, key string) (metadata.Entry, error) {
	var out metadata.Entry
	err := b.call(ctx, request{op: "get", key: key, repeat: true}, func(ctx context.Context, c *clientv3.Client) error {
		resp, err := c.Get(ctx, key)
		if err != nil {
			return err
		}
		if len(resp.Kvs) == 0 {
			return metadata.ErrNotFound
		}
		out = metadata.Entry{Key: key, Value: resp.Kvs[0].Value, Version: version(resp.Kvs[0].ModRevision)}
		return nil
	})
	return out, err
}

func version(rev int64) string { return strconv.FormatInt(rev, 10) }

// Put implements metadata.Backend.
func (b *Backend) Put(ctx context.Context, key string, value []byte) error {
	req := request{op: "put", key: key, repeat: true, size: len(value)}
	return b.call(ctx, req, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Put(ctx, key, string(value))
		return err
	})
}

// Delete implements metadata.Backend.
func (b *Backend) Delete(ctx context.Context, key string) error {
	return b.call(ctx, request{op: "delete", key: key, repeat: true}, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Delete(ctx, key)
		return err
	})
}

// List implements metadata.Lister. It reads all pages at one revision.
func (b *Backend) List(ctx context.Context, prefix string) ([]metadata.Entry, error) {
	var out []metadata.Entry
	req := request{op: "list", key: prefix, prefix: true, repeat: true}
	err := b.call(ctx, req, func(ctx context.Context, c *clientv3.Client) error {
		for {
			out = out[:0]
			err := listPages(ctx, c, prefix, func(e metadata.Entry) { out = append(out, e) })
			if !errors.Is(err, rpctypes.ErrCompacted) { // between two pages: begin again
				return err
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func listPages(ctx context.Context, c *clientv3.Client, prefix string, add func(metadata.Entry)) error {
	limit := int64(256)
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	if prefix == "" {
		from, end = "\x00", "\x00" // etcd's way to say: everything
	}
	opts := []clientv3.OpOption{clientv3.WithRange(end)}
	for {
		resp, err := c.Get(ctx, from, append(opts, clientv3.WithLimit(limit))...)
		if status.Code(err) == codes.ResourceExhausted && limit > 1 {
			limit /= 4 // the page is larger than a message may be
			continue
		}
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			add(metadata.Entry{Key: string(kv.Key), Value: kv.Value, Version: version(kv.ModRevision)})
		}
		if !resp.More || len(resp.Kvs) == 0 {
			return nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		opts = []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithRev(resp.Header.Revision)}
	}
}

// Commit implements metadata.Committer as one etcd transaction.
func (b *Backend) Commit(ctx context.Context, writes ...metadata.Write) error {
	if err := b.target.CheckWrites(writes); err != nil {
		return err
	}
	req := request{op: "commit"}
	var conditions []clientv3.Cmp
	var ops []clientv3.Op
	for _, w := range writes {
		req.size += len(w.Value)
		if w.If != nil {
			// A key that is absent has the revision 0.
			rev := int64(0)
			if *w.If != "" {
				var err error
				if rev, err = strconv.ParseInt(*w.If, 10, 64); err != nil || rev <= 0 {
					return b.target.Fail("commit", w.Key, metadata.ErrConflict, fmt.Errorf("%q is not a version of this backend", *w.If))
				}
			}
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(w.Key), "=", rev))
		}
		if w.Delete {
			ops = append(ops, clientv3.OpDelete(w.Key))
		} else {
			ops = append(ops, clientv3.OpPut(w.Key, string(w.Value)))
		}
	}
	return b.call(ctx, req, func(ctx context.Context, c *clientv3.Client) error {
		if len(writes) == 0 {
			return nil
		}
		resp, err := c.Txn(ctx).If(conditions...).Then(ops...).Commit()
		if err == nil && !resp.Succeeded {
			err = metadata.ErrConflict
		}
		return err
	})
}

// Close implements metadata.Backend.
func (b *Backend) Close() error {
	if !b.life.Close() {
		return nil
	}
	b.lock <- struct{}{}
	old := b.conn
	b.conn = nil
	<-b.lock
	if old != nil {
		old.client.Close()
	}
	return nil
}
