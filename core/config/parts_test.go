package config

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func put(m map[string]any, key string, v any) {
	parts := strings.Split(key, ".")
	for _, p := range parts[:len(parts)-1] {
		sub, ok := m[p].(map[string]any)
		if !ok {
			sub = map[string]any{}
			m[p] = sub
		}
		m = sub
	}
	m[parts[len(parts)-1]] = v
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestTransports(t *testing.T) {
	for _, c := range []struct {
		name, text, instances string
		prefer                []string
		warnings, refused     string
		noVerbs               bool
	}{
		{name: "nothing said", text: `{}`, instances: "tcp=tcp", prefer: []string{"tcp"}},
		{name: "type defaults to the name", text: `{"transports":{"shm":{}}}`, instances: "shm=shm tcp=tcp", prefer: []string{"shm", "tcp"}},
		{name: "two of a type, dots in a name", text: `{"transports":{"nic.0":{"type":"tcp"},"tcp":{}}}`, instances: "nic.0=tcp tcp=tcp", prefer: []string{"nic.0", "tcp"}},
		{name: "switched off", text: `{"transports":{"shm":{"enabled":false}}}`, instances: "tcp=tcp", prefer: []string{"tcp"}},
		{name: "all switched off", text: `{"transports":{"tcp":{"enabled":false}}}`, refused: "1:2: transports: every transport is switched off"},
		{name: "rdma where there is none", text: `{"protocol":"rdma"}`, noVerbs: true, instances: "tcp=tcp", prefer: []string{"tcp"},
			warnings: "protocol: rdma is not in this binary; tcp is used"},
		{name: "rdma that cannot run here", text: `{"protocol":"RDMA"}`, instances: "tcp=tcp verbs=verbs", prefer: []string{"verbs", "tcp"},
			warnings: "protocol: transport verbs is not available here: libibverbs.so.1 not found; tcp is used"},
		{name: "rdma wanted but not required", text: `{"protocol":"rdma","transports":{"verbs":{"devices":["mlx5_0"],"required":false}}}`, instances: "tcp=tcp verbs=verbs",
			prefer: []string{"verbs", "tcp"}, warnings: "protocol: transport verbs is not available here: libibverbs.so.1 not found; tcp is used"},
		{name: "rdma required", text: `{"protocol":"rdma","transports":{"verbs":{"required":true}}}`,
			refused: "1:34: transports.verbs: transport verbs is required but not available here: libibverbs.so.1 not found"},
		{name: "verbs named without the protocol", text: `{"transports":{"rdma":{}}}`, instances: "rdma=verbs tcp=tcp", prefer: []string{"tcp", "rdma"},
			warnings: "transports.rdma: transport verbs is not available here: libibverbs.so.1 not found"},
		{name: "rdma switched off", text: `{"protocol":"rdma","transports":{"verbs":{"enabled":false}}}`, instances: "tcp=tcp", prefer: []string{"tcp"},
			warnings: "protocol: rdma needs transports.verbs, which is switched off; tcp is used"},
		{name: "shm", text: `{"protocol":"Shm"}`, instances: "shm=shm tcp=tcp", prefer: []string{"shm", "tcp"}},
		{name: "own order", text: `{"transports":{"shm":{}},"prefer":["tcp","shm"]}`, instances: "shm=shm tcp=tcp", prefer: []string{"tcp", "shm"}},
		{name: "order names what is not there", text: `{"prefer":["shm"]}`, refused: `1:12: prefer[0]: no transport is called "shm"; there is: tcp`},
		{name: "unknown type", text: `{"transports":{"rmda":{}}}`, refused: `1:16: transports.rmda: no transport of type "rmda"; this binary has: shm, tcp, verbs (rdma); did you mean rdma?; add a "type"`},
		{name: "nvlink", text: `{"protocol":"NVLink"}`, refused: `1:2: protocol: "NVLink" is known upstream, not in this binary; known here: tcp, rdma, shm`},
		{name: "Ascend", text: `{"protocol":"Ascend"}`, refused: `1:2: protocol: "Ascend" is known upstream, not in this binary; known here: tcp, rdma, shm`},
		{name: "empty", text: `{"protocol":""}`, refused: `1:2: protocol: protocol is empty; known here: tcp, rdma, shm`},
		{name: "not even close", text: `{"protocol":"carrier-pigeon"}`, refused: `1:2: protocol: "carrier-pigeon" unknown; known here: tcp, rdma, shm`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := schemaWithVerbs()
			if c.noVerbs {
				s = testSchema()
			}
			l, msg := loadWith(t, Options{Schema: s}, "c.json", c.text)
			if c.refused != "" || msg != "" {
				if msg != "c.json:"+c.refused {
					t.Fatalf("got %q\nwant %q", msg, c.refused)
				}
				return
			}
			if got := instanceNames(l, "transports"); got != c.instances {
				t.Errorf("instances %q, want %q", got, c.instances)
			}
			if d := cmp.Diff(c.prefer, l.Root().Prefer); d != "" {
				t.Errorf("prefer (-want +got):\n%s", d)
			}
			if got := warnings(l); got != c.warnings {
				t.Errorf("warnings:\n%s\nwant:\n%s", got, c.warnings)
			}
		})
	}
}

