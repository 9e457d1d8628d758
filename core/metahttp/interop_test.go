package metahttp

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata/memory"
)

// engine starts a wheel engine on the server and returns what initialize said.
func engine(t *testing.T, s *Server, name string) (p *testenv.Process, rc, port int) {
	t.Helper()
	w := testenv.Wheel(t)
	p = testenv.StartCmd(t, w.Command("testdata/engine.py", name, "http://"+s.Addr()+"/metadata"))
	if _, err := fmt.Sscan(p.Line(30*time.Second), &rc, &port); err != nil {
		t.Fatal(err)
	}
	return p, rc, port
}

// Wheel engines that start again under their name: at once after a kill, where upstream's servers refuse them
// the first time; not while the first one lives.
func TestWheelEnginesRestart(t *testing.T) {
	b := memory.NewStore().Open()
	defer b.Close()
	s := newServer(t, b, new(handshake.Client).Probe, func(c *Config) { c.Listen = "127.0.0.1:0" })
	start(t, s)
	const target = "/metadata?key=mooncake%2Frpc_meta%2Fmy%2Fseg%20%C3%A9"

	first, rc, port := engine(t, s, "my/seg é")
	if rc != 0 {
		t.Fatalf("first start: %d", rc)
	}
	held := fmt.Sprintf(`{"ip_or_host_name":"127.0.0.1","rpc_port":%d}`, port)
	want(t, s, http.MethodGet, target, "", 200, held)

	// An engine that lives keeps its name, and the refusal names it.
	want(t, s, http.MethodPut, target, string(rpcMeta("127.0.0.1", 1)), 400, fmt.Sprintf("%s: held by 127.0.0.1:%d, which answers", duplicate, port))
	second, rc, _ := engine(t, s, "my/seg é")
	if rc != -1 {
		t.Errorf("a second engine of the name: %d", rc)
	}
	second.CloseStdin()
	second.Wait(10 * time.Second)
	// Upstream's engine deletes the entry of the living one when it ends after a refusal.
	want(t, s, http.MethodGet, target, "", 404, "metadata not found")
	want(t, s, http.MethodPut, target, held, 200, "metadata updated")

	first.Kill()
	want(t, s, http.MethodGet, target, "", 200, held) // stale
	third, rc, port := engine(t, s, "my/seg é")
	if rc != 0 {
		t.Fatalf("start after a kill: %d", rc)
	}
	want(t, s, http.MethodGet, target, "", 200, fmt.Sprintf(`{"ip_or_host_name":"127.0.0.1","rpc_port":%d}`, port))
	third.Stop(20 * time.Second)
	if all, err := b.List(t.Context(), "mooncake/"); err != nil || len(all) != 0 {
		t.Errorf("left after a clean end: %v, %v", all, err)
	}
}
