package testenv

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Node is a running "mooncake node".
type Node struct {
	*Process
	// Segment is the name that peers open, Admin the base URL of the admin server.
	Segment string
	Admin   string
	// Config is the path of its config file.
	Config string
}

// Config is a mooncake.json as a value.
type Config map[string]any

// NodeReady is how long a node may take to become ready on a busy machine.
const NodeReady = 60 * time.Second

// WriteConfig writes a config file for one test and returns its path. It is the given one over
// defaults that keep a node on loopback: P2PHANDSHAKE, tcp, a segment of 16 MB and a free admin port.
func WriteConfig(t testing.TB, c Config) string {
	t.Helper()
	m := Config{
		"local_hostname": "127.0.0.1", "bind_address": "127.0.0.1", "advertise_host": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp",
		"global_segment_size": "16MB", "local_buffer_size": 0,
		"admin": Config{"listen": fmt.Sprintf("127.0.0.1:%d", FreePort(t))},
	}
	for k, v := range c {
		if v == nil {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "mooncake.json")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// NodeCommand is "mooncake node --config path" with a clean environment plus env.
func NodeCommand(t testing.TB, config string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(Mooncake(t), "node", "--config", config)
	cmd.Env = append(CleanEnv(), "GORACE=halt_on_error=1") // for a binary of MOONCAKE_TEST_RACE
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// StartNode runs a node with a config (see [WriteConfig]) and waits until it is ready. It is stopped
// by SIGTERM: node.Stop(within, syscall.SIGTERM).
func StartNode(t testing.TB, c Config, env ...string) *Node {
	t.Helper()
	path := WriteConfig(t, c)
	return StartNodeCmd(t, NodeCommand(t, path, env...), path)
}

// StartNodeCmd is StartNode for a prepared command, which may run elsewhere (see [NetNS]).
func StartNodeCmd(t testing.TB, cmd *exec.Cmd, config string) *Node {
	t.Helper()
	n := &Node{Process: StartCmd(t, cmd), Config: config}
	var ready struct {
		Ready          bool
		Segment, Admin string
	}
	n.JSON(NodeReady, &ready)
	if !ready.Ready || ready.Segment == "" {
		t.Fatalf("node's first line: %+v\n%s", ready, n.Stderr())
	}
	n.Segment, n.Admin = ready.Segment, ready.Admin
	return n
}

// Alive fails the test if the node has ended or does not say that it is healthy.
func (n *Node) Alive(t testing.TB) {
	t.Helper()
	select {
	case <-n.Exited():
		t.Fatalf("node ended: %v\n%s", n.Wait(0), n.Stderr())
	default:
	}
	if n.Admin == "" {
		return
	}
	c := http.Client{Timeout: 30 * time.Second}
	r, err := c.Get(n.Admin + "/healthz")
	if err != nil {
		t.Fatalf("node is not healthy: %v", err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusOK {
		t.Fatalf("node is not healthy: %s", r.Status)
	}
}

// StartMetadataNode runs a node that serves HTTP metadata on a port of 127.0.0.1, kept in memory and
// empty at each start, and returns the connection string.
func StartMetadataNode(t testing.TB, port int) (*Node, string) {
	t.Helper()
	listen := fmt.Sprintf("127.0.0.1:%d", port)
	n := StartNode(t, Config{
		"local_hostname": "metadata-node", "metadata_server": nil, "global_segment_size": "1MB",
		"metadata": Config{"type": "memory"}, "metadata_http": Config{"listen": listen},
	})
	return n, "http://" + listen + "/metadata"
}
