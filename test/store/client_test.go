package store

import (
	"crypto/sha256"
	"crypto/sha3"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// Codes that the clients hand through.
const (
	noSpace     = -200
	badArgument = -600
	notReady    = -703
	notFound    = -704
	leased      = -706
	transfer    = -800
	rpcFailed   = -900
)

// value is the content that a driver makes of seed and size, as the hex SHA-256 of it.
func value(seed string, size int) string {
	b := make([]byte, size)
	h := sha3.NewSHAKE128()
	h.Write([]byte(seed))
	h.Read(b)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// client is a client of a wheel in a process of its own; see testdata/client.py. What is put under a key
// is the value of that key as seed, unless a seed is given.
type client struct {
	*testenv.Process
	t       testing.TB
	wheel   *testenv.StoreWheelEnv
	host    string // its name, host:port, which is also that of its segment
	settle  bool   // what it reads may have been written without acknowledgement; see settled
	methods map[string]bool
	config  map[string]bool
}

// options of a client.
type options struct {
	segment int      // MiB lent to the store
	buffer  int      // MiB for its own transfers, default 16
	host    string   // default 127.0.0.1 with a free port: one attempt to set up
	env     []string // KEY=value
	meta    string   // metadata service, default P2PHANDSHAKE
	more    []any    // trailing arguments of setup
}

const mib = 1 << 20

// startDriver runs a driver whose client is not set up yet.
func startDriver(t testing.TB, version string, env ...string) *client {
	t.Helper()
	w := testenv.StoreWheel(t, version)
	driver, err := filepath.Abs("testdata/client.py")
	if err != nil {
		t.Fatal(err)
	}
	cmd := w.Command("-u", driver)
	cmd.Env = append(cmd.Env, env...)
	c := &client{Process: testenv.StartCmd(t, cmd), t: t, wheel: w, methods: map[string]bool{}, config: map[string]bool{}}
	c.settle = !w.AtLeast(acknowledged)
	var ready struct {
		Ready           bool
		Methods, Config []string
	}
	c.JSON(soon, &ready)
	for _, m := range ready.Methods {
		c.methods[m] = true
	}
	for _, f := range ready.Config {
		c.config[f] = true
	}
	return c
}

// startClient runs a client that is set up.
func startClient(t testing.TB, version, master string, o options) *client {
	t.Helper()
	c := startDriver(t, version, o.env...)
	if a := c.setup(master, o); a.RC != 0 {
		t.Fatalf("%s: setup: %d\n%s", version, a.RC, c.Stderr())
	}
	return c
}

func (c *client) setup(master string, o options) answer {
	c.t.Helper()
	if o.host == "" {
		o.host = fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(c.t))
	}
	if o.buffer == 0 {
		o.buffer = 16
	}
	if o.meta == "" {
		o.meta = "P2PHANDSHAKE"
	}
	a := c.call("setup", args{"host": o.host, "metadata": o.meta, "segment": o.segment * mib, "buffer": o.buffer * mib, "master": master, "more": append([]any{}, o.more...)})
	c.host = a.Host
	return a
}

// args are the arguments of a command.
type args map[string]any

// answer holds the fields of all answers.
type answer struct {
	RC       int
	Codes    []int
	Bytes    int
	SHA      string
	Values   []seen
	Replicas []struct {
		Endpoint string
		Bytes    int
	}
	Host          string
	Seconds       float64
	Ops           int
	Failed, Wrong int
	Errors        []string
	Longest       float64
	Missing       string // the release has no such method or setting
	Error         string // a traceback
}

// seen is a value that a client read.
type seen struct {
	Bytes int
	SHA   string
}

func (c *client) send(do string, a args) {
	c.t.Helper()
	m := args{"do": do}
	for k, v := range a {
		m[k] = v
	}
	line, err := json.Marshal(m)
	if err != nil {
		c.t.Fatal(err)
	}
	c.Send("%s", line)
}

func (c *client) receive(do string, within time.Duration) answer {
	c.t.Helper()
	var a answer
	c.JSON(within, &a)
	if a.Error != "" {
		c.t.Fatalf("%s: %s: %s", c.wheel.Version, do, a.Error)
	}
	return a
}

// call runs one command of a method that the release has.
func (c *client) call(do string, a args) answer {
	c.t.Helper()
	c.send(do, a)
	r := c.receive(do, soon)
	if r.Missing != "" {
		c.t.Fatalf("%s: %s: %s", c.wheel.Version, do, r.Missing)
	}
	return r
}

// want runs a command whose answer is a number.
func (c *client) want(rc int, do string, a args) {
	c.t.Helper()
	if r := c.call(do, a); r.RC != rc {
		c.t.Fatalf("%s: %s %v: %d, want %d\n%s", c.wheel.Version, do, a, r.RC, rc, lastLines(c.Stderr(), 5))
	}
}

// wantAll runs a command whose answer is a number for each key.
func (c *client) wantAll(codes []int, do string, a args) {
	c.t.Helper()
	if r := c.call(do, a); !slices.Equal(r.Codes, codes) {
		c.t.Fatalf("%s: %s %v: %v, want %v\n%s", c.wheel.Version, do, a, r.Codes, codes, lastLines(c.Stderr(), 5))
	}
}

// put stores the value of key.
func (c *client) put(key string, size int, config ...args) {
	c.t.Helper()
	c.want(0, "put", with(args{"key": key, "seed": key, "size": size}, config))
}

func with(a args, config []args) args {
	if len(config) > 0 {
		a["config"] = config[0]
	}
	return a
}

// acknowledged is the first release whose data transfer over TCP knows when the bytes have arrived. Puts of
// earlier ones are over when the bytes are in a socket, so that a reader who is quick sees what was there before.
const acknowledged = "0.3.12"

// settled repeats a read for a while if what it reads may still be on its way.
func (c *client) settled(read func() error) error {
	if err := read(); err == nil || !c.settle {
		return err
	}
	return testenv.Poll(5*time.Second, read)
}

// check reads a key and compares it with the value of seed; size 0 means that nothing is found.
func (c *client) check(key, seed string, size int) {
	c.t.Helper()
	if err := c.settled(func() error { return c.reads(key, seed, size) }); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) reads(key, seed string, size int) error {
	c.t.Helper()
	a := c.call("get", args{"key": key})
	return c.same("get "+key, seen{a.Bytes, a.SHA}, seed, size)
}

func (c *client) same(what string, got seen, seed string, size int) error {
	want := ""
	if size > 0 {
		want = value(seed, size)
	}
	switch {
	case got.Bytes != size:
		return fmt.Errorf("%s: %s: %d bytes, want %d\n%s", c.wheel.Version, what, got.Bytes, size, lastLines(c.Stderr(), 5))
	case got.SHA != want:
		return fmt.Errorf("%s: %s: %d bytes of wrong content", c.wheel.Version, what, got.Bytes)
	}
	return nil
}

// checkAll reads keys in one call.
func (c *client) checkAll(keys []string, sizes []int) {
	c.t.Helper()
	if err := c.settled(func() error { return c.readsAll(keys, sizes) }); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) readsAll(keys []string, sizes []int) error {
	c.t.Helper()
	a := c.call("get_batch", args{"keys": keys})
	if len(a.Values) != len(keys) {
		return fmt.Errorf("%s: get_batch: %d values for %d keys", c.wheel.Version, len(a.Values), len(keys))
	}
	for i, k := range keys {
		if err := c.same("get_batch "+k, a.Values[i], k, sizes[i]); err != nil {
			return err
		}
	}
	return nil
}

// lastLines is the end of a log.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
