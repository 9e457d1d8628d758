package config

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/units"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The schema of the tests has the shapes of the real one.

type logConfig struct {
	Level string `koanf:"level" doc:"lowest level" enum:"debug|info|warn|error" live:"true"`
	File  string `koanf:"file" doc:"log file"`
}

type adminConfig struct {
	Listen string `koanf:"listen" doc:"address of the admin server"`
	Token  string `koanf:"token" doc:"bearer token" secret:"true"`
}

type transferConfig struct {
	Timeout   time.Duration     `koanf:"timeout" doc:"total deadline" env:"MC_TRANSFER_TIMEOUT" range:"5s.."`
	Connect   time.Duration     `koanf:"connect_timeout" doc:"handshake dial" env:"MC_HANDSHAKE_CONNECT_TIMEOUT" range:"1s..3599s" live:"true"`
	PortLow   int               `koanf:"min_port" doc:"lowest port" env:"MC_MIN_RPC_PORT,MC_MIN_PRC_PORT" range:"1024..65535"`
	PortHigh  int               `koanf:"max_port" doc:"highest port" env:"MC_MAX_RPC_PORT,MC_MAX_PRC_PORT" range:"1024..65535"`
	IPv6      bool              `koanf:"ipv6" doc:"listen on IPv6" env:"MC_USE_IPV6"`
	Ratio     float64           `koanf:"ratio" doc:"a share" range:"0..1"`
	Serial    int64             `koanf:"serial" doc:"a large number"`
	Small     uint8             `koanf:"small" doc:"a small number"`
	Peers     []string          `koanf:"peers" doc:"some names"`
	Labels    map[string]string `koanf:"labels" doc:"some labels"`
	ByteLimit units.Size        `koanf:"byte_limit" doc:"in flight" env:"MC_TCP_SLICE_SIZE" range:"4KB..1GB"`
}

func (c *transferConfig) Validate() error {
	if c.PortLow > c.PortHigh {
		return errors.Join(fmt.Errorf("min_port: %d is above max_port %d", c.PortLow, c.PortHigh), errors.New("the port range is empty"))
	}
	return nil
}

type metadataHTTPConfig struct {
	Listen string `koanf:"listen" doc:"address of the HTTP metadata server"`
}

type tcpConfig struct {
	Lanes     int           `koanf:"lanes_per_peer" doc:"connections per peer" env:"MC_TCP_LANES_PER_PEER,MC_TCP_MAX_CONNECTIONS_PER_PEER" range:"1..16"`
	Admission time.Duration `koanf:"admission_timeout" doc:"wait for room" env:"MC_TCP_ADMISSION_TIMEOUT_MS" range:"1ms..600s"`
	Progress  time.Duration `koanf:"progress_timeout" doc:"silence allowed" env:"MC_TCP_PROGRESS_TIMEOUT_SEC" envunit:"s" range:"50ms..1h"`
	Pool      bool          `koanf:"connection_pool" doc:"keep connections" env:"MC_TCP_ENABLE_CONNECTION_POOL"`
}

type verbsConfig struct {
	Devices []string `koanf:"devices" doc:"devices"`
	Port    int      `koanf:"port" doc:"port" env:"MC_IB_PORT" range:"1..255"`
}

type tlsConfig struct {
	CA  string `koanf:"ca" doc:"file"`
	Key string `koanf:"key" doc:"file"`
}

type etcdConfig struct {
	URL       string        `koanf:"url" doc:"etcd://..." secret:"true"`
	Endpoints []string      `koanf:"endpoints" doc:"members"`
	Password  string        `koanf:"password" doc:"password" secret:"true"`
	Timeout   time.Duration `koanf:"timeout" doc:"one call" range:"100ms..5m"`
	TLS       tlsConfig     `koanf:"tls" doc:"TLS"`
}

type redisConfig struct {
	URL      string `koanf:"url" doc:"redis://..."`
	Username string `koanf:"username" doc:"ACL user" env:"MC_REDIS_USERNAME"`
	Password string `koanf:"password" doc:"password" secret:"true" env:"MC_REDIS_PASSWORD"`
	DB       int    `koanf:"db" doc:"database" env:"MC_REDIS_DB_INDEX" range:"0..15"`
}

type urlConfig struct {
	URL string `koanf:"url" doc:"http://..."`
}

type noConfig struct{}

