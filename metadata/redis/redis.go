package redis

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

func init() {
	module.Define(metadata.Kind, "redis", "one Redis server, shared with upstream engines", defaultConfig(), New)
	// The client prints failed dials to standard error; they reach the caller as errors here.
	logging.Disable()
}

// maxValue is redis's limit of one value, proto-max-bulk-len, unless its config lowers it.
const maxValue = 512 << 20

// Backend is a client of one Redis server.
type Backend struct {
	cfg    Config
	client *redis.Client
	log    *slog.Logger
	life   *remote.Life
	target remote.Target
	// standalone is set once the server has said that it is no cluster.
	standalone atomic.Bool
}

var (
	_ metadata.Backend        = (*Backend)(nil)
	_ metadata.Lister         = (*Backend)(nil)
	_ metadata.Committer      = (*Backend)(nil)
	_ metadata.Watcher        = (*Backend)(nil)
	_ metadata.PollingWatcher = (*Backend)(nil)
	_ metadata.Leaser         = (*Backend)(nil)
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
		log.Warn("redis: tls.insecure_skip_verify accepts any server certificate")
	}
	addr := set.addr
	if set.db != 0 {
		addr = fmt.Sprintf("%s/%d", addr, set.db)
	}
	b := &Backend{
		cfg: c, log: log, life: remote.NewLife(),
		target: remote.Target{Name: "redis", Addr: addr, Secrets: []string{set.password}},
	}
	b.client = redis.NewClient(&redis.Options{
		Addr: set.addr, Username: set.username, Password: set.password, DB: set.db, TLSConfig: tlsConfig,
		DialTimeout: c.DialTimeout, ReadTimeout: c.Timeout, WriteTimeout: c.Timeout, PoolTimeout: c.Timeout,
		ContextTimeoutEnabled: true,
		// What may be repeated is decided in call.
		MaxRetries: -1, DialerRetries: 1,
		OnConnect:       b.refuseCluster,
		DisableIdentity: true, PipelinePoolSize: -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	return b, nil
}

// refuseCluster asks the first connection what kind of server this is. A user without the right to ask gets
// a MOVED error later, which is also refused by name.
func (b *Backend) refuseCluster(ctx context.Context, cn *redis.Conn) error {
	if b.standalone.Load() {
		return nil
	}
	info, err := cn.Info(ctx, "server").Result()
	if err != nil {
		return nil
	}
	for line := range strings.Lines(info) {
		switch strings.TrimSpace(line) {
		case "redis_mode:cluster":
			return errCluster
		case "redis_mode:sentinel":
			return errSentinel
		}
	}
	b.standalone.Store(true)
	return nil
}

// version identifies a value. A key with an empty value has one too.
func version(value []byte) string {
	sum := sha1.Sum(value)
	return hex.EncodeToString(sum[:])
}

// Get implements metadata.Backend.
func (b *Backend) Get(ctx context.Context, key string) (metadata.Entry, error) {
	out := metadata.Entry{Key: key}
	err := b.call(ctx, request{op: "get", key: key, repeat: true}, func(ctx context.Context) (err error) {
		out.Value, err = b.client.Get(ctx, key).Bytes()
		return err
	})
	if err != nil {
		return metadata.Entry{}, err
	}
	out.Version = version(out.Value)
	return out, nil
}

// Put implements metadata.Backend.
func (b *Backend) Put(ctx context.Context, key string, value []byte) error {
	return b.call(ctx, request{op: "put", key: key, repeat: true, size: len(value)}, func(ctx context.Context) error {
		return b.client.Set(ctx, key, value, 0).Err()
	})
}

// Delete implements metadata.Backend.
func (b *Backend) Delete(ctx context.Context, key string) error {
	return b.call(ctx, request{op: "delete", key: key, repeat: true}, func(ctx context.Context) error {
		return b.client.Del(ctx, key).Err()
	})
}

// List implements metadata.Lister. Keys that appear or vanish meanwhile may be missing or present.
func (b *Backend) List(ctx context.Context, prefix string) ([]metadata.Entry, error) {
	const batch = 64
	var out []metadata.Entry
	err := b.call(ctx, request{op: "list", key: prefix, prefix: true, repeat: true}, func(ctx context.Context) error {
		keys, err := b.keys(ctx, prefix)
		if err != nil {
			return err
		}
		out = make([]metadata.Entry, 0, len(keys))
		for some := range slices.Chunk(keys, batch) {
			values, err := b.client.MGet(ctx, some...).Result()
			if err != nil {
				return err
			}
			for i, v := range values {
				if text, ok := v.(string); ok { // nil: gone, or not a string
					value := []byte(text)
					out = append(out, metadata.Entry{Key: some[i], Value: value, Version: version(value)})
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// keys returns the sorted keys below prefix, without the markers of leases.
func (b *Backend) keys(ctx context.Context, prefix string) ([]string, error) {
	var keys []string
	for cursor := uint64(0); ; {
		some, next, err := b.client.Scan(ctx, cursor, globQuote(prefix)+"*", 1000).Result()
		if err != nil {
			return nil, err
		}
		for _, k := range some {
			if !strings.HasPrefix(k, markerPrefix) {
				keys = append(keys, k)
			}
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// globQuote quotes what SCAN's MATCH would take for a pattern.
func globQuote(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`).Replace(s)
}

// Close implements metadata.Backend.
func (b *Backend) Close() error {
	if b.life.Close() {
		b.client.Close()
	}
	return nil
}