func TestEvictionDomains(t *testing.T) {
	text := `{"eviction": {"*": {"type": "lru"}, "team.a": {"type": "wasm", "module": "/p.wasm"}}, "store": {"a": {"password": "x"}}}`
	l := mustLoad(t, text)
	want := "eviction: accepted, not active yet\nstore: accepted, not active yet"
	if got := warnings(l); got != want {
		t.Errorf("warnings:\n%s", got)
	}
	if v := value(t, l, "store.a.password"); v.Value != "***" {
		t.Errorf("shown: %v", v.Value)
	}
	s := testSchema()
	s.Kinds = append(s.Kinds, KindSpec{Key: "eviction", Kind: testEviction(), Live: true})
	l, msg := loadWith(t, Options{Schema: s}, "c.json", text)
	if msg != "" {
		t.Fatal(msg)
	}
	if got := instanceNames(l, "eviction"); got != "*=lru team.a=wasm" {
		t.Errorf("instances %q", got)
	}
	swapped, msg := loadWith(t, Options{Schema: s}, "c.json", strings.Replace(text, `"*": {"type": "lru"}, `, "", 1))
	if msg != "" {
		t.Fatal(msg)
	}
	live, restart := Diff(l, swapped)
	if len(live) != 1 || live[0].Key != "eviction.*.type" || live[0].New != nil || len(restart) != 0 {
		t.Errorf("live %v, restart %v", live, restart)
	}
	_, msg = loadWith(t, Options{Schema: s}, "c.json", `{"eviction": {"*": {}}}`)
	if want := `c.json:1:15: eviction.*: no eviction policy of type "*"; this binary has: lru, wasm; add a "type"`; msg != want {
		t.Errorf("got %s", msg)
	}
}

// Keys that stand beside the instances of a kind.
func TestSharedKeys(t *testing.T) {
	type shared struct {
		Dir string `koanf:"module_dir" doc:"folder"`
	}
	s := testSchema()
	s.Kinds = append(s.Kinds, KindSpec{Key: "eviction", Kind: testEviction(), Shared: shared{Dir: "none"}, Live: true})
	const text = `{"eviction": {"module_dir": "/m", "*": {"type": "lru"}}}`
	l, msg := loadWith(t, Options{Schema: s}, "c.json", text)
	if msg != "" {
		t.Fatal(msg)
	}
	var got shared
	if err := l.Shared("eviction").Decode(&got); err != nil || got.Dir != "/m" {
		t.Errorf("%+v, %v", got, err)
	}
	if n := instanceNames(l, "eviction"); n != "*=lru" {
		t.Errorf("instances %q", n)
	}
	if v := value(t, l, "eviction.module_dir"); v.Value != "/m" || !v.Live || !strings.HasSuffix(v.Source, "c.json:1:15") {
		t.Errorf("%+v", v)
	}
	other, msg := loadWith(t, Options{Schema: s, Flags: []Flag{{Name: "set", Key: "eviction.module_dir", Value: "/n"}}}, "c.json", text)
	if msg != "" {
		t.Fatal(msg)
	}
	if live, restart := Diff(l, other); len(restart) != 0 || len(live) != 1 || live[0].Key != "eviction.module_dir" || live[0].New != "/n" {
		t.Errorf("live %v, restart %v", live, restart)
	}
	none, msg := loadWith(t, Options{Schema: s}, "c.json", `{}`)
	if v := value(t, none, "eviction.module_dir"); msg != "" || v.Value != "none" || v.Source != "default" {
		t.Errorf("%+v %s", v, msg)
	}
	if _, msg := loadWith(t, Options{Schema: s}, "c.json", `{"eviction": {"module_dir": {"type": "lru"}}}`); msg != `c.json:1:15: eviction.module_dir: needs text, got an object` {
		t.Errorf("got %s", msg)
	}
	if !slices.ContainsFunc(s.Keys(), func(k KeyInfo) bool {
		return k.Key == "eviction.module_dir" && k.Part == "" && k.Doc == "folder" && k.Live
	}) {
		t.Error("the key is not listed")
	}
}

