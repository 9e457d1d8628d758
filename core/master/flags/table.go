package flags

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/master/policies"
	"github.com/mooncake-agent/mooncake/core/units"
)

// All lists every flag, in the order of the help text. The caller must not change it.
var All = sync.OnceValue(func() []Flag {
	all := append(serverFlags(), masterFlags()...)
	all = append(all, inertFlags()...)
	all = append(all, loggingFlags()...)
	groups := []Group{Upstream, Ours, Inert, Logging}
	slices.SortStableFunc(all, func(a, b Flag) int {
		if d := slices.Index(groups, a.Group) - slices.Index(groups, b.Group); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
	return all
})

var byName = sync.OnceValue(func() map[string]*Flag {
	m := map[string]*Flag{}
	for i := range All() {
		f := &All()[i]
		m[f.Name] = f
		if f.Alias != "" {
			m[f.Alias] = f
		}
	}
	return m
})

// Lookup finds a flag by name; dashes count as underscores.
func Lookup(name string) (*Flag, bool) {
	f, ok := byName()[Canonical(name)]
	return f, ok
}

// Canonical is upstream's spelling of a name.
func Canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }

// names are all spellings that a file may use, for "did you mean".
func names() []string {
	out := make([]string, 0, len(byName()))
	for n, f := range byName() {
		if f.Group != Logging {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// upstreamGroup is the group of a flag that has an effect.
func upstreamGroup(name string) Group {
	if _, ok := upstreamTypes[name]; ok {
		return Upstream
	}
	return Ours
}

func serverFlags() []Flag {
	port := func(at func(*Settings) *int) func(*Settings, string) error { return setInt(0, 65535, at) }
	return []Flag{
		{Name: "rpc_port", Type: "int32", Default: "0", Group: Upstream, Doc: "port of the RPC server, which also answers HTTP GET; 0 = port",
			set: port(func(s *Settings) *int { return &s.RPCPort })},
		{Name: "config_path", Type: "string", Group: Upstream, Doc: "JSON or YAML file with the same names as keys; flags override it",
			set: func(*Settings, string) error { return nil }},
		{Name: "port", Type: "int32", Default: "50051", Group: Upstream, Doc: "port of the RPC server when rpc_port is 0",
			set: port(func(s *Settings) *int { return &s.Port })},
		{Name: "rpc_address", Type: "string", Default: "0.0.0.0", Group: Upstream, Doc: "address that the RPC server binds",
			set: setString(func(s *Settings) *string { return &s.Address })},
		{Name: "rpc_interface", Type: "string", Group: Upstream, Doc: "bind the first IPv4 address of this network interface instead of rpc_address",
			set: setString(func(s *Settings) *string { return &s.Interface })},
		{Name: "rpc_thread_num", Type: "int32", Default: "0", Group: Upstream, Doc: "event loops of the RPC server, at most one a CPU; 0 = a quarter of the CPUs",
			set: setInt(0, math.MaxInt32, func(s *Settings) *int { return &s.Threads })},
		{Name: "max_threads", Type: "int32", Default: "16", Group: Upstream, Doc: "most event loops when rpc_thread_num is 0",
			set: setInt(1, math.MaxInt32, func(s *Settings) *int { return &s.MaxThreads })},
		{Name: "rpc_conn_timeout_seconds", Type: "int32", Default: "0", Group: Upstream, Doc: "close connections without a request for so many seconds; 0 = never",
			set: setDuration(time.Second, func(s *Settings) *time.Duration { return &s.RPC.IdleTimeout })},
		{Name: "rpc_enable_tcp_no_delay", Type: "bool", Default: "true", Group: Upstream, Doc: "TCP_NODELAY on RPC connections",
			set: setBool(func(s *Settings) *bool { return &s.RPC.NoDelay })},
		{Name: "metrics_host", Type: "string", Default: "0.0.0.0", Group: Upstream, Doc: "address that the admin HTTP server binds",
			set: setString(func(s *Settings) *string { return &s.MetricsHost })},
		{Name: "metrics_port", Type: "int32", Default: "9003", Group: Upstream, Doc: "port of the admin HTTP server",
			set: port(func(s *Settings) *int { return &s.MetricsPort })},
		{Name: "enable_metric_reporting", Type: "bool", Default: "true", Group: Upstream, Doc: "log a line with the most important numbers every 10 s",
			set: setBool(func(s *Settings) *bool { return &s.Reporting })},
		{Name: "enable_http_metadata_server", Type: "bool", Default: "false", Group: Upstream, Doc: "also serve the Transfer Engine's metadata over HTTP, kept in memory",
			set: setBool(func(s *Settings) *bool { return &s.MetadataServer })},
		{Name: "http_metadata_server_host", Type: "string", Default: "0.0.0.0", Group: Upstream, Doc: "address that the HTTP metadata server binds",
			set: setString(func(s *Settings) *string { return &s.MetadataHost })},
		{Name: "http_metadata_server_port", Type: "int32", Default: "8080", Group: Upstream, Doc: "port of the HTTP metadata server",
			set: port(func(s *Settings) *int { return &s.MetadataPort })},
		{Name: "tenant_quota_connector_type", Type: "string", Default: "file", Group: Upstream, Doc: "where the tenants' quotas are kept (file)",
			set: func(_ *Settings, v string) error {
				_, err := oneOf(v, []string{"file"})
				return err
			}},
		{Name: "tenant_quota_connector_uri", Type: "string", Group: Upstream, Doc: "YAML file with the tenants' quotas, with enable_multi_tenants; changed over HTTP. Without it quotas are forgotten at the end",
			set: setString(func(s *Settings) *string { return &s.QuotaFile })},

		{Name: "rpc_compat", Type: "VERSION:PORT", Group: Ours, Repeat: true,
			Doc: "another RPC listener whose callers all speak VERSION, as VERSION:PORT or VERSION:HOST:PORT; clients of 0.3.7 need it: --rpc_compat=0.3.7:50057. May be repeated",
			set: setCompat, reset: func(s *Settings) { s.Compat = nil }},
		{Name: "bind", Type: "string", Group: Ours, Doc: "address for all listeners that have none of their own (rpc_address, metrics_host, http_metadata_server_host)",
			set: setString(func(s *Settings) *string { return &s.Bind })},
		{Name: "rpc_max_connections", Type: "int", Default: "65536", Group: Ours, Doc: "open RPC connections",
			set: setInt(1, math.MaxInt32, func(s *Settings) *int { return &s.RPC.MaxConnections })},
		{Name: "rpc_max_connections_per_address", Type: "int", Default: "8192", Group: Ours, Doc: "open RPC connections of one IP address",
			set: setInt(1, math.MaxInt32, func(s *Settings) *int { return &s.RPC.MaxConnectionsPerIP })},
		{Name: "rpc_max_body", Type: "size", Default: "256MB", Group: Ours, Doc: "largest request; a connection that announces more is closed",
			set: setSize(func(s *Settings) *units.Size { return &s.RPC.MaxBody })},
		{Name: "log_level", Type: "string", Default: "info", Group: Ours, Doc: "lowest level that is logged: debug, info, warn, error",
			set: setChoice([]string{"debug", "info", "warn", "error"}, func(s *Settings) *string { return &s.Log.Level })},
		{Name: "log_format", Type: "string", Default: "auto", Group: Ours, Doc: "auto (text on a terminal, else json), text, json",
			set: setChoice([]string{"auto", "text", "json"}, func(s *Settings) *string { return &s.Log.Format })},
		{Name: "log_file", Type: "string", Group: Ours, Doc: "log file, rotated at 100 MB; default: stderr",
			set: setString(func(s *Settings) *string { return &s.Log.File })},
		{Name: "eviction_policy", Type: "[TENANT=]NAME[:KEY=VALUE,...]", Group: Ours, Repeat: true,
			Doc: "policy that chooses what is evicted (mooncake plugins ls), for everyone or for one tenant: lru, lru-k:k=3, team-a=s3fifo, /etc/mooncake/p.wasm; native is the master's own tail-first LRU; default: " + policies.Default() + ". Keys of the policy, and admission, refused, guard as in the flags eviction_*. May be repeated, in a file as a list; changes without a restart",
			set: setPolicy, reset: func(s *Settings) { s.Policies = nil }},
		{Name: "eviction_module_dir", Type: "string", Group: Ours, Doc: "folder from which mooncake policy set may take policies as WebAssembly modules; default: none. Changes without a restart",
			set: setString(func(s *Settings) *string { return &s.ModuleDir })},
		{Name: "record", Type: "string", Group: Ours, Doc: "record what clients ask for into this new file, for mooncake replay (hashes of keys, no values); .gz or .zst compresses it",
			set: setString(func(s *Settings) *string { return &s.Record })},
		{Name: "record_dir", Type: "string", Group: Ours, Doc: "folder in which mooncake policy record start may make files; default: that of record, else none",
			set: setString(func(s *Settings) *string { return &s.RecordDir })},
		{Name: "record_part_size", Type: "size", Default: "1073741824", Group: Ours, Doc: "size at which a recording goes on in another file, before compression",
			set: func(s *Settings, v string) error {
				n, err := parseSize(v)
				if err == nil && n < units.MiB {
					return wrong("%s is less than 1MB", v)
				}
				if err == nil {
					s.PartBytes = n
				}
				return err
			}},
		{Name: "record_parts", Type: "int", Default: "8", Group: Ours, Doc: "files of a recording that are kept; the oldest is deleted",
			set: setInt(1, 100000, func(s *Settings) *int { return &s.Parts })},
		{Name: "gc_percent", Type: "int", Default: "100", Group: Ours, Doc: "Go's GOGC: how much the heap may grow between collections, in percent; the variable GOGC wins",
			set: setInt(1, 10000, func(s *Settings) *int { return &s.GCPercent })},
	}
}

func setPolicy(s *Settings, v string) error {
	n := policies.Split(strings.TrimSpace(v))
	if n.Text == "" {
		return wrong("a policy's name is missing")
	}
	if err := policies.Check(n.Text); err != nil {
		return problem(err.Error())
	}
	for _, o := range s.Policies {
		if o.Domain == n.Domain {
			return wrong("a second policy for %s, which has %s already", n.Domain, o.Text)
		}
	}
	s.Policies = append(s.Policies, n)
	return nil
}

func setCompat(s *Settings, v string) error {
	for part := range strings.SplitSeq(v, ",") {
		c, err := ParseCompat(strings.TrimSpace(part))
		if err != nil {
			return err
		}
		s.Compat = append(s.Compat, c)
	}
	return nil
}

func setDuration(unit time.Duration, at func(*Settings) *time.Duration) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		d, err := parseDuration(v, unit)
		if err == nil {
			*at(s) = d
		}
		return err
	}
}

func setSize(at func(*Settings) *units.Size) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		n, err := parseSize(v)
		if err == nil {
			*at(s) = n
		}
		return err
	}
}

