package metahttp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata/memory"
)

func rpcMeta(host string, port int) []byte {
	return fmt.Appendf(nil, `{"ip_or_host_name":%q,"rpc_port":%d}`, host, port)
}

// daemon is a listener that answers probes, stays silent, or hangs up.
func daemon(t *testing.T, serve func(net.Conn)) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); serve(c) })
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().(*net.TCPAddr).Port
}

func answers(c net.Conn) {
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if f, err := handshake.ReadFrame(c, 1<<20); err == nil && f.Type == handshake.TypeProbe {
		c.Write(handshake.AppendFrame(nil, f))
	}
}

func silent(c net.Conn) {
	c.SetDeadline(time.Now().Add(5 * time.Second))
	c.Read(make([]byte, 1<<10))
	c.Read(make([]byte, 1)) // until the prober gives up
}

func hangsUp(net.Conn) {}

// S12: the same value; another one from the same listener; from another one while the old lives or not.
func TestRPCMeta(t *testing.T) {
	const target = "/metadata?key=mooncake%2Frpc_meta%2Fnode-A"
	dead := testenv.FreePort(t)
	live, quiet, web := daemon(t, answers), daemon(t, silent), daemon(t, hangsUp)
	hole := testenv.Blackhole(t)
	_, holePort, _ := net.SplitHostPort(hole)
	for name, c := range map[string]struct {
		old, value string
		code       int
		text       string
	}{
		"nothing there":    {"", string(rpcMeta("127.0.0.1", live)), 200, "metadata updated"},
		"no document":      {"", "not json", 200, "metadata updated"},
		"same value":       {string(rpcMeta("127.0.0.1", live)), string(rpcMeta("127.0.0.1", live)), 200, "metadata unchanged"},
		"same but newline": {string(rpcMeta("127.0.0.1", live)) + "\n", string(rpcMeta("127.0.0.1", live)), 200, "metadata unchanged"},
		"same listener": {string(rpcMeta("127.0.0.1", live)),
			fmt.Sprintf(`{"rpc_port": %d, "ip_or_host_name": "127.0.0.1", "more": 1}`, live), 200, "metadata updated"},
		"holder lives": {string(rpcMeta("127.0.0.1", live)), string(rpcMeta("127.0.0.1", 1)), 400,
			fmt.Sprintf("Duplicate rpc_meta key not allowed: held by 127.0.0.1:%d, which answers", live)},
		"holder lives, new value is no document": {string(rpcMeta("127.0.0.1", live)), "x", 400, duplicate + ": held by"},
		"holder is silent": {string(rpcMeta("127.0.0.1", quiet)), string(rpcMeta("127.0.0.1", 1)), 400,
			fmt.Sprintf("Duplicate rpc_meta key not allowed: held by 127.0.0.1:%d, which accepts connections", quiet)},
		"holder is dead":     {string(rpcMeta("127.0.0.1", dead)), string(rpcMeta("127.0.0.1", 1)), 200, "metadata updated"},
		"port is reused":     {string(rpcMeta("127.0.0.1", web)), string(rpcMeta("127.0.0.1", 1)), 200, "metadata updated"},
		"host is gone":       {`{"ip_or_host_name":"127.0.0.1","rpc_port":` + holePort + `}`, string(rpcMeta("127.0.0.1", 1)), 200, "metadata updated"},
		"entry is no object": {"[]", string(rpcMeta("127.0.0.1", 1)), 400, duplicate + ": the entry is no rpc_meta document"},
		"entry is junk":      {"\x00\xff", string(rpcMeta("127.0.0.1", 1)), 400, duplicate},
		"entry without port": {`{"ip_or_host_name":"h"}`, string(rpcMeta("127.0.0.1", 1)), 400, duplicate},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t)
			s := newServer(t, b, new(handshake.Client).Probe, func(c *Config) { c.ProbeTimeout = 300 * time.Millisecond })
			if c.old != "" {
				if err := b.Put(t.Context(), "mooncake/rpc_meta/node-A", []byte(c.old)); err != nil {
					t.Fatal(err)
				}
			}
			begin := time.Now()
			want(t, s, http.MethodPut, target, c.value, c.code, c.text)
			if took := time.Since(begin); took > 2*time.Second {
				t.Errorf("took %v; engines wait 3 s", took)
			}
			now := c.value
			if c.code != 200 || c.text == "metadata unchanged" {
				now = c.old
			}
			want(t, s, http.MethodGet, target, "", 200, now)
			want(t, s, http.MethodDelete, target, "", 200, "metadata deleted")
			want(t, s, http.MethodPut, target, c.value, 200, "metadata updated")
		})
	}
}

