package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/metadatatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open builds a backend from the defaults and what edit changes.
func open(t testing.TB, edit func(*Config)) *Backend {
	t.Helper()
	c := defaultConfig()
	edit(&c)
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	b, err := newBackend(module.Env{}, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func timeout(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// plain is a client as another program would have it.
func plain(t testing.TB, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { c.Close() })
	return c
}

func TestConformance(t *testing.T) {
	metadatatest.Run(t, func(t testing.TB) metadatatest.Service {
		server := testenv.Redis(t)
		return metadatatest.Service{
			Open: func(t testing.TB) metadata.Backend {
				return open(t, func(c *Config) { c.URL = "redis://" + server.Addr + "/3" })
			},
			Timeout:  5 * time.Second,
			MaxValue: 32 << 20,
			Stop:     func(testing.TB) { server.Stop() },
			Start:    func(testing.TB) { server.Start() },
			Pause:    func(testing.TB) { server.Signal(syscall.SIGSTOP) },
			Resume:   func(testing.TB) { server.Signal(syscall.SIGCONT) },
			Wipe: func(t testing.TB) {
				if err := plain(t, server.Addr).FlushAll(timeout(t, 10*time.Second)).Err(); err != nil {
					t.Fatal(err)
				}
			},
		}
	}, metadatatest.Declared{Lister: true, Committer: true, Watcher: true, Leaser: true})
}

func TestUsersAndDatabases(t *testing.T) {
	server := testenv.Redis(t, strings.Fields(`--requirepass p@ss/default
		--user node on >p@ss/node ~mooncake/* -@all +get +set +del +exists +mget +scan +eval +evalsha +pexpire +select
		--user reader on >hunter2 ~* -@all +get`)...)
	ctx := timeout(t, 60*time.Second)
	works := func(name string, edit func(*Config)) {
		t.Helper()
		b := open(t, edit)
		if err := b.Put(ctx, "mooncake/k", []byte(name)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if e, err := b.Get(ctx, "mooncake/k"); err != nil || string(e.Value) != name {
			t.Fatalf("%s: %q, %v", name, e.Value, err)
		}
	}
	works("password in the url", func(c *Config) { c.URL = "redis://:p%40ss%2Fdefault@" + server.Addr })
	works("password in a key", func(c *Config) { c.Address, c.Password = server.Addr, "p@ss/default" })
	node := func(c *Config) { c.URL = "redis://node:p%40ss%2Fnode@" + server.Addr + "/3" }
	works("user in the url", node)
	works("user in keys", func(c *Config) {
		c.Address, c.Username, c.Password, c.DB = server.Addr, "node", "p@ss/node", 3
	})

	b := open(t, node) // every ability with only the documented rights
	if _, err := b.List(ctx, "mooncake/"); err != nil {
		t.Error(err)
	}
	absent := ""
	if err := b.Commit(ctx, metadata.Write{Key: "mooncake/c", If: &absent}, metadata.Write{Key: "mooncake/d", Delete: true}); err != nil {
		t.Error(err)
	}
	l, err := b.Lease(ctx, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Put(ctx, "mooncake/l", nil); err != nil {
		t.Error(err)
	}
	if err := l.Revoke(ctx); err != nil {
		t.Error(err)
	}
	for _, err := range b.Watch(ctx, "mooncake/") {
		if err != nil {
			t.Error(err)
		}
		break
	}
	if err := b.Put(ctx, "other", nil); !errors.Is(err, metadata.ErrRefused) || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("outside of the permission: %v", err)
	}

	for name, c := range map[string]struct {
		edit func(*Config)
		want string
	}{
		"wrong password":     {func(c *Config) { c.Address, c.Password = server.Addr, "hunter2" }, "WRONGPASS"},
		"wrong user":         {func(c *Config) { c.URL = "redis://nobody:hunter2@" + server.Addr }, "WRONGPASS"},
		"no password":        {func(c *Config) { c.Address = server.Addr }, "NOAUTH"},
		"db out of range":    {func(c *Config) { c.URL = "redis://:p%40ss%2Fdefault@" + server.Addr + "/99" }, "DB index is out of range"},
		"db key":             {func(c *Config) { c.Address, c.Password, c.DB = server.Addr, "p@ss/default", 16 }, "DB index is out of range"},
		"no right to select": {func(c *Config) { c.URL = "redis://reader:hunter2@" + server.Addr + "/1" }, "NOPERM"},
	} {
		b := open(t, c.edit)
		begin := time.Now()
		err := b.Put(context.Background(), "mooncake/k", []byte("must not be written"))
		if !errors.Is(err, metadata.ErrRefused) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want %s", name, err, c.want)
		}
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
	}
	works("db 0 was not touched", func(c *Config) { c.URL = "redis://:p%40ss%2Fdefault@" + server.Addr })
}

func TestTLS(t *testing.T) {
	if !testenv.RedisSupports(t, "tls-port") {
		testenv.MustNotSkip(t, "a redis-server with TLS")
	}
	f := testenv.NewTLSFiles(t, "node")
	server := testenv.Redis(t, "--tls-port", "0", "--tls-cert-file", f.Cert, "--tls-key-file", f.Key, "--tls-ca-cert-file", f.CA,
		"--tls-auth-clients", "yes", "--requirepass", "hunter2")
	full := func(c *Config) {
		c.URL = "redis://:hunter2@" + server.Addr
		c.TLS.CA, c.TLS.Cert, c.TLS.Key = f.CA, f.ClientCert, f.ClientKey
	}
	ctx := timeout(t, 60*time.Second)
	for name, edit := range map[string]func(*Config){
		"keys":        full,
		"rediss":      func(c *Config) { full(c); c.URL = "rediss://:hunter2@" + server.Addr },
		"server name": func(c *Config) { full(c); c.TLS.ServerName = "localhost" },
		"skip verify": func(c *Config) { full(c); c.TLS.CA, c.TLS.InsecureSkipVerify = "", true },
	} {
		if err := open(t, edit).Put(ctx, "k", nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := testenv.NewTLSFiles(t, "node")
	for name, c := range map[string]struct {
		edit func(*Config)
		want string
	}{
		"plain client":          {func(c *Config) { c.URL = "redis://:hunter2@" + server.Addr }, ""},
		"no client certificate": {func(c *Config) { full(c); c.TLS.Cert, c.TLS.Key = "", "" }, ""},
		"another authority":     {func(c *Config) { full(c); c.TLS.CA = other.CA }, "certificate"},
		"another name":          {func(c *Config) { full(c); c.TLS.ServerName = "example.org" }, "example.org"},
	} {
		_, err := open(t, func(cfg *Config) { c.edit(cfg); cfg.Timeout = time.Second }).Get(context.Background(), "k")
		if !errors.Is(err, metadata.ErrUnavailable) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClusterIsRefusedByName(t *testing.T) {
	server := testenv.Redis(t, "--cluster-enabled", "yes")
	// The second user may not ask the server what it is.
	if err := plain(t, server.Addr).Do(timeout(t, 5*time.Second), "ACL", "SETUSER", "blind", "on", ">pw", "~*", "+@all", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{server.Addr, "redis://blind:pw@" + server.Addr} {
		begin := time.Now()
		err := open(t, func(c *Config) { c.URL = url }).Put(context.Background(), "k", nil)
		if !errors.Is(err, metadata.ErrRefused) || !strings.Contains(err.Error(), "Redis Cluster") || time.Since(begin) > 3*time.Second {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestServerLimits(t *testing.T) {
	server := testenv.Redis(t, "--proto-max-bulk-len", "1048576")
	b := open(t, func(c *Config) { c.Address = server.Addr })
	ctx := timeout(t, 20*time.Second)
	err := b.Put(ctx, "k", bytes.Repeat([]byte("x"), 1<<20+1))
	if !errors.Is(err, metadata.ErrTooLarge) || !strings.Contains(err.Error(), "proto-max-bulk-len") || !strings.Contains(err.Error(), "1048577") {
		t.Errorf("a long value: %v", err)
	}
	if err := b.Put(ctx, "k", nil); err != nil {
		t.Errorf("the next call: %v", err)
	}
	p := plain(t, server.Addr)
	if err := p.ConfigSet(ctx, "maxmemory", "1000000").Err(); err != nil {
		t.Fatal(err)
	}
	absent := ""
	for name, err := range map[string]error{
		"put":    b.Put(ctx, "k", []byte("v")),
		"commit": b.Commit(ctx, metadata.Write{Key: "a", Value: []byte("v"), If: &absent}, metadata.Write{Key: "b", Value: []byte("v")}),
	} {
		if !errors.Is(err, metadata.ErrRefused) || !strings.Contains(err.Error(), "maxmemory") {
			t.Errorf("%s on a full server: %v", name, err)
		}
	}
	if n, err := p.Exists(ctx, "a", "b").Result(); n != 0 || err != nil {
		t.Errorf("a refused commit left %d keys, %v", n, err)
	}
}

// A replica accepts no writes; a server that still loads its data is waited for.
func TestReplica(t *testing.T) {
	primary := testenv.Redis(t)
	host, port, _ := strings.Cut(primary.Addr, ":")
	replica := testenv.Redis(t, "--replicaof", host, port)
	err := open(t, func(c *Config) { c.Address = replica.Addr }).Put(timeout(t, 10*time.Second), "k", nil)
	if !errors.Is(err, metadata.ErrRefused) || !strings.Contains(err.Error(), "READONLY") {
		t.Fatal(err)
	}
}

// A quick restart is no failure, for 64 goroutines at once, and a server without a disk that comes back
// empty ends the lease within a third of its ttl.
func TestRestart(t *testing.T) {
	server := testenv.Redis(t)
	b := open(t, func(c *Config) { c.Address = server.Addr })
	ctx := timeout(t, 60*time.Second)
	l, err := b.Lease(ctx, 3*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Put(ctx, "leased", nil); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			key := fmt.Sprint("k", g)
			for n := 0; ; n++ {
				if err := b.Put(context.Background(), key, []byte(fmt.Sprint(n))); err != nil {
					t.Errorf("put: %v", err)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	server.Restart()
	restarted := time.Now()
	<-l.Alive()
	if took := time.Since(restarted); took > 3*time.Second {
		t.Errorf("the loss was noticed after %v", took)
	}
	close(stop)
	wg.Wait()
	if _, err := b.Get(ctx, "leased"); !errors.Is(err, metadata.ErrNotFound) {
		t.Errorf("leased key: %v", err)
	}
}

// Lists do not show the markers of leases, and keys of other types do not disturb.
func TestForeignKeys(t *testing.T) {
	server := testenv.Redis(t)
	b := open(t, func(c *Config) { c.Address = server.Addr })
	ctx := timeout(t, 20*time.Second)
	if _, err := b.Lease(ctx, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	p := plain(t, server.Addr)
	if err := p.LPush(ctx, "mooncake/list", "x").Err(); err != nil {
		t.Fatal(err)
	}
	if err := p.Set(ctx, "mooncake/ram/a", "{}\n", 0).Err(); err != nil {
		t.Fatal(err)
	}
	all, err := b.List(ctx, "mooncake/")
	if err != nil || len(all) != 1 || all[0].Key != "mooncake/ram/a" || string(all[0].Value) != "{}\n" {
		t.Fatalf("%v, %v", all, err)
	}
	if _, err := b.Get(ctx, "mooncake/list"); !errors.Is(err, metadata.ErrRefused) {
		t.Errorf("a list as a value: %v", err)
	}
	for ev, err := range b.Watch(ctx, "mooncake/") {
		if err != nil || ev.Type != metadata.EventReset {
			t.Errorf("watch: %v, %v", ev, err)
		}
		break
	}
	if ttl := p.TTL(ctx, "mooncake/ram/a").Val(); ttl != -1 {
		t.Errorf("ttl %v", ttl)
	}
}