func setChoice(choices []string, at func(*Settings) *string) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		c, err := oneOf(v, choices)
		if err == nil {
			*at(s) = c
		}
		return err
	}
}

// durationUnits are the units of numbers without one, where upstream has such a flag.
var durationUnits = map[string]time.Duration{
	"default_kv_lease_ttl": time.Millisecond, "default_kv_soft_pin_ttl": time.Millisecond, "max_kv_soft_pin_ttl": time.Millisecond,
	"client_ttl": time.Second, "put_start_discard_timeout_sec": time.Second, "put_start_release_timeout_sec": time.Second,
	"pending_task_timeout_sec": time.Second, "processing_task_timeout_sec": time.Second,
}

// missing are choices that upstream has and this version lacks.
var missing = map[string][]string{
	"allocation_strategy":      {"cxl"},
	"dynamic_replication_mode": {"observe", "enforce"},
}

// masterFlags makes a flag of every key of master.Config, by its tags.
func masterFlags() []Flag {
	var out []Flag
	defaults := reflect.ValueOf(master.DefaultConfig())
	for i := range defaults.NumField() {
		field := defaults.Type().Field(i)
		name := field.Tag.Get("koanf")
		f := Flag{Name: name, Doc: field.Tag.Get("doc"), Group: upstreamGroup(name)}
		at := func(s *Settings) reflect.Value { return reflect.ValueOf(&s.Master).Elem().Field(i) }
		lo, hi := limits(field.Tag.Get("range"))
		switch def := defaults.Field(i).Interface().(type) {
		case bool:
			f.Type, f.Default = "bool", strconv.FormatBool(def)
			f.set = setBool(func(s *Settings) *bool { return at(s).Addr().Interface().(*bool) })
		case string:
			f.Type, f.Default = "string", def
			f.set = setString(func(s *Settings) *string { return at(s).Addr().Interface().(*string) })
			if enum := field.Tag.Get("enum"); enum != "" {
				choices := strings.Split(enum, "|")
				f.Doc += " (" + strings.Join(choices, ", ") + ")"
				f.set = masterChoice(choices, missing[name], func(s *Settings) *string { return at(s).Addr().Interface().(*string) })
			}
		case int:
			f.Type, f.Default = "int", strconv.Itoa(def)
			f.set = setInt(lo.int(math.MinInt64), hi.int(math.MaxInt64), func(s *Settings) *int { return at(s).Addr().Interface().(*int) })
		case float64:
			f.Type, f.Default = "double", strconv.FormatFloat(def, 'g', -1, 64)
			f.set = func(s *Settings, v string) error {
				x, err := parseFloat(v, lo.float(-math.MaxFloat64), hi.float(math.MaxFloat64))
				if err == nil {
					at(s).SetFloat(x)
				}
				return err
			}
		case time.Duration:
			unit := durationUnits[name]
			f.Type, f.Default = "duration", formatDuration(def, unit)
			f.set = setDuration(unit, func(s *Settings) *time.Duration { return at(s).Addr().Interface().(*time.Duration) })
		case units.Size:
			f.Type, f.Default = "size", strconv.FormatUint(uint64(def), 10)
			f.set = setSize(func(s *Settings) *units.Size { return at(s).Addr().Interface().(*units.Size) })
		default:
			panic(fmt.Sprintf("flags: %s has the type %T", name, def))
		}
		if t, ok := upstreamTypes[name]; ok {
			f.Type = t
		}
		if name == "client_ttl" {
			f.Alias = "client_live_ttl_sec"
		}
		out = append(out, f)
	}
	return out
}

