package telemetry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
)

func newLogging(t *testing.T, c LogConfig, w io.Writer) *Logging {
	t.Helper()
	l, err := NewLogging(c, w)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestLogFormats(t *testing.T) {
	for _, c := range []struct {
		format string
		check  func(string) bool
	}{
		{"auto", func(s string) bool { return json.Valid([]byte(s)) }}, // not a terminal
		{"json", func(s string) bool { return json.Valid([]byte(s)) }},
		{"text", func(s string) bool { return strings.Contains(s, `level=INFO msg="segment opened" peer=node-A`) }},
	} {
		t.Run(c.format, func(t *testing.T) {
			var out bytes.Buffer
			cfg := DefaultLog()
			cfg.Format = c.format
			newLogging(t, cfg, &out).Logger().Info("segment opened", "peer", "node-A")
			if !c.check(out.String()) || strings.Count(out.String(), "\n") != 1 {
				t.Errorf("log: %q", out.String())
			}
		})
	}
}

func TestConsole(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(newConsole(&out, &slog.HandlerOptions{Level: slog.LevelInfo}))
	log.Info("node is ready")
	log.With("part", "tcp").WithGroup("peer").Warn("slow peer", "name", "a b", "took", 2*time.Second)
	log.Info("level changed", "level", "debug")
	log.Error("dial redis://u:hunter2@127.0.0.1:6379/0 failed", "password", "hunter2")
	log.Debug("hidden")
	want := []string{
		"INFO  node is ready",
		`WARN  slow peer part=tcp peer.name="a b" peer.took=2s`,
		"INFO  level changed level=debug",
		"ERROR dial redis://u:***@127.0.0.1:6379/0 failed password=***",
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		clock, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if _, err := time.Parse("15:04:05.000", clock); err != nil {
			t.Errorf("line %q does not start with a time: %v", line, err)
		}
		got = append(got, rest)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestConsoleConcurrent(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(newConsole(&out, &slog.HandlerOptions{}))
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			l := log.With("g", g)
			for range 50 {
				l.Info("line", "x", "y")
			}
		})
	}
	wg.Wait()
	for line := range strings.Lines(out.String()) {
		if !strings.Contains(line, " INFO  line g=") || !strings.HasSuffix(line, " x=y\n") {
			t.Fatalf("mixed line %q", line)
		}
	}
	if n := bytes.Count(out.Bytes(), []byte("\n")); n != 200 {
		t.Errorf("%d lines, want 200", n)
	}
}

func TestLogLevelIsLive(t *testing.T) {
	var out bytes.Buffer
	l := newLogging(t, DefaultLog(), &out)
	child := l.Logger().With("part", "tcp")
	child.Debug("one")
	if l.Level() != "info" {
		t.Errorf("level %q", l.Level())
	}
	for _, c := range []struct{ set, want string }{{"DEBUG", "debug"}, {"warning", "warn"}, {"error", "error"}, {"info", "info"}, {"debug", "debug"}} {
		if err := l.SetLevel(c.set); err != nil || l.Level() != c.want {
			t.Errorf("SetLevel(%q): %v, level %q", c.set, err, l.Level())
		}
	}
	child.Debug("two")
	if err := l.SetLevel("loud"); err == nil || !strings.Contains(err.Error(), `"loud" is not a level; use debug, info, warn or error`) {
		t.Errorf("SetLevel(loud) = %v", err)
	}
	if l.Level() != "debug" {
		t.Error("a refused level changed the level")
	}
	if s := out.String(); strings.Contains(s, "one") || !strings.Contains(s, "two") {
		t.Errorf("log: %q", s)
	}
}

type tlsSection struct {
	Key string `koanf:"key" secret:"true"`
}

type backendSection struct {
	Endpoints []string
	TLS       *tlsSection
}

func TestSecretsAreNotLogged(t *testing.T) {
	const pw = "hunter2"
	parsed, err := url.Parse("redis://u:" + pw + "@127.0.0.1:6379")
	if err != nil {
		t.Fatal(err)
	}
	wrapped := fmt.Errorf("dial: %w", errors.New("etcd://root:"+pw+"@127.0.0.1:2379: refused"))
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		cfg := DefaultLog()
		cfg.Format = format
		log := newLogging(t, cfg, &out).Logger()
		log.Info("connect to redis://u:"+pw+"@h/0", "password", pw, "Redis-Password", pw, "auth_token", pw, "authToken", pw,
			"client_secret", pw, "url", "http://a:"+pw+"@h/x", "error", wrapped, "parsed", parsed,
			"config", backendSection{TLS: &tlsSection{pw}}, "list", []string{"h:1", "http://a:" + pw + "@h"},
			"tokens", 7, "key", "model@rank:0/block@1", "endpoint", "http://127.0.0.1:8080/metadata?key=a@b")
		log.With("password", pw).WithGroup("g").Info("x", "secret", pw)
		s := out.String()
		if strings.Contains(s, pw) {
			t.Errorf("%s: the password is in the log: %s", format, s)
		}
		for _, keep := range []string{"redis://u:***@h/0", "etcd://root:***@127.0.0.1:2379: refused", "model@rank:0/block@1", "http://127.0.0.1:8080/metadata?key=a@b", "it holds secrets"} {
			if !strings.Contains(s, keep) {
				t.Errorf("%s: %q is missing in %s", format, keep, s)
			}
		}
		if !strings.Contains(s, "tokens=7") && !strings.Contains(s, `"tokens":7`) {
			t.Errorf("%s: a count of tokens was masked", format)
		}
	}
}

