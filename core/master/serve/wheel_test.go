package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/core/master/admin"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
	_ "github.com/mooncake-agent/mooncake/metadata/memory"
)

// drive is an unmodified client: it does one round of the basic calls, waits for a line and ends without goodbye.
const drive = `
import os, sys
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
s = MooncakeDistributedStore()
rc = s.setup("127.0.0.1", os.environ["METADATA"], 16 << 20, 16 << 20, "tcp", "", os.environ["MASTER"])
assert rc == 0, rc
c = ReplicateConfig()
c.preferred_segment = s.get_hostname()
v = os.urandom(1 << 20)
assert s.put("k", v, c) == 0 and s.put("k", b"other", c) == 0
assert s.get("k") == v and s.get("missing") == b""
assert s.is_exist("k") == 1 and s.is_exist("missing") == 0
assert s.get_size("k") == len(v) and s.get_size("missing") == -704
assert s.remove("k") == -706 and s.remove("k", True) == 0 and s.remove("k") == -704
assert s.put_batch(["a", "b"], [b"1", b"22"], c) == 0 and s.get_batch(["a", "b"]) == [b"1", b"22"]
print("ok", s.get_hostname(), flush=True)
sys.stdin.readline()
os._exit(0)
`

// The wheel's client against this server, with P2PHANDSHAKE and with the server's own HTTP metadata.
func TestWheel(t *testing.T) {
	w := testenv.Wheel(t)
	script := filepath.Join(t.TempDir(), "drive.py")
	if err := os.WriteFile(script, []byte(drive), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, meta := range []string{"P2PHANDSHAKE", "http"} {
		t.Run(meta, func(t *testing.T) {
			s := start(t, func(o *Options) {
				o.Config.Listen.Addr = fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)) // outside the wheel's own range
				if meta != "http" {
					return
				}
				b, err := metadata.Kind.Build(context.Background(), "memory", module.Env{Name: "memory", Log: o.Log, Metrics: nopRegisterer{}}, module.NoConfig{})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { b.Close() })
				o.Metadata, o.Config.Metadata = b, Listener{"http_metadata_server_port", fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))}
			})
			server := meta
			if meta == "http" {
				server = s.MetadataURL()
			}
			cmd := w.Command(script)
			cmd.Env = append(cmd.Env, "MASTER="+s.Addr(), "METADATA="+server, "MC_STORE_CLIENT_SETUP_RETRIES=1")
			p := testenv.StartCmd(t, cmd)
			line := p.Line(patience)
			host, ok := strings.CutPrefix(line, "ok ")
			if !ok {
				t.Fatalf("%q\n%s", line, p.Stderr())
			}
			if _, _, err := net.SplitHostPort(host); err != nil {
				t.Error(err)
			}
			if _, _, body := request(t, "GET", s.AdminURL()+"/get_all_segments", ""); body != host+"\n" {
				t.Errorf("segments %q, want %s", body, host)
			}
			if _, _, body := request(t, "GET", s.AdminURL()+"/get_all_keys", ""); body != "a\nb\n" && body != "b\na\n" {
				t.Errorf("keys %q", body)
			}
			var clients admin.Clients
			_, _, body := request(t, "GET", s.AdminURL()+"/api/v1/clients", "")
			if err := json.Unmarshal([]byte(body), &clients); err != nil || len(clients.Clients) == 0 {
				t.Fatal(err, body)
			}
			for _, c := range clients.Clients {
				if c.ID != "" && (c.Version != "0.3.13" || len(c.Segments) != 1) {
					t.Errorf("%+v", c)
				}
			}
			p.Send("end")
			if err := p.Wait(patience); err != nil {
				t.Error(err)
			}
		})
	}
}