// masterChoice is setChoice that names what upstream has and this version lacks.
func masterChoice(choices, missing []string, at func(*Settings) *string) func(*Settings, string) error {
	return func(s *Settings, v string) error {
		if c, err := oneOf(v, missing); err == nil {
			return wrong("%q is not in this version; use %s", c, strings.Join(choices, ", "))
		}
		return setChoice(choices, at)(s, v)
	}
}

// limits reads a range tag; either side may be missing.
func limits(tag string) (lo, hi limit) {
	a, b, _ := strings.Cut(tag, "..")
	return limit(a), limit(b)
}

type limit string

func (l limit) int(none int64) int64 {
	if n, err := strconv.ParseInt(string(l), 10, 64); err == nil {
		return n
	}
	return none
}

func (l limit) float(none float64) float64 {
	if x, err := strconv.ParseFloat(string(l), 64); err == nil {
		return x
	}
	return none
}

// formatDuration is a default as upstream shows it: a plain number in the flag's unit.
func formatDuration(d, unit time.Duration) string {
	switch {
	case unit > 0:
		return strconv.FormatInt(int64(d/unit), 10)
	case d == 0:
		return "0"
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d%time.Second == 0:
		return fmt.Sprintf("%ds", d/time.Second)
	}
	return fmt.Sprintf("%dms", d/time.Millisecond)
}
