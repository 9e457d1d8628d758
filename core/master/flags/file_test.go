package flags

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/core/master/policies"
	_ "github.com/mooncake-agent/mooncake/eviction/lru"
	_ "github.com/mooncake-agent/mooncake/eviction/lruk"
)

// everyKey is a file with all keys that have an effect or a companion's default, as upstream ships one.
func everyKey(t *testing.T) map[string]any {
	t.Helper()
	m := map[string]any{}
	for _, u := range upstreamFlags(t) {
		switch {
		case u.name == "config_path":
		case u.typ == "bool":
			m[u.name] = u.def == "true"
		case u.typ == "string":
			m[u.name] = u.def
		default:
			m[u.name] = json.Number(u.def)
		}
	}
	return m
}

func writeJSON(t *testing.T, m map[string]any) string {
	t.Helper()
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, "master.json", string(b))
}

// Upstream leaves rpc_port and rpc_thread_num at 0 when a file lacks them. Here each key may be left out and
// then has its documented default.
func TestEveryKeyIsOptional(t *testing.T) {
	want := mustLoad(t).Settings
	full := everyKey(t)
	if r := mustLoad(t, "--config_path="+writeJSON(t, full)); len(r.Warnings) > 0 {
		t.Error(r.Warnings)
	}
	for key := range full {
		rest := everyKey(t)
		delete(rest, key)
		if diff := cmp.Diff(want, mustLoad(t, "--config_path="+writeJSON(t, rest)).Settings); diff != "" {
			t.Errorf("without %s:\n%s", key, diff)
		}
	}
	// What a file sets is not lost either when others are missing.
	s := mustLoad(t, "--config_path="+writeFile(t, "m.json", `{"metrics_port": 1}`)).Settings
	if s.MetricsPort != 1 || s.RPCPort != 50051 {
		t.Errorf("%+v", s)
	}
}

// The values of the file that upstream ships differ from the built-in ones and are all taken.
func TestShippedValues(t *testing.T) {
	for _, name := range []string{"m.json", "m.yaml"} {
		text := `{"eviction_high_watermark_ratio": 1.0, "client_live_ttl_sec": 60, "eviction_ratio": 0.1, "enable_ha": false, "etcd_endpoints": ""}`
		if strings.HasSuffix(name, "yaml") {
			text = "eviction_high_watermark_ratio: 1.0\nclient_live_ttl_sec: 60\neviction_ratio: 0.1\nenable_ha: false\netcd_endpoints: \"\"\n"
		}
		r := mustLoad(t, "--config_path", writeFile(t, name, text))
		m := r.Settings.Master
		if m.Watermark != 1 || m.ClientTTL != time.Minute || m.EvictionRatio != 0.1 || len(r.Warnings) > 0 {
			t.Errorf("%s: %+v %v", name, m, r.Warnings)
		}
	}
}

func TestPrecedence(t *testing.T) {
	path := writeFile(t, "m.yaml", "client_ttl: 20\nrpc_compat: ['0.3.7:1', '0.3.8:2']\nport: 4\n")
	s := mustLoad(t, "--config_path="+path).Settings
	if s.Master.ClientTTL != 20*time.Second || fmt.Sprint(s.Compat) != "[0.3.7:1 0.3.8:2]" || s.RPCPort != 4 {
		t.Errorf("%+v", s)
	}
	// A flag wins also with its default value.
	s = mustLoad(t, "--client_ttl=10", "--config_path="+path, "--rpc_compat=0.3.9:3", "--port=50051").Settings
	if s.Master.ClientTTL != 10*time.Second || fmt.Sprint(s.Compat) != "[0.3.9:3]" || s.RPCPort != 50051 {
		t.Errorf("%+v", s)
	}
}

