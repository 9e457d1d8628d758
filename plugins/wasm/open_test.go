package wasm

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/tetratelabs/wazero"

	"github.com/mooncake-agent/mooncake/eviction"
)

func config(tb testing.TB, guest string) Config {
	c := DefaultConfig()
	c.Module = filepath.Join("testdata", guest+".wasm")
	c.CacheDir = cacheFor(tb)
	return c
}

// cacheFor is one folder for all tests of a run, so that each guest is compiled once.
func cacheFor(tb testing.TB) string {
	tb.Helper()
	if sharedCache == "" {
		tb.Fatal("TestMain made no cache folder")
	}
	return sharedCache
}

func open(tb testing.TB, c Config, log *slog.Logger) *Factory {
	tb.Helper()
	f, err := Open(context.Background(), c, log)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := f.Close(); err != nil {
			tb.Error(err)
		}
	})
	return f
}

func guest(tb testing.TB, name string) *Factory {
	tb.Helper()
	return open(tb, config(tb, name), nil)
}

// plain is a guest without the meter, to compare with.
func plain(tb testing.TB, name string) *Factory {
	tb.Helper()
	c := config(tb, name)
	f := &Factory{cfg: c, log: slog.New(slog.DiscardHandler)}
	module, _, err := f.read()
	if err != nil {
		tb.Fatal(err)
	}
	ctx := context.Background()
	f.rt = wazero.NewRuntimeWithConfig(ctx, compilerConfig())
	tb.Cleanup(func() { f.rt.Close(ctx) })
	if f.compiled, err = f.rt.CompileModule(ctx, module); err != nil {
		tb.Fatal(err)
	}
	if err := f.inspect(f.compiled); err != nil {
		tb.Fatal(err)
	}
	if err := offer(ctx, f.rt, f.compiled); err != nil {
		tb.Fatal(err)
	}
	return f
}

func instanceOf(tb testing.TB, f eviction.Factory, s eviction.Spec) eviction.Policy {
	tb.Helper()
	p, err := f.New(s)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}
