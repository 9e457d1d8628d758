package config

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEffectiveShowsTheSourceOfEachValue(t *testing.T) {
	l := mustLoad(t, `{
  "protocol": "rdma",
  "transports": {"tcp": {"lanes_per_peer": 2}},
  "metadata_server": "redis://u:hunter2@127.0.0.1/3"
}`, "MC_TCP_ADMISSION_TIMEOUT_MS=5", "MC_REDIS_PASSWORD=hunter2")
	file := "file " + l.Path()
	for key, want := range map[string]Value{
		"protocol":                         {Value: "rdma", Source: file + ":2:3"},
		"local_hostname":                   {Value: "localhost", Source: "default"},
		"global_segment_size":              {Value: "3200MB", Source: "default"},
		"metadata_server":                  {Value: "redis://u:***@127.0.0.1/3", Source: file + ":4:3"},
		"metadata.type":                    {Value: "redis", Source: file + ":4:3"},
		"metadata.url":                     {Value: "redis://u:***@127.0.0.1:6379/3", Source: file + ":4:3"},
		"metadata.password":                {Value: "***", Source: "env MC_REDIS_PASSWORD"},
		"metadata.db":                      {Value: 0, Source: "default"},
		"transports.tcp.type":              {Value: "tcp", Source: "default"},
		"transports.tcp.lanes_per_peer":    {Value: 2, Source: file + ":3:26"},
		"transports.tcp.admission_timeout": {Value: "5ms", Source: "env MC_TCP_ADMISSION_TIMEOUT_MS"},
		"log.level":                        {Value: "info", Source: "default", Live: true},
		"transfer.labels":                  {Value: map[string]any{"x": "y"}, Source: "default"},
		"prefer":                           {Value: []any{"tcp"}, Source: "default"},
	} {
		got := value(t, l, key)
		got.Key, got.plain = "", ""
		if d := cmp.Diff(want, got, cmp.AllowUnexported(Value{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", key, d)
		}
	}
	for _, asJSON := range []bool{false, true} {
		var b bytes.Buffer
		if err := WriteEffective(&b, l, asJSON); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), "hunter2") {
			t.Errorf("a secret is shown:\n%s", &b)
		}
		if strings.Contains(b.String(), "gpu_memory_pool_size") {
			t.Error("keys without effect are listed although they are not set")
		}
		if !asJSON {
			line := "transports.tcp.admission_timeout"
			if !strings.Contains(b.String(), line+"  = \"5ms\"") || !strings.Contains(b.String(), "# env MC_TCP_ADMISSION_TIMEOUT_MS\n") {
				t.Errorf("text:\n%s", &b)
			}
			continue
		}
		var list []struct {
			Key    string `json:"key"`
			Value  any    `json:"value"`
			Source string `json:"source"`
			Live   bool   `json:"live"`
		}
		if err := json.Unmarshal(b.Bytes(), &list); err != nil || len(list) != len(l.Effective()) {
			t.Errorf("%d of %d values, %v", len(list), len(l.Effective()), err)
		}
	}
}