func TestFileProblems(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"m.json", "{\n \"rpc_prot\": 1\n}", ":2:2: rpc_prot: unknown key rpc_prot; did you mean rpc_port?"},
		{"m.yaml", "rpc_port: 1\nmaster:\n  metrics_port: 2\n", ":2:1: master: the file is flat: a key has one value; move metrics_port and its neighbours to the top level"},
		{"m.json", `{"rpc_port": {"x": 1}}`, ":1:2: rpc_port: needs one value, got an object"},
		{"m.json", `{"rpc_port": [1]}`, ":1:2: rpc_port: needs one value, got a list"},
		{"m.json", `{"rpc_port": null}`, ":1:2: rpc_port: needs one value, got null; leave the key out"},
		{"m.yaml", "rpc_port: abc\n", `:1:1: rpc_port: "abc" is not a whole number`},
		{"m.yaml", "rpc_port: 1.5\n", `:1:1: rpc_port: "1.5" is not a whole number`},
		{"m.yaml", "client_ttl: 10\nclient_live_ttl_sec: 20\n", ":2:1: client_live_ttl_sec: client_ttl and client_live_ttl_sec are the same setting and differ"},
		{"m.yaml", "client-ttl: 10\nclient_live_ttl_sec: 10\n", ""},
		{"m.yaml", "client_ttl: 10\nclient_ttl: 10\n", ":2:1: client_ttl: given twice, first in line 1"},
		{"m.json", `{"enable_ha": true}`, ":1:2: enable_ha: high availability: not in this version; take the key out"},
		{"m.json", `{"enable_ha": "false"}`, ""},
		{"m.json", `{"etcd_endpoints": "http://127.0.0.1:2379"}`, "warning: :1:2: etcd_endpoints: no effect without enable_ha"},
		{"m.json", `{"config_path": "x"}`, "a config file cannot name another one"},
		{"m.json", `{"logtostderr": true}`, "unknown key logtostderr"},
		{"m.json", `{"default_kv_soft_pin_ttl": "48h"}`, ":1:2: default_kv_soft_pin_ttl: 48h0m0s is more than"},
		{"m.json", `{"rpc_port": 1,}`, `:1:16: trailing comma after "rpc_port"`},
		{"m.json", ``, ": is empty"},
		{"m.json", `[]`, "the top level must be an object"},
		{"m.json", `null`, "the top level must be an object"},
		{"m.yml", "a: &x 1\nb: *x\n", "anchors and aliases"},
		{"m.conf", `{"rpc_port": 1}`, ""}, // upstream: only .json, .yaml, .yml
		{"m.json", `{"eviction_ratio": 2, "rpc_port": "x"}`, `:1:23: rpc_port: "x"`},
		{"m.json", `{"rpc_compat": [1]}`, "rpc_compat: needs one value"},
	} {
		t.Run(c.text, func(t *testing.T) {
			path := writeFile(t, c.name, c.text)
			r, err := load("--config_path=" + path)
			got := ""
			switch {
			case err != nil:
				got = err.Error()
			case len(r.Warnings) > 0:
				got = "warning: " + strings.Join(r.Warnings, "\n")
			}
			got = strings.ReplaceAll(got, path, "")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("%s\nwant %s", got, c.want)
			}
		})
	}
	if _, err := load("--config_path=" + t.TempDir()); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Error(err)
	}
}

func FuzzFile(f *testing.F) {
	f.Add("m.json", `{"rpc_port": 1, "client_ttl": "10s", "eviction_ratio": 0.5, "x": {"rpc_port": 1}}`)
	f.Add("m.yaml", "rpc_port: 1\nrpc_compat: [\"0.3.7:1\"]\n")
	f.Add("m.yaml", "enable_ha: true\n? [a]: b\n")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, name, text string) {
		if name = filepath.Base(name); name == "." || name == ".." || name == "/" || strings.ContainsRune(name, 0) || len(name) > 100 {
			t.Skip("not a file name")
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Skip(err)
		}
		r, err := load("--config_path=" + path)
		if err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not name the file: %v", err)
		}
		if err == nil && r.Settings.Master.Validate() != nil {
			t.Error("accepted a bad config")
		}
	})
}

// Policies are for everyone and for tenants; the command line replaces the file's list.
func TestPolicies(t *testing.T) {
	for _, c := range []struct{ file, line, want string }{
		{"", "", "[native]"},
		{"", "--eviction_policy=lru", "[lru]"},
		{"eviction_policy: lru-k:k=3\n", "", "[lru-k:k=3]"},
		{"eviction_policy: [\"lru\", \"team-a=lru-k:k=3,guard=off\"]\n", "", "[lru team-a=lru-k:k=3,guard=off]"},
		{"eviction_policy: [\"lru\", \"team-a=lru-k\"]\n", "--eviction_policy=b=lru --eviction_policy=native", "[b=lru native]"},
	} {
		args := strings.Fields(c.line)
		if c.file != "" {
			path := filepath.Join(t.TempDir(), "m.yaml")
			if err := os.WriteFile(path, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, "--config_path="+path)
		}
		line, err := Parse(args)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Load(line, func(string) string { return "" })
		if err != nil {
			t.Errorf("%q %q: %v", c.file, c.line, err)
			continue
		}
		if got := fmt.Sprint(policies.WithDefault(r.Settings.Policies)); got != c.want {
			t.Errorf("%q %q: %s, want %s", c.file, c.line, got, c.want)
		}
	}
	for _, c := range []struct{ line, want string }{
		{"--eviction_policy=lur", "--eviction_policy: no eviction policy of type \"lur\""},
		{"--eviction_policy=lru-k:k=77", "from 2 to 4"},
		{"--eviction_policy=lru --eviction_policy=lru-k", "a second policy for *, which has lru already"},
		{"--eviction_policy=", "a policy's name is missing"},
		{"--record_part_size=1000", "less than 1MB"},
	} {
		line, err := Parse(strings.Fields(c.line))
		if err == nil {
			_, err = Load(line, func(string) string { return "" })
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.line, err, c.want)
		}
	}
	line, err := Parse([]string{"--record=/var/tmp/x.trace"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Load(line, func(string) string { return "" }); err != nil || r.Settings.RecordDir != "/var/tmp" {
		t.Errorf("folder of recordings %q, %v", r.Settings.RecordDir, err)
	}
}
