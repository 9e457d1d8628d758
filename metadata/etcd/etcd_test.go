package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
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

func TestConformance(t *testing.T) {
	metadatatest.Run(t, func(t testing.TB) metadatatest.Service {
		server := testenv.Etcd(t)
		return metadatatest.Service{
			Open: func(t testing.TB) metadata.Backend {
				return open(t, func(c *Config) { c.URL = "etcd://" + server.Addr })
			},
			Timeout: 5 * time.Second,
			Stop:    func(testing.TB) { server.Stop() },
			Start:   func(testing.TB) { server.Start() },
			Keeps:   true,
			Pause:   func(testing.TB) { server.Signal(syscall.SIGSTOP) },
			Resume:  func(testing.TB) { server.Signal(syscall.SIGCONT) },
			Wipe: func(t testing.TB) {
				server.Stop()
				if err := os.RemoveAll(filepath.Join(server.Dir, "data")); err != nil {
					t.Fatal(err)
				}
				server.Start()
			},
		}
	}, metadatatest.Declared{Lister: true, Committer: true, Watcher: true, Leaser: true})
}

func TestTooLargeNamesSizeLimitAndFlag(t *testing.T) {
	server := testenv.Etcd(t)
	b := open(t, func(c *Config) { c.Endpoints = []string{server.Addr} })
	for _, n := range []int{1700 << 10, 4_600_000, 40 << 20} {
		err := b.Put(timeout(t, 20*time.Second), "k", make([]byte, n))
		if !errors.Is(err, metadata.ErrTooLarge) {
			t.Fatalf("%d bytes: %v", n, err)
		}
		for _, want := range []string{fmt.Sprint(n), "--max-request-bytes", server.Addr} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%d bytes: %q is missing in %v", n, want, err)
			}
		}
	}
	var writes []metadata.Write
	for i := range 200 {
		writes = append(writes, metadata.Write{Key: fmt.Sprint(i)})
	}
	err := b.Commit(timeout(t, 20*time.Second), writes...)
	if !errors.Is(err, metadata.ErrTooLarge) || !strings.Contains(err.Error(), "--max-txn-ops") {
		t.Errorf("200 writes: %v", err)
	}
	if err := b.Put(timeout(t, 20*time.Second), "k", make([]byte, 1400<<10)); err != nil {
		t.Errorf("1400 KiB: %v", err)
	}
}

// A segment of 20,000 buffers has a document of 1.1 MB; more needs a server with a raised limit.
func TestRaisedServerLimit(t *testing.T) {
	server := testenv.Etcd(t, "--max-request-bytes=33554432")
	b := open(t, func(c *Config) { c.URL = server.Addr })
	ctx := timeout(t, 60*time.Second)
	for i := range 3 {
		if err := b.Put(ctx, fmt.Sprintf("big/%d", i), make([]byte, 15<<20)); err != nil {
			t.Fatal(err)
		}
	}
	// 45 MB: more than one message may hold.
	all, err := b.List(ctx, "big/")
	if err != nil || len(all) != 3 || len(all[2].Value) != 15<<20 {
		t.Fatalf("%d entries, %v", len(all), err)
	}
}

func enableAuth(t *testing.T, addr string) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := timeout(t, 20*time.Second)
	step := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for user, role := range map[string]string{"root": "root", "node": "node"} {
		_, err := c.RoleAdd(ctx, role)
		step(err)
		_, err = c.UserAdd(ctx, user, "p@ss/"+user)
		step(err)
		_, err = c.UserGrantRole(ctx, user, role)
		step(err)
	}
	_, err = c.RoleGrantPermission(ctx, "node", "mooncake/", clientv3.GetPrefixRangeEnd("mooncake/"), clientv3.PermissionType(clientv3.PermReadWrite))
	step(err)
	_, err = c.AuthEnable(ctx)
	step(err)
}

