package flags

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/core/units"
)

func noEnv(string) string { return "" }

// load parses and loads one command line; files are written by the caller.
func load(args ...string) (*Result, error) {
	l, err := Parse(args)
	if err != nil {
		return nil, err
	}
	return Load(l, noEnv)
}

func mustLoad(t *testing.T, args ...string) *Result {
	t.Helper()
	r, err := load(args...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

type upstreamFlag struct{ name, typ, def string }

func upstreamFlags(t *testing.T) (out []upstreamFlag) {
	t.Helper()
	b, err := os.ReadFile("testdata/upstream_flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		out = append(out, upstreamFlag{f[0], f[1], f[2]})
	}
	return out
}

// Every flag of upstream's master exists, has its default, and giving that default changes nothing and is
// neither refused nor warned about.
func TestUpstreamFlags(t *testing.T) {
	flags := upstreamFlags(t)
	if len(flags) != 99 || len(upstreamTypes) != 99 {
		t.Fatalf("%d flags in testdata, %d in the table", len(flags), len(upstreamTypes))
	}
	plain := mustLoad(t)
	for _, u := range flags {
		t.Run(u.name, func(t *testing.T) {
			f, ok := Lookup(u.name)
			if !ok {
				t.Fatal("unknown")
			}
			if f.Type != u.typ || f.Doc == "" {
				t.Errorf("type %s, want %s; doc %q", f.Type, u.typ, f.Doc)
			}
			if u.name == "config_path" {
				return
			}
			r := mustLoad(t, "--"+u.name+"="+u.def)
			if diff := cmp.Diff(plain.Settings, r.Settings); diff != "" {
				t.Errorf("upstream's default is not ours:\n%s", diff)
			}
			if len(r.Warnings) > 0 {
				t.Error(r.Warnings)
			}
			if r := mustLoad(t, "--"+f.Name+"="+f.Default); len(r.Warnings) > 0 {
				t.Error("our default:", r.Warnings)
			}
		})
	}
}

// Each flag that is not upstream's is documented, has a default that it accepts and that changes nothing.
func TestOwnFlags(t *testing.T) {
	plain := mustLoad(t)
	for _, f := range All() {
		if _, theirs := upstreamTypes[f.Name]; theirs || f.Group == Logging {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			if f.Doc == "" || f.Group != Ours {
				t.Errorf("doc %q, group %q", f.Doc, f.Group)
			}
			if f.Default == "" && f.Repeat {
				return
			}
			r, err := load("--" + f.Name + "=" + f.Default)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(plain.Settings, r.Settings); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestForms(t *testing.T) {
	for _, c := range []struct {
		args string
		want string // key=value of what differs
	}{
		{"--rpc_port=1", "RPCPort=1"},
		{"--rpc_port 1", "RPCPort=1"},
		{"-rpc_port=1", "RPCPort=1"},
		{"-rpc_port 1", "RPCPort=1"},
		{"--rpc-port=1", "RPCPort=1"},
		{"-rpc-port 1", "RPCPort=1"},
		{"--rpc_port=1 --rpc-port=2", "RPCPort=2"},
		{"--port 50001", "RPCPort=50001 Port=50001"},
		{"--enable_offload", "Offload=true"},
		{"-enable_offload", "Offload=true"},
		{"--enable_offload=1", "Offload=true"},
		{"--enable-offload=yes", "Offload=true"},
		{"--noenable_metric_reporting", "Reporting=false"},
		{"-noenable-metric-reporting", "Reporting=false"},
		{"--no-enable-metric-reporting", "Reporting=false"},
		{"--enable_metric_reporting=false", "Reporting=false"},
		{"--client_ttl=2", "ClientTTL=2s"},
		{"--client_ttl=2s", "ClientTTL=2s"},
		{"--client_ttl=2500ms", "ClientTTL=2.5s"},
		{"--client_live_ttl_sec=3", "ClientTTL=3s"},
		{"--default_kv_lease_ttl=5000", "LeaseTTL=5s"},
		{"--default_kv_lease_ttl=5000ms", "LeaseTTL=5s"},
		{"--default_kv_lease_ttl=5s", "LeaseTTL=5s"},
		{"--default_kv_soft_pin_ttl=20m", "SoftPinTTL=20m0s"},
		{"--max_kv_soft_pin_ttl=2h", "MaxSoftPinTTL=2h0m0s"},
		{"--default_kv_lease_ttl=0", "LeaseTTL=0s"},
		{"--rpc_conn_timeout_seconds=30", "IdleTimeout=30s"},
		{"--eviction_ratio=0.1", "EvictionRatio=0.1"},
		{"--eviction_high_watermark_ratio=1.0", "Watermark=1"},
		{"--allocation_strategy=Free_Ratio_First", "Strategy=free_ratio_first"},
		{"--quota_bytes=18446744073709551615", "DiskQuota=8EB"},
		{"--quota_bytes=4GB", "DiskQuota=4GB"},
		{"--cluster_id=a-b_c.1", "ClusterID=a-b_c.1"},
		{"--rpc_compat=0.3.7:50057 --rpc_compat=0.3.8.post1:127.0.0.1:50058", "Compat=[0.3.7:50057 0.3.8:127.0.0.1:50058]"},
		{"--rpc_compat 0.3.7:50057,0.3.9:[::1]:50059", "Compat=[0.3.7:50057 0.3.9:[::1]:50059]"},
		{"--minloglevel=2", "Level=error"},
		{"-v 1", "Level=debug"},
		{"--logtostderr", ""},
	} {
		t.Run(c.args, func(t *testing.T) {
			r := mustLoad(t, strings.Fields(c.args)...)
			got := changes(reflect.ValueOf(Defaults()), reflect.ValueOf(r.Settings))
			got = slices.DeleteFunc(got, func(s string) bool { return s == "RPCPort=50051" })
			if diff := cmp.Diff(c.want, strings.Join(got, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// changes lists the fields that differ, as Field=value.
func changes(a, b reflect.Value) (out []string) {
	for i := range a.NumField() {
		x, y := a.Field(i), b.Field(i)
		if a.Type().Field(i).Name == "PortKey" {
			continue
		}
		if x.Kind() == reflect.Struct {
			out = append(out, changes(x, y)...)
		} else if !reflect.DeepEqual(x.Interface(), y.Interface()) {
			v := y.Interface()
			if s, ok := v.(units.Size); ok && s == 1<<63-1 {
				v = "8EB"
			}
			out = append(out, fmt.Sprintf("%s=%v", a.Type().Field(i).Name, v))
		}
	}
	return out
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--enable_ha", "--enable_ha: high availability: not in this version; leave the flag out"},
		{"-enable-ha=true", "--enable-ha: high availability: not in this version"},
		{"--enable_oplog=1", "--enable_oplog: the operation log: not in this version"},
		{"--enable_snapshot", "--enable_snapshot: snapshots: not in this version"},
		{"--enable_snapshot_restore", "not in this version"},
		{"--enable_cxl", "--enable_cxl: CXL memory: not in this version"},
		{"--enable_kv_events", "--enable_kv_events: KV events: not in this version"},
		{"--enable_metadata_cleanup_on_timeout", "not in this version"},
		{"--tenant_quota_connector_type=etcd", `--tenant_quota_connector_type: "etcd" is unknown; use file`},
		{"--allocation_strategy=cxl", `--allocation_strategy: "cxl" is not in this version`},
		{"--dynamic_replication_mode=enforce", `"enforce" is not in this version`},
		{"--enable_ha --enable_oplog", "--enable_oplog: the operation log"}, // both are named
		{"--allocation_strategy=x", `--allocation_strategy: "x" is unknown; use random,`},
		{"--memory_allocator=malloc", `--memory_allocator: "malloc" is unknown; use offset, cachelib`},
		{"--rpc_port=x", `--rpc_port: "x" is not a whole number`},
		{"--rpc_port=65536", "--rpc_port: 65536 is not between 0 and 65535"},
		{"--rpc_port=-1", "--rpc_port: -1 is not between"},
		{"--rpc_port", "--rpc_port: a value is missing"},
		{"--rpc_prot=1", "--rpc_prot: unknown flag; did you mean --rpc_port?"},
		{"--xyzzyxyzzy", "unknown flag; mooncake master --help"},
		{"--norpc_port", "unknown flag"},
		{"--enable_ha false", `"false": unexpected; write --enable_ha=false`},
		{"oops", `"oops": unexpected`},
		{"--", `"--": unexpected`},
		{"--enable_offload=maybe", `--enable_offload: "maybe" is not true or false`},
		{"--default_kv_lease_ttl=1.5s", `"1.5s" is not a duration; write milliseconds`},
		{"--default_kv_lease_ttl=-1", `"-1" is not a duration`},
		{"--default_kv_lease_ttl=abc", `"abc" is not a duration`},
		{"--default_kv_lease_ttl=", "is not a duration"},
		{"--default_kv_lease_ttl=99999999999999999999", "is too long"},
		{"--default_kv_lease_ttl=9999999999999h", "is too long"},
		{"--eviction_ratio=1.5", "--eviction_ratio: 1.5 is not between 0 and 1"},
		{"--eviction_ratio=nan", "is not a number"},
		{"--eviction_high_watermark_ratio=2", "--eviction_high_watermark_ratio: 2 is not between"},
		{"--default_kv_soft_pin_ttl=48h", "--default_kv_soft_pin_ttl: 48h0m0s is more than max_kv_soft_pin_ttl"},
		{"--offloading_queue_limit=0", "--offloading_queue_limit: 0 is not between"},
		{"--client_ttl=0", "--client_ttl: 0s is not positive"},
		{"--cluster_id=a/b", "--cluster_id: "},
		{"--rpc_compat=0.3.6:1", `--rpc_compat: unknown Mooncake version "0.3.6"`},
		{"--rpc_compat=0.3.7", "write a version and a port"},
		{"--rpc_compat=0.3.7:0", "write a version and a port"},
		{"--rpc_port=9003", "metrics_port: port 9003 is also that of rpc_port"},
		{"--rpc_compat=0.3.7:50051", "--rpc_compat: port 50051 is also that of port"},
		{"--rpc_interface=nosuchif0", `--rpc_interface: no network interface "nosuchif0"`},
		{"--flagfile=x", "--flagfile: not in this version"},
		{"--log_level=loud", `--log_level: "loud" is unknown`},
		{"--kv_events_block_size=-1", "--kv_events_block_size: -1 is not between"},
		{"--config_path=/nonexistent.json", "/nonexistent.json: no such file"},
	} {
		t.Run(c.args, func(t *testing.T) {
			_, err := load(strings.Fields(c.args)...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\nwant %s", err, c.want)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--port 50001 --etcd-endpoints http://127.0.0.1:2379", "--etcd-endpoints: no effect without enable_ha, which this version lacks"},
		{"--snapshot_interval_seconds=60", "--snapshot_interval_seconds: no effect without enable_snapshot,"},
		{"--rpc_port=1 --port=2", "port: 2 is ignored, rpc_port is 1"},
		{"--log_dir=/x", "--log_dir: no effect"},
		{"--tenant_quota_connector_uri=/x", "tenant_quota_connector_uri: no effect without enable_multi_tenants"},
		{"--eviction_policy=lru --eviction_policy=team-a=lru-k", "eviction_policy: team-a=lru-k: no effect without enable_multi_tenants"},
		{"--nof_eviction_ratio=0.2", "--nof_eviction_ratio: no effect without NVMe-oF segments"},
	} {
		r := mustLoad(t, strings.Fields(c.args)...)
		if len(r.Warnings) != 1 || !strings.HasPrefix(r.Warnings[0], c.want) {
			t.Errorf("%s: %q, want %q", c.args, r.Warnings, c.want)
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "0.0.0.0:50051 0.0.0.0:9003 "},
		{"--bind=127.0.0.1 --enable_http_metadata_server", "127.0.0.1:50051 127.0.0.1:9003 127.0.0.1:8080"},
		{"--bind=127.0.0.1 --metrics_host=127.0.0.2", "127.0.0.1:50051 127.0.0.2:9003 "},
		{"--bind=::1 --port=7", "[::1]:7 [::1]:9003 "},
		{"--rpc_interface=lo", "127.0.0.1:50051 0.0.0.0:9003 "},
		{"--rpc_address=127.0.0.1 --metrics_port=50051 --metrics_host=127.0.0.2", "127.0.0.1:50051 127.0.0.2:50051 "},
	} {
		s := mustLoad(t, strings.Fields(c.args)...).Settings
		if got := s.RPCListen() + " " + s.AdminListen() + " " + s.MetadataListen(); got != c.want {
			t.Errorf("%s: %s, want %s", c.args, got, c.want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	env := func(vars ...string) func(string) string {
		return func(name string) string {
			for _, v := range vars {
				if n, value, _ := strings.Cut(v, "="); n == name {
					return value
				}
			}
			return ""
		}
	}
	r, err := Load(&Line{}, env("MC_STORE_CLUSTER_ID=prod"))
	if err != nil || r.Settings.Master.ClusterID != "prod" {
		t.Errorf("%v, %+v", err, r)
	}
	line, _ := Parse([]string{"--cluster_id=dev"})
	r, err = Load(line, env("MC_STORE_CLUSTER_ID=prod", "MC_RPC_PROTOCOL=tcp"))
	if err != nil || r.Settings.Master.ClusterID != "dev" {
		t.Errorf("%v, %+v", err, r)
	}
	if _, err = Load(&Line{}, env("MC_RPC_PROTOCOL=rdma")); err == nil || !strings.Contains(err.Error(), "MC_RPC_PROTOCOL=rdma") {
		t.Error(err)
	}
}

func TestHelpAndVersion(t *testing.T) {
	for _, a := range []string{"--help", "-help", "-h", "--helpfull"} {
		if l, err := Parse([]string{a}); err != nil || !l.Help {
			t.Errorf("%s: %+v, %v", a, l, err)
		}
	}
	if l, err := Parse([]string{"--version"}); err != nil || !l.Version {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestChanged(t *testing.T) {
	a, b := mustLoad(t).Settings, mustLoad(t, "--client_ttl=3", "--log_level=debug", "--port=1", "--rpc_max_body=1GB").Settings
	if got := strings.Join(Changed(&a, &b), " "); got != "client_ttl rpc.max_body RPCPort Port" {
		t.Error(got)
	}
}

func TestCompat(t *testing.T) {
	c, err := ParseCompat("0.3.7.post2:50057")
	if err != nil || c != (Compat{Version: wire.V0_3_7, Port: 50057}) || c.String() != "0.3.7:50057" {
		t.Errorf("%v, %v", c, err)
	}
}

// One command line of a real deployment (the usage guides and the recorded file).
func TestDeployment(t *testing.T) {
	path := writeFile(t, "m.yaml", `
rpc_port: 25071
metrics_port: 25072
default_kv_lease_ttl: 7000      # or "7s"
eviction_ratio: 0.1
client_live_ttl_sec: 20
enable_metric_reporting: false
rpc_thread_num: 3
`)
	s := mustLoad(t, "--config_path="+path).Settings
	if s.RPCPort != 25071 || s.MetricsPort != 25072 || s.Master.LeaseTTL != 7*time.Second || s.Master.EvictionRatio != 0.1 ||
		s.Master.ClientTTL != 20*time.Second || s.Reporting || s.Threads != 3 {
		t.Errorf("%+v", s)
	}
}

func FuzzFlags(f *testing.F) {
	for _, x := range All() {
		f.Add("--"+x.Name, x.Default)
	}
	f.Add("-noenable_ha", "x")
	f.Fuzz(func(t *testing.T, name, value string) {
		l, err := Parse([]string{name, value})
		if err != nil {
			return
		}
		for _, v := range l.Values {
			if v.Flag.Name == "config_path" {
				return
			}
		}
		r, err := Load(l, noEnv)
		if err == nil && r.Settings.RPCListen() == "" {
			t.Error("no address")
		}
	})
}
