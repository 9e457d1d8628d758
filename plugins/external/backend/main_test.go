package backend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/metadata"
	_ "github.com/mooncake-agent/mooncake/metadata/memory"
	_ "github.com/mooncake-agent/mooncake/metadata/redis"
	"github.com/mooncake-agent/mooncake/plugins/sdk/external"
)

var scratch string

// The test binary is its own plugin: it serves a built-in backend.
func TestMain(m *testing.M) {
	if mode := os.Getenv("BACKEND_TEST"); mode != "" {
		if err := serve(mode); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "mooncake-backend")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	scratch = dir
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

type section map[string]any

func (s section) Decode(into any) error {
	raw, err := json.Marshal(map[string]any{"URL": s["url"]})
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	return err
}

func build(c external.Config) (metadata.Backend, error) {
	var conf struct {
		Type, URL string
	}
	if err := c.Decode(&conf); err != nil {
		return nil, err
	}
	if conf.Type == "memory" {
		return metadata.Kind.Build(context.Background(), "memory", module.Env{}, module.NoConfig{})
	}
	return metadata.Kind.Build(context.Background(), conf.Type, module.Env{}, section{"url": conf.URL})
}

// full has all abilities, plain has none.
type (
	full struct {
		metadata.Backend
		metadata.Lister
		metadata.Committer
		metadata.PollingWatcher
		metadata.Leaser
	}
	plain struct{ metadata.Backend }
)

// liar answers what the protocol does not allow.
type liar struct{ metadata.Backend }

func (liar) Get(context.Context, string) (metadata.Entry, error) {
	return metadata.Entry{Key: "another", Value: []byte("x")}, nil
}

func (liar) List(context.Context, string) ([]metadata.Entry, error) {
	return []metadata.Entry{{Key: "b"}, {Key: "a"}}, nil
}

func (liar) Put(context.Context, string, []byte) error { return errors.New("of no class") }

func (liar) Watch(context.Context, string) iter.Seq2[metadata.Event, error] {
	return func(yield func(metadata.Event, error) bool) {
		yield(metadata.Event{Type: metadata.EventPut, Entry: metadata.Entry{Key: "k"}}, nil)
	}
}

func serve(mode string) error {
	about := external.About{Name: mode, Version: "1"}
	if mode == "liar" {
		return external.ServeMetadata(about, func(c external.Config) (liar, error) {
			b, err := build(c)
			return liar{b}, err
		})
	}
	if mode == "plain" {
		return external.ServeMetadata(about, func(c external.Config) (plain, error) {
			b, err := build(c)
			return plain{b}, err
		})
	}
	return external.ServeMetadata(about, func(c external.Config) (full, error) {
		b, err := build(c)
		if err != nil {
			return full{}, err
		}
		if l, ok := b.(full); ok {
			return l, nil
		}
		f := full{Backend: b}
		f.Lister, _ = b.(metadata.Lister)
		f.Committer, _ = b.(metadata.Committer)
		f.PollingWatcher, _ = b.(metadata.PollingWatcher)
		f.Leaser, _ = b.(metadata.Leaser)
		return f, nil
	})
}

// configOf runs the test binary as a plugin. Under the race detector it takes more memory than a plugin may have.
func configOf(t testing.TB, mode string, config map[string]any) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := DefaultConfig()
	c.Command, c.Env, c.Config.Config = []string{self}, []string{"BACKEND_TEST=" + mode}, config
	c.RunDir, c.MemoryLimit = filepath.Join(scratch, "run"), 0
	return c
}

func open(t testing.TB, c Config) metadata.Backend {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	b, err := New(t.Context(), module.Env{Name: "test", Log: slog.New(slog.NewTextHandler(logs{t}, nil)), Metrics: prometheus.NewRegistry()}, c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type logs struct{ t testing.TB }

func (w logs) Write(p []byte) (int, error) {
	w.t.Log(string(p[:max(0, len(p)-1)]))
	return len(p), nil
}
