package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAddress(t *testing.T) {
	for in, want := range map[string]string{
		"h":                  "h:2379",
		"h:1":                "h:1",
		"192.0.2.1":          "192.0.2.1:2379",
		"::1":                "[::1]:2379",
		"[::1]":              "[::1]:2379",
		"[::1]:9000":         "[::1]:9000",
		"2001:db8::1":        "[2001:db8::1]:2379",
		"[2001:db8::1]:9000": "[2001:db8::1]:9000",
		"fe80::1%eth0":       "[fe80::1%eth0]:2379",
		"[fe80::1%eth0]:80":  "[fe80::1%eth0]:80",
		"etcd-0.etcd.svc":    "etcd-0.etcd.svc:2379",
		"under_score:080":    "under_score:80",
	} {
		if got, err := Address(in, 2379); err != nil || got != want {
			t.Errorf("Address(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", ":", "h:", "]", ":50051", "h:99999", "h:0", "h:-1", "h:abc", "a:b:c", "[::1", "::1]", "[h]:1", "[]:1", "[1.2.3.4]:1",
		"{{ ETCD_IP }}:2379", "<MASTER_IP>:50088", "${HOST}", "h/path", "h:1/path", "u@h:1", "a,b", "h h:1", "[::1]x:1",
	} {
		if got, err := Address(in, 2379); err == nil {
			t.Errorf("Address(%q) = %q, want an error", in, got)
		} else if !strings.Contains(err.Error(), fmt.Sprintf("%q", in)) {
			t.Errorf("Address(%q): the error does not show it: %v", in, err)
		}
	}
}

func FuzzAddress(f *testing.F) {
	for _, s := range []string{"", "h:1", "[::1]:2", "fe80::1%eth0", "a:b:c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := Address(s, 2379)
		if err != nil {
			return
		}
		if again, err := Address(got, 1); err != nil || again != got {
			t.Fatalf("Address(%q) = %q, which is not stable: %q, %v", s, got, again, err)
		}
	})
}

func TestDiffer(t *testing.T) {
	for _, c := range []struct{ url, key, want string }{
		{"", "", ""}, {"a", "", ""}, {"", "a", ""}, {"a", "a", ""}, {"a", "b", `url and k: both are given and they differ: "a" and "b"`},
	} {
		if err := Differ("k", c.url, c.key, false); fmt.Sprint(err) != c.want && (err != nil || c.want != "") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := Differ("password", "hunter2", "hunter3", true); err == nil || strings.Contains(err.Error(), "hunter") {
		t.Errorf("%v", err)
	}
}

func TestFail(t *testing.T) {
	target := Target{Name: "redis", Addr: "h:1", Secrets: []string{"", "hunter2"}}
	secret := errors.New("ERR unknown command 'HELLO', with args beginning with: 'hunter2'")
	err := target.Fail("get", "k", metadata.ErrRefused, secret)
	if want := `redis h:1: get "k": ERR unknown command 'HELLO', with args beginning with: '***': metadata service refused`; err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if !errors.Is(err, metadata.ErrRefused) || errors.Is(err, secret) {
		t.Errorf("%v wraps the wrong errors", err)
	}
	if err := target.Fail("get", strings.Repeat("k", 5000), metadata.ErrNotFound, nil); len(err.Error()) > 300 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err = target.Ended(ctx, "get", "k", errors.New("refused by hunter2"))
	if !errors.Is(err, metadata.ErrUnavailable) || !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
}

func TestCheckWrites(t *testing.T) {
	target := Target{Name: "x", Addr: "y"}
	w := func(keys ...string) (out []metadata.Write) {
		for _, k := range keys {
			out = append(out, metadata.Write{Key: k})
		}
		return
	}
	if err := target.CheckWrites(w("a", "b")); err != nil {
		t.Error(err)
	}
	for _, bad := range [][]metadata.Write{w("a", "b", "a"), w("")} {
		if err := target.CheckWrites(bad); !errors.Is(err, metadata.ErrRefused) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestLifeBoundsCalls(t *testing.T) {
	l := NewLife()
	ctx, done := l.Call(context.Background(), time.Millisecond)
	<-ctx.Done()
	done()
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Errorf("own timeout: %v", ctx.Err())
	}
	longer, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	ctx, done = l.Call(longer, time.Millisecond)
	if at, _ := ctx.Deadline(); time.Until(at) < time.Minute {
		t.Errorf("the caller's deadline was replaced by %v", at)
	}
	l.Close()
	<-ctx.Done()
	done()
	if err := (Target{}).Ended(ctx, "get", "k", nil); !errors.Is(err, metadata.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

func TestLifeOwnsGoroutines(t *testing.T) {
	l := NewLife()
	var ended bool
	if !l.Go(func(ctx context.Context) { <-ctx.Done(); ended = true }) {
		t.Fatal("refused before close")
	}
	if !l.Close() || !ended {
		t.Fatal("close did not wait for the goroutine")
	}
	if l.Close() || l.Go(func(context.Context) { t.Error("ran after close") }) || !l.Closed() {
		t.Fatal("a closed life accepts work")
	}
}

func TestTLS(t *testing.T) {
	f := testenv.NewTLSFiles(t, "node")
	if c, err := (TLS{}).Config(false); c != nil || err != nil {
		t.Errorf("off: %v, %v", c, err)
	}
	if c, err := (TLS{}).Config(true); c == nil || err != nil {
		t.Errorf("forced: %v, %v", c, err)
	}
	c, err := TLS{CA: f.CA, Cert: f.ClientCert, Key: f.ClientKey, ServerName: "n"}.Config(false)
	if err != nil || c.RootCAs == nil || c.ServerName != "n" || c.MinVersion != tls.VersionTLS12 {
		t.Fatalf("%+v, %v", c, err)
	}
	if pair, err := c.GetClientCertificate(nil); err != nil || len(pair.Certificate) != 1 {
		t.Fatalf("%v, %v", pair, err)
	}
	if err := os.Remove(f.ClientKey); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetClientCertificate(nil); err == nil {
		t.Error("the certificate is not read again")
	}
	junk := filepath.Join(t.TempDir(), "junk.pem")
	if err := os.WriteFile(junk, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]TLS{
		"absent ca":   {CA: junk + "x"},
		"junk ca":     {CA: junk},
		"absent pair": {Cert: junk, Key: junk},
	} {
		if _, err := bad.Config(false); err == nil || !strings.Contains(err.Error(), "tls: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (TLS{Cert: "c"}).Validate(); err == nil {
		t.Error("cert without key passes")
	}
}
