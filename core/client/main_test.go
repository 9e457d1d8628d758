package client_test

import (
	"bytes"
	"context"
	"crypto/sha3"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/transports"
	_ "github.com/mooncake-agent/mooncake/transports/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	mib  = 1 << 20
	soon = 60 * time.Second
)

// value is the content that belongs to a key.
func value(key string, size int) []byte {
	b := make([]byte, size)
	h := sha3.NewSHAKE128()
	h.Write([]byte(key))
	h.Read(b)
	return b
}

// logBuffer collects what a test's parts log, to be shown when it fails.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func testLog(t testing.TB) (*slog.Logger, *logBuffer) {
	buf := &logBuffer{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", buf)
		}
	})
	return slog.New(slog.NewTextHandler(buf, &slog.HandlerOptions{Level: slog.LevelDebug})), buf
}

// newEngine starts an engine on loopback that is closed at the end of the test.
func newEngine(t testing.TB, change ...func(*transfer.Options)) *transfer.Engine {
	t.Helper()
	tcp, err := transports.Kind.Build(t.Context(), "tcp", module.Env{}, module.NoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	log, _ := testLog(t)
	o := transfer.Options{Config: transfer.DefaultConfig(), LocalName: "127.0.0.1", Log: log,
		Transports: []transfer.NamedTransport{{Name: "tcp", Transport: tcp}}}
	for _, f := range change {
		f(&o)
	}
	e, err := transfer.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Errorf("close of an engine: %v", err)
		}
	})
	return e
}

// newClient makes a client with an engine of its own.
func newClient(t testing.TB, master string, change ...func(*client.Options)) *client.Client {
	t.Helper()
	log, _ := testLog(t)
	o := client.Options{Config: client.DefaultConfig(), Master: []string{master}, Engine: newEngine(t), Log: log}
	for _, f := range change {
		f(&o)
	}
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		_ = c.Close(ctx) // what it says is the test's own business
	})
	return c
}

// node is a client that lends memory.
type node struct {
	*client.Client
	*client.Mount
	arena  *segment.Arena
	region *segment.Region
	fence  *client.ArenaFence
}

// newNode starts a client that lends size bytes and waits until the master has accepted them.
func newNode(t testing.TB, master string, size uint64, change ...func(*client.Options)) *node {
	t.Helper()
	n := prepareNode(t, master, size, change...)
	n.lend(t, "")
	return n
}

// prepareNode is newNode that has not lent its memory yet.
func prepareNode(t testing.TB, master string, size uint64, change ...func(*client.Options)) *node {
	t.Helper()
	arena, err := segment.New(t.Context(), "test", size, segment.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	region, err := arena.Region(0, size, transports.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{arena: arena}
	t.Cleanup(func() { // after the engine's
		n.fence.Close()
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if err := arena.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	n.Client = newClient(t, master, change...)
	e := n.Client.Engine()
	n.fence = client.NewArenaFence(e, arena, region)
	if err := e.Register(t.Context(), region); err != nil {
		t.Fatal(err)
	}
	n.region = region
	return n
}

// lend mounts the node's memory; endpoint "" is that of its engine.
func (n *node) lend(t testing.TB, endpoint string) {
	t.Helper()
	var err error
	n.Mount, err = n.Client.Mount(client.SegmentSpec{Region: n.region, Fence: n.fence.Fence, Endpoint: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := n.Mount.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}

// name of the node's segment.
func (n *node) name() string { return n.Mount.Segment().Name }

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	t.Cleanup(cancel)
	return ctx
}

// startMaster runs the master under test: upstream's own, or with MOONCAKE_STORE_MASTER=ours that of this binary.
func startMaster(t testing.TB, flags ...string) *testenv.StoreMaster {
	t.Helper()
	switch v := os.Getenv("MOONCAKE_STORE_MASTER"); v {
	case "", "wheel":
		return testenv.StartWheelMaster(t, testenv.StoreWheel(t, "0.3.13.post1"), flags...)
	case "ours":
		return testenv.StartMaster(t, flags...)
	default:
		t.Fatalf("MOONCAKE_STORE_MASTER=%s: write ours or wheel", v)
		return nil
	}
}

// check reads a key and compares it with its value.
func check(t testing.TB, c *client.Client, key string, size int) {
	t.Helper()
	got, err := c.Get(deadline(t), key)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, value(key, size)) {
		t.Fatalf("%s: %d bytes of wrong content", key, len(got))
	}
}

func key(i int) string { return fmt.Sprintf("key-%d", i) }

func itoa(n int) string { return strconv.Itoa(n) }

func atoi(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
