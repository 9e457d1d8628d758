package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

func wheelMaster(t *testing.T, flags ...string) *testenv.StoreMaster {
	t.Helper()
	return testenv.StartWheelMaster(t, testenv.StoreWheel(t, "0.3.13.post1"), flags...)
}

// connect makes a client of the Store of a config.
func connect(t *testing.T, c map[string]any, master string) *Connection {
	t.Helper()
	path := filepath.Join(t.TempDir(), "client.json")
	write(t, path, c)
	l, err := load(path)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := Connect(t.Context(), l, ConnectOptions{Master: master})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

func TestNodeLendsItsMemory(t *testing.T) {
	for _, mode := range []string{"P2P", "metadata service"} {
		t.Run(mode, func(t *testing.T) {
			m := wheelMaster(t)
			c := base()
			c["master_server_address"], c["global_segment_size"] = m.Addr, "16MB"
			reader := base()
			if mode != "P2P" {
				delete(c, "metadata_server")
				c["metadata"], c["metadata_http"] = map[string]any{"type": "memory"}, map[string]any{"listen": "127.0.0.1:0"}
			}
			n := mustRun(t, c)
			if n.Master != m.Addr || n.Mounted == nil || !*n.Mounted || n.Segment != n.Daemon {
				line, _ := json.Marshal(n.Status)
				t.Fatalf("ready line %s", line)
			}
			if got := get(t, n.Admin+"/readyz"); !strings.Contains(got, `"ready":true`) {
				t.Errorf("/readyz: %s", got)
			}
			if _, body, err := m.Get("/get_all_segments"); err != nil || strings.TrimSpace(body) != n.Segment {
				t.Errorf("segments %q, %v", body, err)
			}
			// In P2P mode in either case: the segment's name is an address.
			cc := connect(t, reader, m.Addr)
			value := bytes.Repeat([]byte("0123456789"), 300_000)
			if err := cc.Put(t.Context(), "k", value); err != nil {
				t.Fatal(err)
			}
			if got, err := cc.Get(t.Context(), "k"); err != nil || !bytes.Equal(got, value) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if mode != "P2P" { // by the metadata service as well
				reader["metadata_server"] = n.MetaURL
				other := connect(t, reader, m.Addr)
				if got, err := other.Get(t.Context(), "k"); err != nil || !bytes.Equal(got, value) {
					t.Errorf("over the metadata service: %d bytes, %v", len(got), err)
				}
				if err := other.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := n.stop(); err != nil {
				t.Fatal(err)
			}
			if _, body, err := m.Get("/get_all_segments"); err != nil || strings.TrimSpace(body) != "" {
				t.Errorf("segments after the stop: %q, %v", body, err)
			}
			if _, err := cc.Get(t.Context(), "k"); !errors.Is(err, client.ErrNotFound) {
				t.Errorf("after the stop: %v", err)
			}
		})
	}
}

// A master that comes later: the node is ready for transfers meanwhile and says what is missing.
func TestNodeWithoutItsMaster(t *testing.T) {
	m := wheelMaster(t)
	m.Kill()
	c := base()
	c["master_server_address"] = m.Addr
	c["store"] = map[string]any{"heartbeat": "100ms"}
	n := mustRun(t, c)
	if n.Mounted == nil || *n.Mounted || n.Master != m.Addr {
		t.Errorf("status %+v", n.Status)
	}
	if got := get(t, n.Admin+"/readyz"); !strings.Contains(got, `"ready":false`) || !strings.Contains(got, "store") {
		t.Errorf("/readyz: %s", got)
	}
	if log := n.log.String(); !strings.Contains(log, "master_server_address") || !strings.Contains(log, m.Addr) {
		t.Errorf("the log does not say who is missing:\n%s", log)
	}
	m.Start()
	testenv.Eventually(t, time.Minute, func() error {
		if got := get(t, n.Admin+"/readyz"); !strings.Contains(got, `"ready":true`) {
			return errors.New(got)
		}
		return nil
	})
	m.Kill()
	begin := time.Now()
	if err := n.stop(); err != nil {
		t.Errorf("stop without the master: %v", err)
	}
	if d := time.Since(begin); d > drainTimeout {
		t.Errorf("stop without the master took %v", d)
	}
}

// Which elections a node can follow.
func TestElections(t *testing.T) {
	for address, refused := range map[string]string{
		"etcd://127.0.0.1:1":  "",
		"redis://127.0.0.1:1": "elections in redis cannot be followed",
		"k8s://ns/lease":      "elections in k8s cannot be followed",
	} {
		c := base()
		c["master_server_address"] = address
		path := filepath.Join(t.TempDir(), "c.json")
		write(t, path, c)
		l, err := load(path)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := Connect(t.Context(), l, ConnectOptions{})
		if refused != "" {
			if err == nil || !strings.Contains(err.Error(), refused) {
				t.Errorf("%s: Connect: %v", address, err)
			}
			if n := mustRun(t, c); n.Master != "" || n.Mounted != nil || !strings.Contains(n.log.String(), refused) {
				t.Errorf("%s: status %+v, log\n%s", address, n.Status, n.log.String())
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		// Nobody serves etcd there: the call says so, and where.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := conn.Exists(ctx, "k"); !errors.Is(err, client.ErrUnavailable) || !strings.Contains(err.Error(), "127.0.0.1:1") {
			t.Errorf("%s: %v", address, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The REST paths are there for callers on this host, for nobody, or for everybody.
func TestRESTAccess(t *testing.T) {
	m := wheelMaster(t)
	for access, want := range map[string]int{"": 201, "local": 201, "open": 201, "off": 404} {
		c := base()
		c["master_server_address"] = m.Addr
		c["local_buffer_size"] = "8MB"
		if access != "" {
			c["store"] = map[string]any{"rest": map[string]any{"access": access}}
		}
		n := mustRun(t, c)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, n.Admin+"/api/v1/objects/k-"+access, strings.NewReader("value"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%q: %s, want %d", access, r.Status, want)
		}
		if want == 201 {
			if got := get(t, n.Admin+"/api/v1/objects/k-"+access); got != "value" {
				t.Errorf("%q: %s", access, got)
			}
			// A page of another site in a browser on this host.
			req.Header.Set("Sec-Fetch-Site", "cross-site")
			req.Body, _ = req.GetBody()
			r, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
			if r.StatusCode != http.StatusForbidden {
				t.Errorf("%q, from a foreign page: %s", access, r.Status)
			}
		}
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