func TestUsers(t *testing.T) {
	server := testenv.Etcd(t)
	enableAuth(t, server.Addr)
	ctx := timeout(t, 60*time.Second)
	node := open(t, func(c *Config) { c.URL = "etcd://node:p%40ss%2Fnode@" + server.Addr })
	if err := node.Put(ctx, "mooncake/k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	if err := node.Put(ctx, "other", nil); !errors.Is(err, metadata.ErrRefused) || !strings.Contains(err.Error(), "permission denied") {
		t.Fatalf("outside of the permission: %v", err)
	}
	l, err := node.Lease(ctx, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Put(ctx, "mooncake/leased", nil); err != nil {
		t.Fatal(err)
	}
	for ev, err := range node.Watch(ctx, "mooncake/") {
		if err != nil || ev.Type != metadata.EventReset {
			t.Fatalf("watch: %v, %v", ev, err)
		}
		break
	}
	// A restarted etcd has forgotten the tokens that it gave out.
	server.Restart()
	testenv.Eventually(t, 20*time.Second, func() error {
		_, err := node.Get(ctx, "mooncake/k")
		return err
	})
	if err := l.Revoke(ctx); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]func(*Config){
		"wrong password": func(c *Config) { c.Endpoints, c.Username, c.Password = []string{server.Addr}, "node", "hunter2" },
		"no such user":   func(c *Config) { c.Endpoints, c.Username, c.Password = []string{server.Addr}, "nobody", "hunter2" },
		"no user":        func(c *Config) { c.Endpoints = []string{server.Addr} },
	} {
		begin := time.Now()
		_, err := open(t, c).Get(ctx, "mooncake/k")
		if !errors.Is(err, metadata.ErrRefused) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
	}
}

func TestTLS(t *testing.T) {
	f := testenv.NewTLSFiles(t, "node")
	server := testenv.Etcd(t, "--cert-file="+f.Cert, "--key-file="+f.Key, "--trusted-ca-file="+f.CA, "--client-cert-auth")
	ctx := timeout(t, 60*time.Second)
	full := func(c *Config) {
		c.Endpoints = []string{server.Addr}
		c.TLS.CA, c.TLS.Cert, c.TLS.Key = f.CA, f.ClientCert, f.ClientKey
	}
	for name, edit := range map[string]func(*Config){
		"host:port":      full,
		"https endpoint": func(c *Config) { full(c); c.Endpoints = []string{"https://" + server.Addr} },
		"url":            func(c *Config) { full(c); c.URL, c.Endpoints = "etcd://https://"+server.Addr, nil },
		"server name":    func(c *Config) { full(c); c.TLS.ServerName = "localhost" },
		"skip verify":    func(c *Config) { full(c); c.TLS.CA, c.TLS.InsecureSkipVerify = "", true },
	} {
		if err := open(t, edit).Put(ctx, "k", []byte("v")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := testenv.NewTLSFiles(t, "node")
	for name, c := range map[string]struct {
		edit func(*Config)
		want string
	}{
		"plain client":          {func(c *Config) { c.Endpoints = []string{server.Addr} }, ""},
		"no client certificate": {func(c *Config) { full(c); c.TLS.Cert, c.TLS.Key = "", "" }, ""},
		"another authority":     {func(c *Config) { full(c); c.TLS.CA = other.CA }, "certificate"},
		"another name":          {func(c *Config) { full(c); c.TLS.ServerName = "example.org" }, "example.org"},
	} {
		c.edit = withTimeout(c.edit, time.Second)
		_, err := open(t, c.edit).Get(context.Background(), "k")
		if !errors.Is(err, metadata.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func withTimeout(edit func(*Config), d time.Duration) func(*Config) {
	return func(c *Config) { edit(c); c.Timeout = d }
}

// Upstream's clients write "value + newline" without a lease; both sides see the same bytes.
func TestSharedWithAPlainClient(t *testing.T) {
	server := testenv.Etcd(t)
	b := open(t, func(c *Config) { c.URL = server.Addr })
	plain, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Addr}, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	ctx := timeout(t, 20*time.Second)
	const key, doc = "mooncake/rpc_meta/node-A", "{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":15036}\n"
	if _, err := plain.Put(ctx, key, doc); err != nil {
		t.Fatal(err)
	}
	if e, err := b.Get(ctx, key); err != nil || string(e.Value) != doc {
		t.Fatalf("%q, %v", e.Value, err)
	}
	if err := b.Put(ctx, key, []byte("ours\n")); err != nil {
		t.Fatal(err)
	}
	resp, err := plain.Get(ctx, key)
	if err != nil || len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != "ours\n" || resp.Kvs[0].Lease != 0 {
		t.Fatalf("%v, %v", resp, err)
	}
}
