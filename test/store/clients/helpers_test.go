package clients

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha3"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/transports"
	_ "github.com/mooncake-agent/mooncake/transports/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Deadlines for a busy machine; a quick one does not wait for them.
const (
	soon   = 2 * time.Minute
	mib    = 1 << 20
	newest = "0.3.13.post1"
)

// value is what the driver makes of a seed and a size.
func value(seed string, size int) []byte {
	b := make([]byte, size)
	h := sha3.NewSHAKE128()
	h.Write([]byte(seed))
	h.Read(b)
	return b
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// masters are the two judges.
var masters = map[string]func(t testing.TB, flags ...string) *testenv.StoreMaster{
	"our master": func(t testing.TB, flags ...string) *testenv.StoreMaster { return testenv.StartMaster(t, flags...) },
	"upstream master": func(t testing.TB, flags ...string) *testenv.StoreMaster {
		return testenv.StartWheelMaster(t, testenv.StoreWheel(t, newest), flags...)
	},
}

// eachMaster runs a test with both.
func eachMaster(t *testing.T, f func(t *testing.T, start func(flags ...string) *testenv.StoreMaster)) {
	for name, start := range masters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, func(flags ...string) *testenv.StoreMaster { return start(t, flags...) })
		})
	}
}

// storeNode runs "mooncake node" with memory for a master.
func storeNode(t testing.TB, master, size string) *testenv.Node {
	t.Helper()
	n := testenv.StartNode(t, testenv.Config{"master_server_address": master, "global_segment_size": size})
	waitSegment(t, n.Admin)
	return n
}

// waitSegment waits until a node says that it is ready, its memory mounted.
func waitSegment(t testing.TB, admin string) {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		body, err := get(admin + "/readyz")
		if err == nil && !strings.Contains(body, `"ready":true`) {
			err = fmt.Errorf("%s", body)
		}
		return err
	})
}

// goClient makes a Go client in this process.
func goClient(t testing.TB, master string, change ...func(*client.Options)) *client.Client {
	t.Helper()
	tcp, err := transports.Kind.Build(t.Context(), "tcp", module.Env{}, module.NoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	e, err := transfer.New(transfer.Options{Config: transfer.DefaultConfig(), LocalName: "127.0.0.1", Log: log,
		Transports: []transfer.NamedTransport{{Name: "tcp", Transport: tcp}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := client.Options{Config: client.DefaultConfig(), Master: []string{master}, Engine: e, Log: log}
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
		_ = c.Close(ctx)
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return c
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	t.Cleanup(cancel)
	return ctx
}

// put stores the value of a key.
func put(t testing.TB, c *client.Client, key string, size int, opts ...client.PutOption) {
	t.Helper()
	if err := c.Put(deadline(t), key, value(key, size), opts...); err != nil {
		t.Fatalf("Go client: %v", err)
	}
}

// check reads a key and compares it with its value.
func check(t testing.TB, c *client.Client, key string, size int) {
	t.Helper()
	if err := reads(t, c, key, size); err != nil {
		t.Fatalf("Go client: %v", err)
	}
}

func reads(t testing.TB, c *client.Client, key string, size int) error {
	got, err := c.Get(deadline(t), key)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, value(key, size)) {
		return fmt.Errorf("%s: %d bytes of wrong content, want %d", key, len(got), size)
	}
	return nil
}

// wheel is a client of a wheel in a process of its own, driven by the script of the Store tests.
type wheel struct {
	*testenv.Process
	t    testing.TB
	env  *testenv.StoreWheelEnv
	host string // name of its segment
}

// startWheel runs a client of a release that lends segment MiB and has a buffer of buffer MiB.
func startWheel(t testing.TB, version, master string, segment, buffer int, env ...string) *wheel {
	t.Helper()
	w := testenv.StoreWheel(t, version)
	driver, err := filepath.Abs("../testdata/client.py")
	if err != nil {
		t.Fatal(err)
	}
	cmd := w.Command("-u", driver)
	cmd.Env = append(cmd.Env, env...)
	x := &wheel{Process: testenv.StartCmd(t, cmd), t: t, env: w}
	var ready struct{ Ready bool }
	x.JSON(soon, &ready)
	a := x.call("setup", args{"host": fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), "metadata": "P2PHANDSHAKE",
		"segment": segment * mib, "buffer": buffer * mib, "master": master, "more": []any{}})
	if a.RC != 0 {
		t.Fatalf("%s: setup: %d\n%s", version, a.RC, x.Stderr())
	}
	x.host = a.Host
	return x
}

type args map[string]any

type answer struct {
	RC     int
	Codes  []int
	Bytes  int
	SHA    string
	Values []struct {
		Bytes int
		SHA   string
	}
	Host, Missing, Error string
}

func (w *wheel) call(do string, a args) answer {
	w.t.Helper()
	m := args{"do": do}
	for k, v := range a {
		m[k] = v
	}
	line, err := json.Marshal(m)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Send("%s", line)
	var r answer
	w.JSON(soon, &r)
	if r.Error != "" || r.Missing != "" {
		w.t.Fatalf("%s: %s: %s%s", w.env.Version, do, r.Error, r.Missing)
	}
	return r
}

// put stores the value of a key.
func (w *wheel) put(key string, size int, config ...args) {
	w.t.Helper()
	a := args{"key": key, "seed": key, "size": size}
	if len(config) > 0 {
		a["config"] = config[0]
	}
	if r := w.call("put", a); r.RC != 0 {
		w.t.Fatalf("%s: put %s: %d\n%s", w.env.Version, key, r.RC, w.Stderr())
	}
}

// check reads a key and compares it with its value.
func (w *wheel) check(key string, size int) {
	w.t.Helper()
	if err := w.reads(key, size); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wheel) reads(key string, size int) error {
	w.t.Helper()
	r := w.call("get", args{"key": key})
	if r.Bytes != size || size > 0 && r.SHA != sum(value(key, size)) {
		return fmt.Errorf("%s: get %s: %d bytes, want %d, or wrong content", w.env.Version, key, r.Bytes, size)
	}
	return nil
}

// acknowledged is the first release whose puts over TCP end when the bytes have arrived.
const acknowledged = "0.3.12"

// eventually repeats a check where the writer's puts end before its bytes have arrived.
func eventually(t testing.TB, writer *wheel, f func() error) {
	t.Helper()
	err := f()
	if err != nil && !writer.env.AtLeast(acknowledged) {
		err = testenv.Poll(10*time.Second, f)
	}
	if err != nil {
		t.Fatal(err)
	}
}
