package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"

	"go.uber.org/fx"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/master"
	masteradmin "github.com/mooncake-agent/mooncake/core/master/admin"
	"github.com/mooncake-agent/mooncake/core/master/policies"
	"github.com/mooncake-agent/mooncake/core/master/serve"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/telemetry"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/eviction"
)

// MasterConfig is the config section "master": a Store master inside the node.
type MasterConfig struct {
	Listen string `koanf:"listen" doc:"host:port on which the node serves as master of a Store; empty: it is none"`
	Admin  string `koanf:"admin" doc:"host:port of the master's own admin server with upstream's paths; empty: none"`

	master.Config `koanf:",squash"`
	RPC           rpc.ServerConfig `koanf:"rpc"`
}

// DefaultMasterConfig returns the defaults of the section.
func DefaultMasterConfig() MasterConfig {
	return MasterConfig{Config: master.DefaultConfig(), RPC: rpc.DefaultServerConfig()}
}

// Validate checks what the tags cannot express.
func (c *MasterConfig) Validate() error {
	for _, a := range []struct{ key, addr string }{{"listen", c.Listen}, {"admin", c.Admin}} {
		if a.addr == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(a.addr); err != nil {
			return fmt.Errorf("%s: %q is not host:port", a.key, a.addr)
		}
	}
	if c.Listen == "" && c.Admin != "" {
		return fmt.Errorf("admin: there is no master without listen")
	}
	if err := c.Config.Validate(); err != nil {
		return err
	}
	return c.RPC.Validate()
}

// EvictionConfig are the keys of the config section "eviction" besides the tenants.
type EvictionConfig struct {
	ModuleDir string `koanf:"module_dir" doc:"folder from which mooncake policy set may take WebAssembly modules; empty: none"`
}

// embeddedMaster is the master inside the node.
type embeddedMaster struct {
	server *serve.Server // nil: none
	env    func(config.Instance) module.Env
	log    *slog.Logger
}

func newMaster(lc fx.Lifecycle, p *Plan, admin *telemetry.Admin, log *slog.Logger, reg *telemetry.Registry, v telemetry.Version) (*embeddedMaster, error) {
	if p.Embedded.Listen == "" {
		return &embeddedMaster{}, nil
	}
	m := &embeddedMaster{env: env(log, reg), log: log}
	rules, err := m.build(p.Eviction)
	if err != nil {
		return nil, err
	}
	s, err := serve.New(serve.Options{
		Config: serve.Config{
			RPC: p.Embedded.RPC, Listen: serve.Listener{Key: "master.listen", Addr: p.Embedded.Listen},
			Admin: serve.Listener{Key: "master.admin", Addr: p.Embedded.Admin}, ModuleDir: p.EvictionShared.ModuleDir,
		},
		Master: p.Embedded.Config, Policies: rules, Probe: handshake.Probe, Log: log, Metrics: reg, Version: v,
	})
	if err != nil {
		return nil, fmt.Errorf("master: %w", err)
	}
	admin.Ready("master", func(context.Context) error { return s.Ready() })
	for _, path := range []string{masteradmin.PoliciesPath, masteradmin.PoliciesPath + "/rollback", masteradmin.RecordingPath} {
		admin.Handle(path, "the embedded master's eviction policies (changes: loopback or socket only)", s.Handler())
	}
	lc.Append(fx.Hook{OnStart: s.Start, OnStop: s.Close})
	m.server = s
	return m, nil
}

// build makes the configured policies, by tenant.
func (m *embeddedMaster) build(list []config.Instance) (map[string]master.Policy, error) {
	out := map[string]master.Policy{}
	for _, i := range list {
		f, err := eviction.Kind.Build(context.Background(), i.Type, m.env(i), i.Section)
		if err != nil {
			return nil, fmt.Errorf("eviction: %w", err)
		}
		out[i.Name] = master.Policy{Name: i.Type, Factory: f}
	}
	if _, ok := out[policies.Everyone]; !ok {
		p, err := policies.Build(context.Background(), policies.Default(), m.env(config.Instance{Name: policies.Everyone}))
		if err != nil {
			return nil, fmt.Errorf("eviction: %w", err)
		}
		out[policies.Everyone] = p
	}
	return out, nil
}

// reload changes the policies of the domains that a new configuration changes: their keys are among the changed
// ones. What was set by hand stays otherwise.
func (m *embeddedMaster) reload(list []config.Instance, shared EvictionConfig, changes []config.Change) {
	if m.server == nil {
		return
	}
	m.server.Policies().SetModuleDir(shared.ModuleDir)
	changed := func(domain string) bool {
		return slices.ContainsFunc(changes, func(c config.Change) bool {
			return c.Key == evictionKey+"."+domain || strings.HasPrefix(c.Key, evictionKey+"."+domain+".")
		})
	}
	built, err := m.build(list)
	if err != nil {
		m.log.Error("reload: eviction policies", "error", err)
		return
	}
	for domain, p := range built {
		if !changed(domain) {
			continue
		}
		if err := m.server.Service().SetPolicy(domain, p); err != nil {
			m.log.Error("reload: eviction policy", "error", err)
			continue
		}
		m.log.Info("reload: eviction policy changed", "domain", domain, "policy", p.Name)
	}
	for _, d := range m.server.Service().Policies() {
		if _, stays := built[d.Name]; !stays && changed(d.Name) {
			if err := m.server.Service().DropPolicy(d.Name); err != nil {
				m.log.Error("reload: eviction policy", "error", err)
			}
		}
	}
}

// dial is the address at which the node itself reaches its master.
func (m *embeddedMaster) dial() string {
	addr := m.server.Addr()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.Is6() && !ip.Is4In6() {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port)
}

// evictionInstances are the configured policies; without a master they have no effect.
func evictionInstances(l *config.Loaded, embedded bool) ([]config.Instance, *config.Problem) {
	list := l.Instances(evictionKey)
	if len(list) > 0 && !embedded {
		return nil, &config.Problem{Key: evictionKey, Msg: "has no effect: this node is no master (master.listen)"}
	}
	return list, nil
}