func TestScrub(t *testing.T) {
	for in, want := range map[string]string{
		"redis://u:p@h":                       "redis://u:***@h",
		"redis://:p@h:1/0":                    "redis://:***@h:1/0",
		"redis://u:p@ss@h":                    "redis://u:***@h",
		"redis://u:a/b@h":                     "redis://u:***@h",
		"etcd://u:p@a:1,etcd://v:q@b:2":       "etcd://u:***@a:1,etcd://v:***@b:2",
		`get "http://u:p@h/": refused by a@b`: `get "http://u:***@h/": refused by a@b`,
		"http://h:8080/x?key=a@b":             "http://h:8080/x?key=a@b",
		"etcd://a:1,b:2 said x@y":             "etcd://a:1,b:2 said x@y",
		"http://h:8080,http://u:p@h":          "http://h:8080,http://u:***@h",
		"http://user@h/x":                     "http://user@h/x",
		"http://h/a:b@c":                      "http://h/a:b@c",
		"nothing @ all":                       "nothing @ all",
		"://":                                 "://",
		"http://[::1]:8082/metadata?key=a@b":  "http://[::1]:8082/metadata?key=a@b",
		"redis://u:p@[::1]:6379":              "redis://u:***@[::1]:6379",
	} {
		if got := scrub(in); got != want {
			t.Errorf("scrub(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzScrub(f *testing.F) {
	f.Add("redis://u:p@h", "pw")
	f.Add("://:@://", "a")
	f.Fuzz(func(t *testing.T, s, pw string) {
		scrub(s)
		if pw == "" || strings.ContainsAny(pw, " \t\r\n\"'") || strings.Contains(":"+pw, "://") || isPort(pw+"@") || isPort(pw) {
			return
		}
		if got := scrub("redis://user:" + pw + "@host"); got != "redis://user:***@host" {
			t.Errorf("password %q: %q", pw, got)
		}
	})
}

func TestLogFileRotates(t *testing.T) {
	dir := t.TempDir()
	cfg := DefaultLog()
	cfg.File, cfg.MaxSize, cfg.MaxBackups, cfg.Compress = filepath.Join(dir, "sub", "node.log"), units.MiB, 2, false
	var stderr bytes.Buffer
	l := newLogging(t, cfg, &stderr)
	pad := strings.Repeat("x", 64<<10)
	for i := range 20 {
		l.Logger().Info("line", "i", i, "pad", pad)
	}
	files, err := os.ReadDir(filepath.Join(dir, "sub"))
	if err != nil || len(files) != 2 {
		t.Fatalf("%d files, want the log and one rotated: %v", len(files), err)
	}
	lines := 0
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, "sub", f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > int(units.MiB) {
			t.Errorf("%s has %d bytes", f.Name(), len(b))
		}
		for line := range bytes.Lines(b) {
			if !json.Valid(line) {
				t.Errorf("%s: a line is not JSON", f.Name())
			}
			lines++
		}
	}
	if lines != 20 || stderr.Len() != 0 {
		t.Errorf("%d lines in the files, want 20; stderr: %q", lines, stderr.String())
	}
}

func TestLogFileErrors(t *testing.T) {
	dir := t.TempDir()
	blocked := filepath.Join(dir, "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(blocked, "node.log"), dir} {
		cfg := DefaultLog()
		cfg.File = path
		if _, err := NewLogging(cfg, io.Discard); err == nil || !strings.Contains(err.Error(), "log.file: ") || !strings.Contains(err.Error(), blocked) && path != dir {
			t.Errorf("log file %s: %v", path, err)
		}
	}
	// A file that becomes unwritable while the node runs: the lines go to stderr, with one word why.
	cfg := DefaultLog()
	cfg.File = filepath.Join(dir, "later", "node.log")
	var stderr bytes.Buffer
	l := newLogging(t, cfg, &stderr)
	if err := os.RemoveAll(filepath.Join(dir, "later")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "later"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.Logger().Info("first")
	l.Logger().Info("second")
	s := stderr.String()
	if strings.Count(s, "log.file cannot be written") != 1 || !strings.Contains(s, `"msg":"first"`) || !strings.Contains(s, `"msg":"second"`) {
		t.Errorf("stderr: %q", s)
	}
}

func TestConfigValidate(t *testing.T) {
	for _, c := range []struct {
		name string
		v    interface{ Validate() error }
		text string
	}{
		{"log defaults", new(DefaultLog()), ""},
		{"log level", &LogConfig{Level: "loud", Format: "auto"}, `level: "loud" is not a level`},
		{"log format", &LogConfig{Level: "info", Format: "xml"}, `format: "xml" is unknown; use auto, text or json`},
		{"admin defaults", new(DefaultAdmin()), ""},
		{"admin off", &AdminConfig{}, ""},
		{"IPv6", &AdminConfig{Listen: "[::1]:0"}, ""},
		{"all addresses", &AdminConfig{Listen: ":9004"}, ""},
		{"no port", &AdminConfig{Listen: "127.0.0.1"}, `listen: "127.0.0.1" is not host:port`},
		{"port too large", &AdminConfig{Listen: "127.0.0.1:70000"}, "is not host:port"},
		{"port by name", &AdminConfig{Listen: "127.0.0.1:http"}, "is not host:port"},
		{"relative socket", &AdminConfig{Socket: "x.sock"}, `socket: "x.sock" is not an absolute path`},
		{"long socket", &AdminConfig{Socket: "/" + strings.Repeat("x", 107)}, "socket: the path has 108 bytes, Unix sockets allow 107"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.v.Validate()
			if c.text == "" && err != nil || c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)) {
				t.Errorf("Validate = %v, want %q", err, c.text)
			}
		})
	}
}
