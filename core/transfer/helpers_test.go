package transfer_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tcpSection adjusts the defaults of a tcp transport.
type tcpSection func(*tcp.Config)

func (f tcpSection) Decode(into any) error {
	if f != nil {
		f(into.(*tcp.Config))
	}
	return nil
}

func newTCP(t testing.TB, f tcpSection) transports.Transport {
	t.Helper()
	tr, err := transports.Kind.Build(context.Background(), "tcp", module.Env{}, f)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// options are those of an engine on loopback with a tcp transport.
func options(t testing.TB, change ...func(*transfer.Options)) transfer.Options {
	t.Helper()
	o := transfer.Options{
		Config:    transfer.DefaultConfig(),
		LocalName: "127.0.0.1",
		Log:       testLog(t),
		Metrics:   prometheus.NewRegistry(),
	}
	o.TransferTimeout = 20 * time.Second
	for _, f := range change {
		f(&o)
	}
	if o.Transports == nil {
		o.Transports = []transfer.NamedTransport{{Name: "tcp", Transport: newTCP(t, nil)}}
	}
	return o
}

func newEngine(t testing.TB, change ...func(*transfer.Options)) *transfer.Engine {
	t.Helper()
	e, err := transfer.New(options(t, change...))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// startEngine returns a running engine that the test's cleanup closes.
func startEngine(t testing.TB, change ...func(*transfer.Options)) *transfer.Engine {
	t.Helper()
	e := newEngine(t, change...)
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

func closeEngine(t testing.TB, e *transfer.Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Errorf("close %s: %v", e.Name(), err)
	}
}

// mapped maps n bytes outside the Go heap for the time of the test.
func mapped(t testing.TB, n int) []byte {
	t.Helper()
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(b) })
	return b
}

func wrap(t testing.TB, b []byte) *segment.Region {
	t.Helper()
	r, err := segment.Wrap(b, "cpu:0", transports.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// register maps and registers n bytes.
func register(t testing.TB, e *transfer.Engine, n int) (mem []byte, addr uint64) {
	t.Helper()
	mem = mapped(t, n)
	r := wrap(t, mem)
	if err := e.Register(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return mem, r.Addr()
}

func open(t testing.TB, e *transfer.Engine, name string) *transfer.Segment {
	t.Helper()
	s, err := e.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*131 + (i>>8)*17 + seed)
	}
	return b
}

// roundTrip writes and reads back n bytes at addr.
func roundTrip(t testing.TB, e *transfer.Engine, s *transfer.Segment, addr uint64, n int) {
	t.Helper()
	want := pattern(n, n)
	if err := e.Write(t.Context(), s, want, addr); err != nil {
		t.Fatalf("write %d bytes: %v", n, err)
	}
	got := make([]byte, n)
	if err := e.Read(t.Context(), s, got, addr); err != nil {
		t.Fatalf("read %d bytes: %v", n, err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%d bytes differ", n)
	}
}

// logLines collects what an engine logs.
type logLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// testLog shows an engine's log when the test fails.
func testLog(t testing.TB) *slog.Logger {
	l := &logLines{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(l.String())
		}
	})
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// testDeadline is generous: a quick machine does not wait for it.
const testDeadline = 20 * time.Second

func unmap(t *testing.T, b []byte) {
	t.Helper()
	if err := syscall.Munmap(b); err != nil {
		t.Fatal(err)
	}
}

func newLog(l *logLines) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// decodeURL sets the field URL of a backend's config, and a short Timeout, which bounds the parts of the tests
// that run without a service.
func decodeURL(into any, url string) error {
	f := reflect.ValueOf(into).Elem().FieldByName("URL")
	if !f.IsValid() {
		return fmt.Errorf("%T has no URL", into)
	}
	f.SetString(url)
	if f := reflect.ValueOf(into).Elem().FieldByName("Timeout"); f.IsValid() {
		f.SetInt(int64(2 * time.Second))
	}
	return nil
}