func TestDiff(t *testing.T) {
	old := mustLoad(t, `{"log": {"level": "info"}, "global_segment_size": "1GB", "admin": {"token": "hunter2"}, "transports": {"shm": {}}}`)
	for _, c := range []struct{ name, text, want string }{
		{"the same in other words", `{"admin": {"token": "hunter2"}, "global_segment_size": 1073741824, "transports": {"shm": {"type": "shm"}, "tcp": null}, "log": {"level": "info"}}`, ""},
		{"live", `{"log": {"level": "debug"}, "global_segment_size": "1GB", "admin": {"token": "hunter2"}, "transports": {"shm": {}}, "transfer": {"connect_timeout": "9s"}}`,
			"changed: log.level: \"info\" -> \"debug\"\nchanged: transfer.connect_timeout: \"5s\" -> \"9s\"\n"},
		{"restart", `{"log": {"level": "error", "file": "/x"}, "global_segment_size": "2GB", "admin": {"token": "hunter3"}, "transports": {"two": {"type": "tcp"}}}`,
			"changed: log.level: \"info\" -> \"error\"\n" +
				"needs a restart: admin.token: \"***\" -> \"***\"\n" +
				"needs a restart: global_segment_size: \"1GB\" -> \"2GB\"\n" +
				"needs a restart: log.file: \"\" -> \"/x\"\n" +
				"needs a restart: prefer: [\"shm\",\"tcp\"] -> [\"tcp\",\"two\"]\n" +
				"needs a restart: transports.shm.type: \"shm\" -> null\n" +
				"needs a restart: transports.two.admission_timeout: null -> \"1s\"\n" +
				"needs a restart: transports.two.connection_pool: null -> true\n" +
				"needs a restart: transports.two.lanes_per_peer: null -> 4\n" +
				"needs a restart: transports.two.progress_timeout: null -> \"30s\"\n" +
				"needs a restart: transports.two.type: null -> \"tcp\"\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			live, restart := Diff(old, mustLoad(t, c.text))
			var b bytes.Buffer
			if err := WriteChanges(&b, live, restart); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, b.String()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// A changed password inside a connection string is a change although both sides look the same.
func TestDiffSeesMaskedChanges(t *testing.T) {
	a, b := mustLoad(t, `{"metadata_server": "redis://u:a@127.0.0.1"}`), mustLoad(t, `{"metadata_server": "redis://u:b@127.0.0.1"}`)
	live, restart := Diff(a, b)
	if len(live) != 0 || len(restart) != 2 || restart[0].Key != "metadata.url" || restart[1].Key != "metadata_server" || restart[0].Old != "redis://u:***@127.0.0.1:6379" {
		t.Errorf("%v %v", live, restart)
	}
}

func TestWriteCheck(t *testing.T) {
	l := mustLoad(t, `{"ssd_path": "x"}`)
	_, err := Load(Options{Schema: testSchema(), Path: "testdata/refused/p2p-case.json", Environ: []string{"MC_MTU=1"}})
	for _, c := range []struct {
		name   string
		l      *Loaded
		err    error
		text   string
		report Report
	}{
		{"fine with a warning", l, nil, "warning: " + l.Path() + ":1:2: ssd_path: accepted, not active yet\n" + l.Path() + " is fine\n",
			Report{OK: true, File: l.Path(), Errors: []Problem{}, Warnings: []Problem{{File: l.Path(), Line: 1, Col: 2, Key: "ssd_path", Msg: "accepted, not active yet"}}}},
		{"refused", nil, err, "warning: environment: MC_MTU: known upstream, not used by this binary\nerror: testdata/refused/p2p-case.json:1:2: metadata_server: \"p2phandshake\" - did you mean P2PHANDSHAKE?\n1 error(s); the configuration cannot be used\n",
			Report{Errors: []Problem{{File: "testdata/refused/p2p-case.json", Line: 1, Col: 2, Key: "metadata_server", Msg: `"p2phandshake" - did you mean P2PHANDSHAKE?`}},
				Warnings: []Problem{{File: "environment", Key: "MC_MTU", Msg: "known upstream, not used by this binary"}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b bytes.Buffer
			if err := WriteCheck(&b, c.l, c.err, false); err != nil || b.String() != c.text {
				t.Errorf("got  %q\nwant %q (%v)", &b, c.text, err)
			}
			b.Reset()
			if err := WriteCheck(&b, c.l, c.err, true); err != nil {
				t.Fatal(err)
			}
			var got Report
			if err := json.Unmarshal(b.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.report, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestSchemaKeys(t *testing.T) {
	keys := map[string]KeyInfo{}
	for _, k := range testSchema().Keys() {
		id := k.Key + "|" + k.Part
		if _, dup := keys[id]; dup {
			t.Errorf("%s twice", id)
		}
		if k.Doc == "" || k.Type == "" {
			t.Errorf("%s: doc %q, type %q", id, k.Doc, k.Type)
		}
		keys[id] = k
	}
	for id, want := range map[string]KeyInfo{
		"global_segment_size|": {Type: "size", Default: "3200MB", Env: []string{"MOONCAKE_GLOBAL_SEGMENT_SIZE"}},
		"master_server_address|": {Type: "text", Default: "", Env: []string{"MOONCAKE_MASTER"},
			Aliases: []string{"master_server_addr", "master_server"}},
		"mode|":                                {Type: "text", Default: "", Enum: []string{"embedded", "standalone-store"}},
		"client_http_port|":                    {Type: "integer", Default: 9300, Range: "0..65535", Env: []string{"MOONCAKE_CLIENT_HTTP_PORT"}, Note: "accepted, not active yet; health and metrics are served at admin.listen"},
		"log.level|":                           {Section: "log", Type: "text", Default: "info", Enum: []string{"debug", "info", "warn", "error"}, Live: true},
		"transfer.timeout|":                    {Section: "transfer", Type: "duration", Default: "30s", Range: "5s..", Env: []string{"MC_TRANSFER_TIMEOUT"}},
		"transfer.peers|":                      {Section: "transfer", Type: "list of text", Default: []any{"a", "b"}},
		"transfer.labels|":                     {Section: "transfer", Type: "map of text", Default: map[string]string{"x": "y"}},
		"transports.tcp.admission_timeout|tcp": {Section: "transports", Part: "tcp", Type: "duration", Default: "1s", Range: "1ms..10m", Env: []string{"MC_TCP_ADMISSION_TIMEOUT_MS"}},
		"transports.tcp.enabled|tcp":           {Section: "transports", Part: "tcp", Type: "bool", Default: true},
		"metadata.tls.ca|etcd":                 {Section: "metadata", Part: "etcd", Type: "text", Default: ""},
		"metadata.password|redis":              {Section: "metadata", Part: "redis", Type: "text", Default: "", Secret: true, Env: []string{"MC_REDIS_PASSWORD"}},
		"metadata.type|http":                   {Section: "metadata", Part: "http", Type: "text", Default: "http"},
	} {
		got, ok := keys[id]
		if !ok {
			t.Errorf("no %s", id)
			continue
		}
		got.Key, got.Doc = "", ""
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", id, d)
		}
	}
	if _, ok := keys["metadata.required|etcd"]; ok {
		t.Error("a single section has the keys of instances")
	}
}

func TestWriteSchema(t *testing.T) {
	s := testSchema()
	s.Inactive = []string{"admin"}
	for format, wants := range map[string][]string{
		"text": {"KEY", "transports.tcp.lanes_per_peer", "connections per peer; 1..16; env: MC_TCP_LANES_PER_PEER, MC_TCP_MAX_CONNECTIONS_PER_PEER"},
		"json": {`"key": "transports.tcp.lanes_per_peer"`, `"note": "accepted, not active yet"`},
		"markdown": {"## Flat keys\n\n| key | type |", "\n## transports: tcp\n\nplain TCP sockets\n\n|", "\n## log\n\nlogs\n\n",
			"| `log.level` | text | `\"info\"` | live | lowest level; debug\\|info\\|warn\\|error |\n", "| `admin.token` | text | `\"\"` | restart | bearer token; accepted, not active yet |\n"},
	} {
		var b bytes.Buffer
		if err := WriteSchema(&b, s, format); err != nil {
			t.Fatal(err)
		}
		for _, w := range wants {
			if !strings.Contains(b.String(), w) {
				t.Errorf("%s lacks %q:\n%s", format, w, &b)
			}
		}
	}
	if err := WriteSchema(&bytes.Buffer{}, s, "xml"); err == nil || err.Error() != `unknown format "xml"; known: text, json, markdown` {
		t.Error(err)
	}
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"redis://u:p@h:1/2":              "redis://u:***@h:1/2",
		"redis://:p@h":                   "redis://:***@h",
		"etcd://u:a@b:c/d@h:1,i:2":       "etcd://u:***@h:1,i:2",
		"u:p@h:1":                        "u:***@h:1",
		"http://h/m?password=x&a=b":      "http://h/m?password=***&a=b",
		"http://h/m?a=b&api_token=x%20y": "http://h/m?a=b&api_token=***",
		"http://h:1/m":                   "http://h:1/m",
		"[::1]:50051":                    "[::1]:50051",
		"etcd://a:1;b:2":                 "etcd://a:1;b:2",
		"mooncake/model@tp_rank:0@x":     "mooncake/model@tp_rank:0@x",
		"http://u:p@h/a\nb":              "http://u:***@h/a\nb",
	} {
		if got := Redact(in); got != want {
			t.Errorf("Redact(%q) = %q, want %q", in, got, want)
		}
	}
}
