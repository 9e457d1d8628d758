package faults

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/tcp"
)

// section fills a part's config by a function.
type section func(config any)

func (f section) Decode(into any) error { f(into); return nil }

// impatient are deadlines that let a test see them pass.
const impatient = 2 * time.Second

// newEngine returns our Transfer Engine as a library, running, with short deadlines. meta may be nil.
func newEngine(ctx context.Context, host string, meta metadata.Backend) (*transfer.Engine, error) {
	tr, err := transports.Kind.Build(ctx, "tcp", module.Env{}, section(func(c any) {
		s := c.(*tcp.Config)
		s.ConnectTimeout, s.ProgressTimeout, s.StatusTimeout = impatient, impatient, impatient
	}))
	if err != nil {
		return nil, err
	}
	o := transfer.Options{
		Config: transfer.DefaultConfig(), LocalName: host, AdvertiseHost: host, BindAddress: host, Metadata: meta,
		Transports: []transfer.NamedTransport{{Name: "tcp", Transport: tr}},
	}
	o.TransferTimeout, o.Config.ConnectTimeout = soon, impatient
	e, err := transfer.New(o)
	if err != nil {
		return nil, err
	}
	return e, e.Start(ctx)
}

func startEngine(t *testing.T, meta metadata.Backend) *transfer.Engine {
	t.Helper()
	e, err := newEngine(t.Context(), "127.0.0.1", meta)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e
}

func mapMemory(n int) ([]byte, error) {
	return syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
}

func memory(t *testing.T, n int) []byte {
	t.Helper()
	b, err := mapMemory(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(b) })
	return b
}

// helperVar names the helper that a re-executed test binary runs instead of tests, which is how an
// engine gets into a network namespace.
const helperVar = "FAULTS_HELPER"

var helpers = map[string]func() error{"writer": writer}

func TestMain(m *testing.M) {
	if name := os.Getenv(helperVar); name != "" {
		if err := helpers[name](); err != nil {
			fmt.Fprintln(os.Stderr, name+":", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}
