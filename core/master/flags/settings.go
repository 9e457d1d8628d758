package flags

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/master/policies"
	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/core/telemetry"
	"github.com/mooncake-agent/mooncake/core/units"
)

// Settings are the values of all flags that have an effect.
type Settings struct {
	Master master.Config
	RPC    rpc.ServerConfig
	Log    telemetry.LogConfig

	Address, Interface  string
	RPCPort, Port       int    // RPCPort 0 means Port
	PortKey             string // which of the two counts
	Threads, MaxThreads int
	Compat              []Compat
	Bind                string

	MetricsHost string
	MetricsPort int
	Reporting   bool // log the summary now and then

	MetadataServer  bool
	MetadataHost    string
	MetadataPort    int
	MetadataCleanup bool

	QuotaFile string
	// Policies are the eviction policies by domain; see [policies.WithDefault].
	Policies  []policies.Named
	ModuleDir string // of modules that mooncake policy set may name
	Record    string // file
	RecordDir string
	PartBytes units.Size
	Parts     int
	GCPercent int
}

// Compat is a listener whose callers all speak one version.
type Compat struct {
	Version wire.Version
	Host    string // "": as the main listener
	Port    int
}

// String is the form that --rpc_compat takes.
func (c Compat) String() string {
	if c.Host == "" {
		return fmt.Sprintf("%s:%d", c.Version, c.Port)
	}
	return c.Version.String() + ":" + net.JoinHostPort(c.Host, strconv.Itoa(c.Port))
}

// ParseCompat reads "0.3.7:50057" or "0.3.7:127.0.0.1:50057".
func ParseCompat(s string) (Compat, error) {
	version, rest, ok := strings.Cut(s, ":")
	v, err := wire.ParseVersion(version)
	if err != nil {
		return Compat{}, wrong("%v", err)
	}
	host, port := "", rest
	if strings.Contains(rest, ":") {
		if host, port, err = net.SplitHostPort(rest); err != nil {
			return Compat{}, wrong("%q is not host:port", rest)
		}
	}
	n, err := parseInt(port, 1, 65535)
	if !ok || err != nil {
		return Compat{}, wrong("%q: write a version and a port, for example 0.3.7:50057", s)
	}
	return Compat{Version: v, Host: host, Port: int(n)}, nil
}

// Defaults are the settings without any flag.
func Defaults() Settings {
	s := Settings{
		Master: master.DefaultConfig(), RPC: rpc.DefaultServerConfig(), Log: telemetry.DefaultLog(),
		Address: "0.0.0.0", Port: 50051, MaxThreads: 16,
		MetricsHost: "0.0.0.0", MetricsPort: 9003, Reporting: true,
		MetadataHost: "0.0.0.0", MetadataPort: 8080,
		PartBytes: units.GiB, Parts: 8, GCPercent: 100,
	}
	return s
}

// settle derives what depends on several flags and checks what single values cannot tell. given names the
// flags that were set.
func (s *Settings) settle(given map[string]bool) (warnings []string, err error) {
	var errs []error
	s.PortKey = "rpc_port"
	if s.RPCPort == 0 {
		s.RPCPort, s.PortKey = s.Port, "port"
	} else if given["port"] && s.Port != s.RPCPort {
		warnings = append(warnings, fmt.Sprintf("port: %d is ignored, rpc_port is %d", s.Port, s.RPCPort))
	}
	if s.QuotaFile != "" && !s.Master.MultiTenants {
		warnings = append(warnings, "tenant_quota_connector_uri: no effect without enable_multi_tenants")
		s.QuotaFile = ""
	}
	for _, p := range s.Policies {
		if p.Domain != policies.Everyone && !s.Master.MultiTenants {
			warnings = append(warnings, fmt.Sprintf("eviction_policy: %s=%s: no effect without enable_multi_tenants", p.Domain, p.Text))
		}
	}
	if s.RecordDir == "" && s.Record != "" {
		s.RecordDir = filepath.Dir(s.Record)
	}
	if s.Bind != "" {
		for name, host := range map[string]*string{"rpc_address": &s.Address, "metrics_host": &s.MetricsHost, "http_metadata_server_host": &s.MetadataHost} {
			if !given[name] {
				*host = s.Bind
			}
		}
	}
	if s.Interface != "" {
		addr, err := interfaceAddress(s.Interface)
		if err != nil {
			errs = append(errs, fmt.Errorf("rpc_interface: %w", err))
		} else {
			s.Address = addr
		}
	}
	// More event loops than CPUs only add wake-ups; the default of package rpc is fewer.
	switch cpus := runtime.GOMAXPROCS(0); {
	case s.Threads > 0:
		s.RPC.Loops = min(s.Threads, cpus)
	case s.MaxThreads < min(max(cpus/4, 1), 8):
		s.RPC.Loops = s.MaxThreads
	}
	errs = append(errs, s.Master.Validate(), s.RPC.Validate(), s.Log.Validate(), s.ports())
	return warnings, errors.Join(errs...)
}