func TestInactiveKeysOfTheSchema(t *testing.T) {
	s := testSchema()
	s.Inactive = []string{"master_server_address", "admin"}
	l, msg := loadWith(t, Options{Schema: s}, "c.json", `{"master_server_address": "127.0.0.1:1", "admin": {"listen": ""}}`)
	if msg != "" {
		t.Fatal(msg)
	}
	if got, want := warnings(l), "master_server_address: accepted, not active yet\nadmin: accepted, not active yet"; got != want {
		t.Errorf("warnings:\n%s", got)
	}
}

func TestMetadataServer(t *testing.T) {
	for _, c := range []struct{ name, text, typ, url, warnings, refused string }{
		{name: "neither", text: `{}`},
		{name: "p2p", text: `{"metadata_server":"P2PHANDSHAKE"}`},
		{name: "p2p and an empty section", text: `{"metadata_server":"P2PHANDSHAKE","metadata":{}}`},
		{name: "section only", text: `{"metadata":{"type":"memory"}}`, typ: "memory"},
		{name: "section only, url", text: `{"metadata":{"type":"ETCD","url":"etcd://127.0.0.1:1"}}`, typ: "etcd", url: "etcd://127.0.0.1:1"},
		{name: "scheme in capitals, no port", text: `{"metadata_server":"ETCD://localhost"}`, typ: "etcd", url: "etcd://localhost:2379"},
		{name: "list with semicolons and spaces", text: `{"metadata_server":"etcd://127.0.0.1:1; [::1]:2;"}`, typ: "etcd", url: "etcd://127.0.0.1:1,[::1]:2"},
		{name: "endpoints with schemes", text: `{"metadata_server":"etcd://https://127.0.0.1:1/,http://localhost"}`, typ: "etcd", url: "etcd://https://127.0.0.1:1,localhost:2379"},
		{name: "etcd with password", text: `{"metadata_server":"etcd://u:p%40ss@localhost:1"}`, typ: "etcd", url: "etcd://u:p%40ss@localhost:1"},
		{name: "redis with everything", text: `{"metadata_server":"redis://u:p%40ss@[::1]:6379/3"}`, typ: "redis", url: "redis://u:p%40ss@[::1]:6379/3"},
		{name: "redis over TLS", text: `{"metadata_server":"rediss://localhost"}`, typ: "redis", url: "rediss://localhost:6379"},
		{name: "http without a path", text: `{"metadata_server":"http://localhost:8999"}`, typ: "http", url: "http://localhost:8999"},
		{name: "https", text: `{"metadata_server":"HTTPS://localhost/metadata"}`, typ: "http", url: "https://localhost/metadata"},
		{name: "memory", text: `{"metadata_server":"memory://x"}`, typ: "memory", url: "memory://x"},
		{name: "no scheme", text: `{"metadata_server":"localhost:2379"}`, typ: "etcd", url: "etcd://localhost:2379",
			warnings: `metadata_server: "localhost:2379" has no scheme and is taken as etcd://localhost:2379`},
		{name: "no scheme, looks like http", text: `{"metadata_server":"localhost:8080"}`, typ: "etcd", url: "etcd://localhost:8080",
			warnings: `metadata_server: "localhost:8080" has no scheme and is taken as etcd://localhost:8080; an HTTP metadata server is written http://localhost:8080/metadata`},
		{name: "no scheme, old backend key", text: `{"metadata_server":"localhost:6379","metadata_backend":"redis"}`, typ: "redis", url: "redis://localhost:6379",
			warnings: `metadata_server: "localhost:6379" has no scheme and is taken as redis://localhost:6379`},
		{name: "old backend key loses", text: `{"metadata_server":"etcd://localhost","metadata_backend":"redis"}`, typ: "etcd", url: "etcd://localhost:2379",
			warnings: `metadata_backend: ignored, because metadata_server says etcd://`},
		{name: "merged with the section", text: `{"metadata_server":"etcd://127.0.0.1:1,127.0.0.1:2","metadata":{"endpoints":["127.0.0.1:2","http://127.0.0.1:1"],"timeout":"9s"}}`,
			typ: "etcd", url: "etcd://127.0.0.1:1,127.0.0.1:2"},
		{name: "same url twice", text: `{"metadata_server":"etcd://127.0.0.1","metadata":{"type":"etcd","url":"etcd://127.0.0.1:2379"}}`, typ: "etcd", url: "etcd://127.0.0.1:2379"},

		{name: "wrong case", text: `{"metadata_server":"P2pHandshake"}`, refused: `1:2: metadata_server: "P2pHandshake" - did you mean P2PHANDSHAKE?`},
		{name: "misspelt", text: `{"metadata_server":"P2PHANDSHKE"}`, refused: `1:2: metadata_server: "P2PHANDSHKE" - did you mean P2PHANDSHAKE?`},
		{name: "short", text: `{"metadata_server":"p2p"}`, refused: `1:2: metadata_server: "p2p" - did you mean P2PHANDSHAKE?`},
		{name: "empty", text: `{"metadata_server":""}`, refused: `1:2: metadata_server: metadata_server is empty; write P2PHANDSHAKE, or an address such as etcd://host:2379`},
		{name: "space", text: `{"metadata_server":"P2PHANDSHAKE "}`, refused: `1:2: metadata_server: "P2PHANDSHAKE " - did you mean P2PHANDSHAKE?`},
		{name: "space after an address", text: `{"metadata_server":"etcd://h:1 "}`, refused: `1:2: metadata_server: "etcd://h:1 " begins or ends with a space`},
		{name: "unknown scheme", text: `{"metadata_server":"consul://h:1"}`, refused: `1:2: metadata_server: no metadata backend of type "consul"; this binary has: etcd, http (https), memory, redis`},
		{name: "scheme typo", text: `{"metadata_server":"etdc://h:1"}`, refused: `1:2: metadata_server: no metadata backend of type "etdc"; this binary has: etcd, http (https), memory, redis; did you mean etcd?`},
		{name: "no scheme name", text: `{"metadata_server":"://h:1"}`, refused: `1:2: metadata_server: no metadata backend of type ""; this binary has: etcd, http (https), memory, redis`},
		{name: "no host", text: `{"metadata_server":"etcd://"}`, refused: `1:2: metadata_server: the host is empty`},
		{name: "bad port", text: `{"metadata_server":"etcd://h:1,h:99999"}`, refused: `1:2: metadata_server: "h:99999": port 99999 is not a number from 1 to 65535`},
		{name: "redis list", text: `{"metadata_server":"redis://a:1,b:2"}`, refused: `1:2: metadata_server: redis:// takes one host, got 2`},
		{name: "http without host", text: `{"metadata_server":"http:///metadata"}`, refused: `1:2: metadata_server: the host is empty`},
		{name: "bad escape in the password", text: `{"metadata_server":"redis://u:hunter%2@h:1"}`, refused: `1:2: metadata_server: user or password contain characters that must be written as %XX: / ? # @ % : or a space`},
		{name: "at sign in the password", text: `{"metadata_server":"redis://u:hunter@2@h:1"}`, refused: `1:2: metadata_server: user or password contain characters that must be written as %XX: / ? # @ % : or a space`},
		{name: "type is not text", text: `{"metadata":{"type":5}}`, refused: `1:14: metadata.type: needs text, got 5`},
		{name: "unknown type", text: `{"metadata":{"type":"zk"}}`, refused: `1:14: metadata.type: no metadata backend of type "zk"; this binary has: etcd, http (https), memory, redis`},
		{name: "unknown key of the backend", text: `{"metadata_server":"redis://localhost","metadata":{"databse":1}}`, refused: `1:52: metadata.databse: unknown key databse`},
		{name: "two urls", text: `{"metadata_server":"etcd://127.0.0.1","metadata":{"url":"etcd://127.0.0.2"}}`,
			refused: `1:2: metadata_server: metadata_server ("etcd://127.0.0.1:2379") and metadata.url (file c.json:1:51) differ`},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, msg := loadText(t, "c.json", c.text)
			if c.refused != "" || msg != "" {
				if msg != "c.json:"+c.refused {
					t.Fatalf("got %s\nwant c.json:%s", msg, c.refused)
				}
				return
			}
			r := l.Root()
			if r.Metadata.Type != c.typ || metadataURL(t, r) != c.url {
				t.Errorf("%q %q, want %q %q", r.Metadata.Type, metadataURL(t, r), c.typ, c.url)
			}
			if n := len(l.Instances("metadata")); (n == 1) != (c.typ != "") {
				t.Errorf("%d instances", n)
			}
			if got := warnings(l); got != c.warnings {
				t.Errorf("warnings:\n%s\nwant:\n%s", got, c.warnings)
			}
		})
	}
}
