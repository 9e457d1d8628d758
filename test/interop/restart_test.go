package interop

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/internal/testenv/rawte"
)

// stores are the services that keep names.
func stores() []metaService { return services[1:] }

// holds waits until the node's entries are in the service and belong to this process of it.
func (n *nodeMemory) holds(meta string) error {
	d, err := rawte.Find(meta, n.Segment, soon)
	if err != nil {
		return err
	}
	if len(d.Buffers) != 1 || d.DataAddr() != n.data || d.Buffers[0].Addr != n.addr {
		return fmt.Errorf("document of %s: %+v, want data port %s and address %#x", n.Segment, d, n.data, n.addr)
	}
	_, err = rawte.GetKey(meta, "mooncake/rpc_meta/"+n.Segment, soon)
	return err
}

// A wheel is started by mistake under the name of a living node. HTTP servers refuse it, and on its
// way out it deletes the node's rpc_meta; over etcd it overwrites both keys and deletes both at its
// end. The node notices and publishes again within a second.
func TestWheelTakesTheNodesName(t *testing.T) {
	for _, m := range stores() {
		t.Run(m.name, func(t *testing.T) {
			meta := m.start(t)
			n := startNode(t, "shared-name", meta, nil)
			thief, a := tryWheel(t, "shared-name", meta, 4096)
			if strings.HasPrefix(m.name, "http") && a.Ready {
				t.Error("the server accepted a second holder of a name that is alive")
			}
			thief.CloseStdin()
			if err := thief.Wait(soon); err != nil {
				t.Fatal(err)
			}
			gone := time.Now()
			testenv.Eventually(t, soon, func() error { return n.holds(meta) })
			// One second by design; the rest is for the machine.
			if took := time.Since(gone); took > 4*time.Second {
				t.Errorf("published again after %v", took)
			}
			w := startWheel(t, "wheel-b", meta, memSize)
			if rc := w.call("probe", args{"target": "shared-name"}).RC; rc != 0 {
				t.Errorf("probe: %d", rc)
			}
			exchangeBatch(t, w, n, 32, 4096)
			n.Alive(t)
			n.stop(meta)
		})
	}
}

// A node is killed without a word and started again under its name. Its entries are replaced on every
// service, also on the Python server, which refuses any second PUT of an rpc_meta key.
func TestNodeRestartsUnderItsName(t *testing.T) {
	for _, m := range stores() {
		t.Run(m.name, func(t *testing.T) {
			meta := m.start(t)
			old := startNode(t, "node-a", meta, nil)
			testenv.Eventually(t, soon, func() error { return old.holds(meta) })
			old.Kill()
			n := startNode(t, "node-a", meta, nil)
			testenv.Eventually(t, soon, func() error { return n.holds(meta) })
			w := startWheel(t, "wheel-b", meta, memSize)
			if rc := w.call("probe", args{"target": "node-a"}).RC; rc != 0 {
				t.Errorf("probe: %d", rc)
			}
			exchangeBatch(t, w, n, 32, 4096)
			n.stop(meta)
		})
	}
}

// Our HTTP server decides a PUT of another rpc_meta by asking the old holder: a living one keeps its
// name and the newcomer gets upstream's 400; a dead one is replaced at the first attempt.
func TestOurServerAsksTheHolder(t *testing.T) {
	meta := startOurMeta(t)
	a := startWheel(t, "wheel-a", meta, 4096)
	key := "mooncake/rpc_meta/wheel-a"
	before, err := rawte.GetKey(meta, key, soon)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPut, meta+"?key="+url.QueryEscape(key), strings.NewReader(`{"ip_or_host_name":"127.0.0.1","rpc_port":1}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(r.Body)
	r.Body.Close()
	holder := fmt.Sprintf("127.0.0.1:%d", a.port())
	if r.StatusCode != http.StatusBadRequest || !strings.HasPrefix(string(body), "Duplicate rpc_meta key not allowed") || !strings.Contains(string(body), holder) {
		t.Errorf("PUT over a living holder: %s %q, want 400, upstream's text and %s", r.Status, body, holder)
	}
	if after, err := rawte.GetKey(meta, key, soon); err != nil || after != before {
		t.Errorf("rpc_meta is now %q, %v; was %q", after, err, before)
	}
	// The same value again is no conflict: the holder re-publishes.
	req, _ = http.NewRequest(http.MethodPut, meta+"?key="+url.QueryEscape(key), strings.NewReader(before))
	if r, err := http.DefaultClient.Do(req); err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("PUT of the same value: %v, %v", r, err)
	}

	second, refused := tryWheel(t, "wheel-a", meta, 4096)
	if refused.Ready {
		t.Error("a second wheel got the name of a living one")
	}
	second.CloseStdin()
	if err := second.Wait(soon); err != nil {
		t.Fatal(err)
	}

	b := startWheel(t, "wheel-b", meta, 4096)
	testenv.Eventually(t, soon, func() error {
		_, err := rawte.GetKey(meta, "mooncake/rpc_meta/wheel-b", soon)
		return err
	})
	b.Kill()
	again := startWheel(t, "wheel-b", meta, 4096) // at the first attempt
	if v, err := rawte.GetKey(meta, "mooncake/rpc_meta/wheel-b", soon); err != nil || !strings.Contains(v, fmt.Sprint(again.port())) {
		t.Errorf("rpc_meta %q, %v; want port %d", v, err, again.port())
	}
	again.Stop(soon)
	if v, err := rawte.GetKey(meta, "mooncake/rpc_meta/wheel-b", soon); !errors.Is(err, rawte.ErrNoKey) {
		t.Errorf("after a clean end: %q, %v", v, err)
	}
}
