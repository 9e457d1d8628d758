package transfer_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/metahttp"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
	_ "github.com/mooncake-agent/mooncake/metadata/etcd"
	_ "github.com/mooncake-agent/mooncake/metadata/http"
	"github.com/mooncake-agent/mooncake/metadata/memory"
	_ "github.com/mooncake-agent/mooncake/metadata/redis"
)

// section is a config section with a url only.
type urlOnly string

func (u urlOnly) Decode(into any) error {
	return decodeURL(into, string(u))
}

// service is a real metadata service of a test.
type service struct {
	url     string
	stop    func()
	start   func() // again, on the same address; empty if it keeps nothing
	durable bool
}

func services(t *testing.T) map[string]func(*testing.T) service {
	of := func(scheme string, start func(testing.TB, ...string) *testenv.Server, durable bool) func(*testing.T) service {
		return func(t *testing.T) service {
			s := start(t)
			return service{scheme + "://" + s.Addr, s.Stop, s.Start, durable}
		}
	}
	wheel := func(start func(testing.TB) *testenv.Server) func(*testing.T) service {
		return func(t *testing.T) service {
			s := start(t)
			return service{"http://" + s.Addr + "/metadata", s.Stop, s.Start, false}
		}
	}
	return map[string]func(*testing.T) service{
		"etcd":               of("etcd", testenv.Etcd, true),
		"redis":              of("redis", testenv.Redis, false),
		"http, ours":         ourHTTP,
		"http, wheel Python": wheel(testenv.PythonMetadata),
		"http, wheel C++":    wheel(testenv.MasterMetadata),
	}
}

// ourHTTP is our own HTTP metadata server on a memory store.
func ourHTTP(t *testing.T) service {
	t.Helper()
	store := memory.NewStore()
	addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	var srv *http.Server
	var backend *memory.Backend
	var served chan struct{}
	stop := func() {
		if srv != nil {
			srv.Close()
			<-served
			backend.Close()
			srv = nil
		}
	}
	start := func() {
		store.Reset()
		backend = store.Open()
		h, err := metahttp.New(metahttp.DefaultConfig(), backend, handshake.Probe, module.Env{})
		if err != nil {
			t.Fatal(err)
		}
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		srv = &http.Server{Handler: h}
		served = make(chan struct{})
		go func(s *http.Server, done chan struct{}) { defer close(done); s.Serve(ln) }(srv, served)
	}
	start()
	t.Cleanup(stop)
	return service{"http://" + addr + "/metadata", stop, start, false}
}

func backendFor(t *testing.T, url string) metadata.Backend {
	t.Helper()
	typ, u, err := metadata.Server(url)
	if err != nil {
		t.Fatal(err)
	}
	b, err := metadata.Kind.Build(t.Context(), typ, module.Env{}, urlOnly(u))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// The same scenario on every service: publish, read, take a name twice, lose the entries, lose the service.
func TestOnRealServices(t *testing.T) {
	for name, start := range services(t) {
		t.Run(name, func(t *testing.T) {
			svc := start(t)
			raw := func(o *transfer.Options) { o.MetadataRaw = strings.HasPrefix(svc.url, "http") }
			look := backendFor(t, svc.url)
			a := startEngine(t, named("node-B", backendFor(t, svc.url)), raw)
			e := startEngine(t, named("node-A", backendFor(t, svc.url)), raw)
			_, addr := register(t, e, 1<<20)
			s := open(t, a, "node-A")
			roundTrip(t, a, s, addr, 1<<20)
			if err := a.Notify(t.Context(), "node-A", transfer.Message{Text: "x"}); err != nil {
				t.Error(err)
			}

			twin := newEngine(t, named("node-A", backendFor(t, svc.url)), raw)
			if err := twin.Start(t.Context()); !errors.Is(err, transfer.ErrNameTaken) {
				t.Errorf("a second engine of the name: %v", err)
			}
			publishedBy(t, look, e, testDeadline)

			for _, key := range []string{rpcA, ramA} {
				if err := look.Delete(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			publishedBy(t, look, e, testDeadline)
			if d := time.Since(began); d > 2*time.Second { // one on a machine that is not busy
				t.Errorf("published again after %v", d)
			}

			svc.stop()
			roundTrip(t, a, s, addr, 4096)
			if err := e.Register(t.Context(), pieces(t, 1, 4096)[0]); !errors.Is(err, metadata.ErrUnavailable) {
				t.Errorf("register while the service is down: %v", err)
			}
			svc.start()
			began = time.Now()
			publishedBy(t, look, e, testDeadline)
			publishedBy(t, look, a, testDeadline)
			t.Logf("published again %v after the service was back", time.Since(began))
			if err := e.Register(t.Context(), pieces(t, 1, 4096)[0]); err != nil {
				t.Errorf("register after that: %v", err)
			}
			late := startEngine(t, named("node-C", backendFor(t, svc.url)), raw)
			roundTrip(t, late, open(t, late, "node-A"), addr, 4096)

			closeEngine(t, e)
			for _, key := range []string{rpcA, ramA} {
				if _, err := look.Get(t.Context(), key); !errors.Is(err, metadata.ErrNotFound) {
					t.Errorf("%s after close: %v", key, err)
				}
			}
			e = startEngine(t, named("node-A", backendFor(t, svc.url)), raw)
			_, addr = register(t, e, 4096)
			roundTrip(t, a, s, addr, 4096)
			for _, e := range []*transfer.Engine{a, e, late} { // before the service goes
				closeEngine(t, e)
			}
		})
	}
}

func Test20000RegionsOnRealServices(t *testing.T) {
	for name, start := range services(t) {
		t.Run(name, func(t *testing.T) {
			svc := start(t)
			raw := func(o *transfer.Options) { o.MetadataRaw = strings.HasPrefix(svc.url, "http") }
			e := startEngine(t, named("node-A", backendFor(t, svc.url)), raw)
			rs := pieces(t, 20000, 4096)
			began := time.Now()
			err := e.RegisterBatch(t.Context(), rs)
			if name == "http, wheel Python" { // its limit is 1 MiB
				if !errors.Is(err, metadata.ErrTooLarge) {
					t.Fatalf("got %v", err)
				}
				if n := len(e.Descriptor().Buffers); n != 0 {
					t.Fatalf("%d regions are left", n)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("registered in %v", time.Since(began))
			a := startEngine(t, named("node-B", backendFor(t, svc.url)), raw)
			roundTrip(t, a, open(t, a, "node-A"), rs[19999].Addr(), 4096)
		})
	}
}
