package faults

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/internal/testenv/rawte"
)

// metaServer is a metadata service that can go down and come back.
type metaServer struct {
	url         string
	stop, start func()
}

var metaServers = map[string]func(t *testing.T) metaServer{
	"etcd": func(t *testing.T) metaServer {
		s := testenv.Etcd(t)
		return metaServer{"etcd://" + s.Addr, s.Stop, s.Start}
	},
	"redis": func(t *testing.T) metaServer {
		s := testenv.Redis(t)
		return metaServer{"redis://" + s.Addr, s.Stop, s.Start}
	},
	"http": func(t *testing.T) metaServer {
		port := testenv.FreePort(t)
		var m metaServer
		var n *testenv.Node
		m.start = func() { n, m.url = testenv.StartMetadataNode(t, port) }
		m.stop = func() { n.Kill() }
		m.start()
		return m
	},
}

// published waits until a segment can be found as a peer finds it and moves a byte through it.
func published(t *testing.T, m metaServer, segment string, within time.Duration) {
	t.Helper()
	testenv.Eventually(t, within, func() error {
		if _, err := rawte.GetKey(m.url, "mooncake/rpc_meta/"+segment, soon); err != nil {
			return err
		}
		d, err := rawte.Find(m.url, segment, soon)
		if err != nil {
			return err
		}
		c, err := rawte.DialData(d.DataAddr(), soon)
		if err != nil {
			return err
		}
		defer c.Close()
		return c.WriteAt([]byte(segment), d.Buffers[0].Addr)
	})
}

func storageNode(t *testing.T, m metaServer, name string) *testenv.Node {
	t.Helper()
	return testenv.StartNode(t, testenv.Config{"local_hostname": name, "metadata_server": m.url})
}

// S13: the service is restarted, perhaps empty, under running nodes. They publish again by
// themselves, and a node that starts afterwards finds all of them.
func TestMetadataRestarts(t *testing.T) {
	for name, start := range metaServers {
		t.Run(name, func(t *testing.T) {
			m := start(t)
			a, b := storageNode(t, m, "node-a"), storageNode(t, m, "node-b")
			published(t, m, "node-a", soon)
			published(t, m, "node-b", soon)
			m.stop()
			a.Alive(t)
			m.start()
			published(t, m, "node-a", soon)
			published(t, m, "node-b", soon)
			c := storageNode(t, m, "node-c")
			published(t, m, "node-c", soon)
			for _, n := range []*testenv.Node{c, b, a} {
				n.Alive(t)
				n.Stop(soon, syscall.SIGTERM)
				for _, key := range []string{"mooncake/ram/", "mooncake/rpc_meta/"} {
					if v, err := rawte.GetKey(m.url, key+n.Segment, soon); !errors.Is(err, rawte.ErrNoKey) {
						t.Errorf("after SIGTERM: %s%s = %q, %v", key, n.Segment, v, err)
					}
				}
			}
		})
	}
}

// The service is down in mid-run: nodes that were found before go on serving, and stopping does not
// hang on it.
func TestMetadataDownInMidRun(t *testing.T) {
	for name, start := range metaServers {
		t.Run(name, func(t *testing.T) {
			m := start(t)
			n := storageNode(t, m, "node-a")
			published(t, m, "node-a", soon)
			d, err := rawte.Find(m.url, "node-a", soon)
			if err != nil {
				t.Fatal(err)
			}
			m.stop()
			c, err := rawte.DialData(d.DataAddr(), soon)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.WriteAt([]byte("still here"), d.Buffers[0].Addr); err != nil {
				t.Fatal(err)
			}
			n.Alive(t)
			n.Signal(syscall.SIGTERM)
			// It cannot withdraw, and says so; its exit status may tell too.
			if err := n.Wait(soon); err != nil {
				mentions(t, n.Stderr(), "withdraw mooncake/ram/node-a", "metadata service unavailable")
			}
			select {
			case <-n.Exited():
			default:
				t.Fatal("the node hangs on the service that is down")
			}
		})
	}
}

// A node that died without a word vanishes from services that know leases, and takes its place back
// when it is started again, on any service.
func TestNodeKilledAndRestarted(t *testing.T) {
	for name, start := range metaServers {
		t.Run(name, func(t *testing.T) {
			m := start(t)
			n := storageNode(t, m, "node-a")
			published(t, m, "node-a", soon)
			old, err := rawte.Find(m.url, "node-a", soon)
			if err != nil {
				t.Fatal(err)
			}
			n.Kill()
			if name != "http" {
				testenv.Eventually(t, soon, func() error {
					_, err := rawte.GetKey(m.url, "mooncake/ram/node-a", soon)
					if errors.Is(err, rawte.ErrNoKey) {
						return nil
					}
					return fmt.Errorf("still published: %v", err)
				})
			}
			again := storageNode(t, m, "node-a")
			published(t, m, "node-a", soon)
			d, err := rawte.Find(m.url, "node-a", soon)
			if err != nil {
				t.Fatal(err)
			}
			if len(d.Buffers) != 1 {
				t.Errorf("inherited buffers: %+v (before: %+v)", d.Buffers, old.Buffers)
			}
			again.Alive(t)
		})
	}
}

// The service is not up yet when the node starts: the node waits for it and becomes ready by itself.
func TestMetadataUpLater(t *testing.T) {
	for name, start := range metaServers {
		t.Run(name, func(t *testing.T) {
			m := start(t)
			m.stop()
			path := testenv.WriteConfig(t, testenv.Config{"local_hostname": "node-a", "metadata_server": m.url})
			p := testenv.StartCmd(t, testenv.NodeCommand(t, path))
			if line, err := p.NextLine(time.Second); err == nil {
				t.Fatalf("%q although nobody could find this node", line)
			}
			m.start()
			var ready struct{ Ready bool }
			p.JSON(testenv.NodeReady, &ready)
			published(t, m, "node-a", soon)
		})
	}
}

// It never comes up: after the configured time the node gives up and says whom it waited for.
func TestMetadataNeverUp(t *testing.T) {
	for name, start := range metaServers {
		t.Run(name, func(t *testing.T) {
			m := start(t)
			m.stop()
			_, addr, _ := strings.Cut(strings.TrimSuffix(m.url, "/metadata"), "://")
			msg := refuses(t, testenv.Config{
				"local_hostname": "node-a", "metadata_server": m.url,
				"transfer": testenv.Config{"metadata_start_timeout": "1s"},
			})
			mentions(t, msg, addr, name)
		})
	}
}

// S17: a service that refuses the login, or has no such database, stops the start; no password is
// printed.
func TestMetadataRefusesLogin(t *testing.T) {
	r := testenv.Redis(t, "--requirepass", "right-secret")
	for what, url := range map[string]string{
		"wrong password": "redis://:wrong-secret@" + r.Addr,
		"no password":    "redis://" + r.Addr,
		"no such db":     "redis://:right-secret@" + r.Addr + "/99",
	} {
		t.Run(what, func(t *testing.T) {
			msg := refuses(t, testenv.Config{"local_hostname": "node-a", "metadata_server": url})
			mentions(t, msg, r.Addr)
			if strings.Contains(msg, "-secret") {
				t.Errorf("the message shows a password:\n%s", msg)
			}
		})
	}
}
