package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/core/units"
)

const configs = "../../configs"

// What each shipped file resolves to. A file without a row fails the test.
type sample struct {
	metadata, url string
	master        MasterTarget
	segment       units.Size
	buffer        units.Size
	protocol      string
	prefer        []string
	host          string
	port          int
	bind          string
	warnings      []string
}

const (
	gib     = units.GiB
	dflSeg  = units.Size(3355443200)
	dflBuf  = units.Size(1073741824)
	noVerbs = "protocol: rdma is not in this binary; tcp is used"
)

func localhostWarning(remote string) string {
	return "local_hostname: local_hostname is not set, and its default localhost cannot be reached by peers on other hosts, but " + remote + " is one; write this host's address"
}

var samples = map[string]sample{
	"mooncake.json": {metadata: "memory", segment: 256 * units.MiB, buffer: dflBuf, protocol: "tcp", prefer: []string{"tcp"}, host: "127.0.0.1", bind: "127.0.0.1"},
	"examples/p2p-vllm.json": {master: MasterTarget{Scheme: "tcp", Addrs: []string{"127.0.0.1:50051"}}, segment: 80 * gib, buffer: 4 * gib,
		protocol: "rdma", prefer: []string{"tcp"}, host: "localhost", bind: "127.0.0.1", warnings: []string{noVerbs, "enable_offload: accepted, not active yet"}},
	"examples/etcd-tcp.json": {metadata: "etcd", url: "etcd://192.0.2.10:2379", master: MasterTarget{Scheme: "tcp", Addrs: []string{"192.0.2.10:50001"}},
		segment: dflSeg, buffer: dflBuf, protocol: "tcp", prefer: []string{"tcp"}, host: "192.0.2.10"},
	"examples/http-requester-only.json": {metadata: "http", url: "http://127.0.0.1:8092/metadata", master: MasterTarget{Scheme: "tcp", Addrs: []string{"127.0.0.1:50063"}},
		segment: 0, buffer: 2 * gib, protocol: "rdma", prefer: []string{"tcp"}, host: "localhost", bind: "127.0.0.1", warnings: []string{noVerbs}},
	"examples/etcd-cluster-fastdeploy.json": {metadata: "etcd", url: "etcd://127.0.0.1:12379,127.0.0.1:22379,127.0.0.1:32379",
		master:  MasterTarget{Scheme: "etcd", Addrs: []string{"127.0.0.1:12379", "127.0.0.1:22379", "127.0.0.1:32379"}, URL: "etcd://127.0.0.1:12379,127.0.0.1:22379,127.0.0.1:32379"},
		segment: 1000000000, buffer: 128 * units.MiB, protocol: "rdma", prefer: []string{"tcp"}, host: "localhost", bind: "127.0.0.1",
		warnings: []string{noVerbs, "rdma_devices: is another name of device_name; write device_name", "master_server_addr: is another name of master_server_address; write master_server_address"}},
	"examples/redis-rdma.json": {metadata: "redis", url: "redis://10.0.0.10:6379/0", master: MasterTarget{Scheme: "tcp", Addrs: []string{"10.0.0.10:50051"}},
		segment: gib + gib/2, buffer: 64 * units.MiB, protocol: "rdma", prefer: []string{"tcp"}, host: "10.0.0.21", port: 17121, warnings: []string{noVerbs}},
	"examples/prefill-decode.json": {metadata: "etcd", url: "etcd://192.0.2.2:2379,192.0.2.3:2379", segment: dflSeg, buffer: dflBuf, protocol: "tcp", prefer: []string{"tcp"},
		host: "localhost", bind: "127.0.0.1", warnings: []string{localhostWarning("192.0.2.2"),
			"prefill_url: accepted, but only the engines' proxy reads it", "decode_url: accepted, but only the engines' proxy reads it",
			`metadata_server: "192.0.2.2:2379,192.0.2.3:2379" has no scheme and is taken as etcd://192.0.2.2:2379,192.0.2.3:2379`}},
	"examples/ipv6.json": {metadata: "http", url: "http://[::1]:8082/metadata", master: MasterTarget{Scheme: "tcp", Addrs: []string{"[::1]:50052"}},
		segment: 30 * gib, buffer: gib, protocol: "tcp", prefer: []string{"tcp"}, host: "::1", bind: "::1"},
	"examples/store-node-ssd.json": {master: MasterTarget{Scheme: "tcp", Addrs: []string{"master:50051"}}, segment: units.TiB, buffer: 0, protocol: "tcp",
		prefer: []string{"tcp"}, host: "node1", warnings: []string{"enable_ssd_offload: accepted, not active yet", "ssd_offload_path: accepted, not active yet",
			"enable_client_http_server: accepted, not active yet; health and metrics are served at admin.listen", "client_http_port: accepted, not active yet; health and metrics are served at admin.listen"}},
	"examples/kubernetes.json": {master: MasterTarget{Scheme: "k8s", Addrs: []string{"serving/mooncake-master"}}, segment: 4 * gib, buffer: dflBuf, protocol: "tcp",
		prefer: []string{"tcp"}, host: "localhost", bind: "127.0.0.1", warnings: []string{localhostWarning("k8s://serving/mooncake-master")}},
	"examples/deployment-guide.json": {metadata: "etcd", url: "etcd://10.0.0.1:2379", master: MasterTarget{Scheme: "tcp", Addrs: []string{"10.0.0.1:50051"}},
		segment: dflSeg, buffer: dflBuf, protocol: "rdma", prefer: []string{"tcp"}, host: "10.0.0.11", warnings: []string{noVerbs,
			"master_server: is another name of master_server_address; write master_server_address",
			"gpu_memory_pool_size: accepted, not active yet", "cpu_memory_pool_size: accepted, not active yet; global_segment_size sets the memory of this node",
			"rdma_buffer_size: accepted, not active yet", "max_connections: accepted, not active yet", "ssd_path: accepted, not active yet", "ssd_pool_size: accepted, not active yet",
			"failover_enabled: accepted, not active yet", "failover_timeout_ms: accepted, not active yet", "retry_attempts: accepted, not active yet", "health_check_interval_ms: accepted, not active yet"}},
	"examples/sections.yaml": {metadata: "etcd", buffer: 64 * units.MiB, protocol: "tcp", prefer: []string{"tcp"}, host: "127.0.0.1", bind: "127.0.0.1"},
}