// ports finds listeners that want the same port.
func (s *Settings) ports() error {
	type use struct{ flag, host string }
	taken := map[int]use{}
	var errs []error
	claim := func(flag, host string, port int) {
		if port == 0 {
			return
		}
		old, clash := taken[port]
		if clash && (old.host == host || wildcard(old.host) || wildcard(host)) {
			errs = append(errs, fmt.Errorf("%s: port %d is also that of %s", flag, port, old.flag))
			return
		}
		taken[port] = use{flag, host}
	}
	claim(s.PortKey, s.Address, s.RPCPort)
	claim("metrics_port", s.MetricsHost, s.MetricsPort)
	if s.MetadataServer {
		claim("http_metadata_server_port", s.MetadataHost, s.MetadataPort)
	}
	for _, c := range s.Compat {
		host := c.Host
		if host == "" {
			host = s.Address
		}
		claim("rpc_compat", host, c.Port)
	}
	return errors.Join(errs...)
}

func wildcard(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }

// interfaceAddress is the first IPv4 address of a network interface.
func interfaceAddress(name string) (string, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return "", fmt.Errorf("no network interface %q: %w", name, err)
	}
	addrs, err := i.Addrs()
	if err != nil {
		return "", fmt.Errorf("addresses of %q: %w", name, err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
			return n.IP.String(), nil
		}
	}
	return "", fmt.Errorf("interface %q has no IPv4 address", name)
}

// RPCListen, AdminListen and MetadataListen are the addresses to bind.
func (s *Settings) RPCListen() string { return net.JoinHostPort(s.Address, strconv.Itoa(s.RPCPort)) }

// AdminListen is the address of the admin HTTP server.
func (s *Settings) AdminListen() string {
	return net.JoinHostPort(s.MetricsHost, strconv.Itoa(s.MetricsPort))
}

// MetadataListen is the address of the HTTP metadata server, "" if it is off.
func (s *Settings) MetadataListen() string {
	if !s.MetadataServer {
		return ""
	}
	return net.JoinHostPort(s.MetadataHost, strconv.Itoa(s.MetadataPort))
}

// ReportInterval is how often the summary is logged.
const ReportInterval = 10 * time.Second

// Listen is the address to bind, on the main listener's host if it has none of its own.
func (c Compat) Listen(host string) string {
	if c.Host != "" {
		host = c.Host
	}
	return net.JoinHostPort(host, strconv.Itoa(c.Port))
}

// Changed names what differs between two settings but for what can change without a restart: the log level, the
// eviction policies and the folder of their modules.
func Changed(a, b *Settings) (out []string) {
	var walk func(prefix string, x, y reflect.Value)
	walk = func(prefix string, x, y reflect.Value) {
		for i := range x.NumField() {
			f := x.Type().Field(i)
			name := f.Tag.Get("koanf")
			if name == "" {
				name = f.Name
			}
			switch {
			case prefix+name == "log.level", prefix+name == "Policies", prefix+name == "ModuleDir":
			case f.Type.Kind() == reflect.Struct:
				walk(strings.ToLower(name)+".", x.Field(i), y.Field(i))
			case !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()):
				out = append(out, strings.TrimPrefix(prefix+name, "master."))
			}
		}
	}
	walk("", reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
	return out
}