type policyConfig struct {
	Module string `koanf:"module" doc:"file"`
}

type part struct{}

func build[C any](context.Context, module.Env, C) (part, error) { return part{}, nil }

func testTransports(verbs bool) *module.Kind[part] {
	k := module.NewKind[part]("transport")
	module.Define(k, "tcp", "plain TCP sockets", tcpConfig{Lanes: 4, Admission: time.Second, Progress: 30 * time.Second, Pool: true}, build)
	module.Define(k, "shm", "shared memory", noConfig{}, build)
	if verbs {
		module.Define(k, "verbs", "RDMA", verbsConfig{Port: 1}, build, module.Alias("rdma"),
			module.Probe(func() error { return fmt.Errorf("libibverbs.so.1 not found: %w", module.ErrSkip) }))
	}
	return k
}

func testMetadata() *module.Kind[part] {
	k := module.NewKind[part]("metadata backend")
	module.Define(k, "memory", "in this process", urlConfig{}, build)
	module.Define(k, "etcd", "etcd v3", etcdConfig{Timeout: 5 * time.Second}, build)
	module.Define(k, "redis", "redis", redisConfig{}, build)
	module.Define(k, "http", "HTTP metadata server", urlConfig{}, build, module.Alias("https"))
	return k
}

func testEviction() *module.Kind[part] {
	k := module.NewKind[part]("eviction policy")
	module.Define(k, "lru", "least recently used", noConfig{}, build)
	module.Define(k, "wasm", "a module", policyConfig{}, build)
	return k
}

func testSchema() Schema {
	return Schema{
		Sections: []SectionSpec{
			{Key: "transfer", Doc: "the engine", Defaults: transferConfig{Timeout: 30 * time.Second, Connect: 5 * time.Second, PortLow: 15000, PortHigh: 17000, ByteLimit: 64 * units.KiB, Peers: []string{"a", "b"}, Labels: map[string]string{"x": "y"}}},
			{Key: "admin", Doc: "admin server", Defaults: adminConfig{Listen: "127.0.0.1:9004"}},
			{Key: "log", Doc: "logs", Defaults: logConfig{Level: "info"}},
			{Key: "metadata_http", Doc: "HTTP metadata server", Defaults: metadataHTTPConfig{}},
		},
		Kinds: []KindSpec{
			{Key: "transports", Doc: "transports", Kind: testTransports(false), Always: []string{"tcp"}},
			{Key: "metadata", Doc: "metadata backend", Kind: testMetadata(), Single: true},
		},
	}
}

func schemaWithVerbs() Schema {
	s := testSchema()
	s.Kinds[0].Kind = testTransports(true)
	return s
}

// loadText loads text as a file of the given name, with the folder cut from all messages.
func loadText(t *testing.T, name, text string, environ ...string) (*Loaded, string) {
	t.Helper()
	return loadWith(t, Options{Schema: testSchema(), Environ: environ}, name, text)
}

func loadWith(t *testing.T, o Options, name, text string) (*Loaded, string) {
	t.Helper()
	dir := t.TempDir()
	o.Path = filepath.Join(dir, name)
	if err := os.WriteFile(o.Path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Load(o)
	if err == nil {
		return l, ""
	}
	if es := (*Errors)(nil); !errors.As(err, &es) || len(es.Problems) == 0 {
		t.Fatalf("%T without problems: %v", err, err)
	}
	return l, strings.ReplaceAll(err.Error(), dir+string(filepath.Separator), "")
}

// mustLoad loads JSON text that must be valid.
func mustLoad(t *testing.T, text string, environ ...string) *Loaded {
	t.Helper()
	l, msg := loadText(t, "mooncake.json", text, environ...)
	if msg != "" {
		t.Fatalf("refused:\n%s", msg)
	}
	return l
}

// warnings returns the warnings without file and position, one a line.
func warnings(l *Loaded) string {
	var out []string
	for _, p := range l.Warnings() {
		if p.File != "environment" && p.File != "flags" {
			p.File = ""
		}
		out = append(out, p.String())
	}
	return strings.Join(out, "\n")
}

func value(t *testing.T, l *Loaded, key string) Value {
	t.Helper()
	for _, v := range l.Effective() {
		if v.Key == key {
			return v
		}
	}
	t.Fatalf("no key %s in the effective configuration", key)
	return Value{}
}