func TestShippedFiles(t *testing.T) {
	var files []string
	for _, pattern := range []string{"*.*", "examples/*"} {
		found, err := filepath.Glob(filepath.Join(configs, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, slices.DeleteFunc(found, func(f string) bool {
			// The parts of external-plugins.json are not in this test's schema; test/faults loads it.
			return strings.HasSuffix(f, ".md") || filepath.Base(f) == "external-plugins.json"
		})...)
	}
	if len(files) < len(samples) {
		t.Fatalf("found %d files, want %d", len(files), len(samples))
	}
	for _, f := range files {
		name, _ := filepath.Rel(configs, f)
		t.Run(name, func(t *testing.T) {
			want, ok := samples[name]
			if !ok {
				t.Fatal("no expectation for this file")
			}
			l, err := Load(Options{Schema: testSchema(), Path: f})
			if err != nil {
				t.Fatalf("refused:\n%v", err)
			}
			r := l.Root()
			if r.Metadata.Type != want.metadata || metadataURL(t, r) != want.url {
				t.Errorf("metadata %q %q, want %q %q", r.Metadata.Type, metadataURL(t, r), want.metadata, want.url)
			}
			if r.Metadata.P2P() != (want.metadata == "") {
				t.Errorf("P2P() = %v", r.Metadata.P2P())
			}
			if d := cmp.Diff(want.master, r.Master); d != "" {
				t.Errorf("master (-want +got):\n%s", d)
			}
			if name == "examples/sections.yaml" { // a quarter of whatever this machine has
				limit, err := units.MemoryLimit()
				if err != nil {
					t.Fatal(err)
				}
				want.segment = units.Size(limit/4) &^ 4095
			}
			got := sample{metadata: r.Metadata.Type, url: want.url, master: want.master, segment: r.GlobalSegment, buffer: r.LocalBuffer,
				protocol: r.Protocol, prefer: r.Prefer, host: r.Host, port: r.Port, bind: r.Bind}
			if w := warnings(l); w != "" {
				got.warnings = strings.Split(w, "\n")
			}
			// The order of warnings is that of the file; the table has it by subject.
			slices.Sort(got.warnings)
			slices.Sort(want.warnings)
			if d := cmp.Diff(want, got, cmp.AllowUnexported(sample{})); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func metadataURL(t *testing.T, r Root) string {
	t.Helper()
	if r.Metadata.Section == nil {
		return ""
	}
	var c struct {
		URL       string    `koanf:"url"`
		Endpoints []string  `koanf:"endpoints"`
		Timeout   string    `koanf:"timeout"`
		Password  string    `koanf:"password"`
		DB        int       `koanf:"db"`
		TLS       tlsConfig `koanf:"tls"`
	}
	if err := r.Metadata.Section.Decode(&c); err != nil {
		t.Fatal(err)
	}
	return c.URL
}

// The same settings in YAML give the same configuration, position aside.
func TestYAMLIsTheSameAsJSON(t *testing.T) {
	yaml := `
local_hostname: "10.0.0.21:17121"
metadata_server: redis://10.0.0.10:6379/0
global_segment_size: 1.5gb
local_buffer_size: 67108864
protocol: RDMA
device_name: mlx5_0,mlx5_1
master_server_address: 10.0.0.10:50051
transports:
  tcp:
  extra: {type: tcp, lanes_per_peer: 2}
transfer: {peers: [x, y], labels: {a.b: c}}
`
	json := `{"local_hostname":"10.0.0.21:17121","metadata_server":"redis://10.0.0.10:6379/0","global_segment_size":"1.5gb","local_buffer_size":67108864,
"protocol":"RDMA","device_name":"mlx5_0,mlx5_1","master_server_address":"10.0.0.10:50051","transports":{"tcp":{},"extra":{"type":"tcp","lanes_per_peer":2}},
"transfer":{"peers":["x","y"],"labels":{"a.b":"c"}}}`
	a, msg := loadText(t, "mooncake.yaml", yaml)
	if msg != "" {
		t.Fatal(msg)
	}
	b := mustLoad(t, json)
	if live, restart := Diff(a, b); len(live)+len(restart) != 0 {
		t.Fatalf("YAML and JSON differ: %v %v", live, restart)
	}
	if names := instanceNames(a, "transports"); names != "extra=tcp tcp=tcp" {
		t.Fatalf("instances %q", names)
	}
}

func instanceNames(l *Loaded, kind string) string {
	var out []string
	for _, i := range l.Instances(kind) {
		out = append(out, i.Name+"="+i.Type)
	}
	return strings.Join(out, " ")
}

func TestFormatIsFoundByContentWithoutAnExtension(t *testing.T) {
	for name, text := range map[string]string{"mooncake.conf": "protocol: TCP\n", "mooncake": "  {\"protocol\": \"TCP\"}"} {
		l, msg := loadText(t, name, text)
		if msg != "" || l.Root().Protocol != "tcp" {
			t.Errorf("%s: %s", name, msg)
		}
	}
}

func TestConfigPath(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.json"), filepath.Join(dir, "b.json")
	for _, p := range []string{a, b} {
		if err := os.WriteFile(p, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ flag, variable, want string }{
		{"", "", ""}, {"", b, b}, {a, b, a}, {a, "", a},
	} {
		l, err := Load(Options{Schema: testSchema(), Path: c.flag, Environ: []string{ConfigPathVar + "=" + c.variable}})
		if err != nil || l.Path() != c.want {
			t.Errorf("--config %q, variable %q: %v, want %q", c.flag, c.variable, err, c.want)
		}
	}
}