func TestJudge(t *testing.T) {
	dial := func(err error) error {
		return fmt.Errorf("handshake: %w", errors.Join(&net.OpError{Op: "dial", Err: err}))
	}
	for name, c := range map[string]struct {
		err    error
		result string
	}{
		"answer":           {nil, "alive"},
		"refused":          {dial(errors.New("connection refused")), "dead"},
		"connect timeout":  {dial(os.ErrDeadlineExceeded), "dead"},
		"reply timeout":    {fmt.Errorf("no reply: %w", context.DeadlineExceeded), "silent"},
		"socket timeout":   {&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, "silent"},
		"no such host":     {&net.DNSError{IsNotFound: true}, "dead"},
		"resolver is away": {&net.DNSError{IsTimeout: true}, "unknown"},
		"hung up":          {errors.New("the connection was closed without a reply"), "dead"},
	} {
		result, why := judge(c.err)
		if result != c.result || (why == "") != (result == "dead") {
			t.Errorf("%s: %s, %q; want %s", name, result, why, c.result)
		}
	}
}

// Two servers on one store, and many engines of one name at once: one entry wins, and everybody else is told
// that it lives.
func TestRacingEngines(t *testing.T) {
	store := memory.NewStore()
	dead := testenv.FreePort(t)
	var probes atomic.Int32
	probe := func(_ context.Context, _ string, port int) error {
		probes.Add(1)
		if port == dead {
			return &net.OpError{Op: "dial", Err: errors.New("refused")}
		}
		return nil
	}
	var servers []*Server
	for range 2 {
		b := store.Open()
		defer b.Close()
		servers = append(servers, newServer(t, b, probe, nil))
	}
	const target = "/metadata?key=rpc_meta/x"
	want(t, servers[0], http.MethodPut, target, string(rpcMeta("h", dead)), 200, "metadata updated")
	var won, refused atomic.Int32
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			code, text := do(servers[i%2], http.MethodPut, target, string(rpcMeta("h", 10000+i)))
			switch {
			case code == 200:
				won.Add(1)
			case code == 400 && strings.HasPrefix(text, duplicate+": held by h:1"):
				refused.Add(1)
			default:
				t.Errorf("%d %q", code, text)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || refused.Load() != 31 {
		t.Fatalf("%d won, %d were refused", won.Load(), refused.Load())
	}
	if n := len(servers[0].names.locks) + len(servers[1].names.locks); n != 0 {
		t.Fatalf("%d locks are left", n)
	}
}

// A client that goes away while the holder is asked must not replace it.
func TestClientGoesAwayDuringTheProbe(t *testing.T) {
	b := newBackend(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := newServer(t, b, func(ctx context.Context, _ string, _ int) error {
		cancel()
		<-ctx.Done()
		return &net.OpError{Op: "dial", Err: ctx.Err()}
	}, nil)
	old := rpcMeta("h", 1)
	if err := b.Put(context.Background(), "rpc_meta/x", old); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.putRPCMeta(ctx, "rpc_meta/x", rpcMeta("h", 2)); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	if e, err := b.Get(context.Background(), "rpc_meta/x"); err != nil || string(e.Value) != string(old) {
		t.Fatalf("%q, %v", e.Value, err)
	}
}

func FuzzParseHolder(f *testing.F) {
	for _, s := range []string{
		`{"ip_or_host_name":"127.0.0.1","rpc_port":15511}`, `{"ip_or_host_name":"[::1]","rpc_port":1.0}`, `{}`, `[]`, ``,
		`{"ip_or_host_name":["x"],"rpc_port":-1}`, `{"rpc_port":70000,"ip_or_host_name":"h"}`, "\x00", strings.Repeat("[", 2000),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		h, err := parseHolder(doc)
		if err == nil && (h.host == "" || h.port < 1 || h.port > 65535) {
			t.Fatalf("parseHolder(%q) = %+v", doc, h)
		}
	})
}
