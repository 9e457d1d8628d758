package policies

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/module"
)

// Service is what a [Manager] changes, a [master.Service].
type Service interface {
	Store
	RollbackPolicy(domain string) error
	Policies() []master.DomainStats
}

var _ Service = (*master.Service)(nil)

// Manager changes the policies of a running master by their texts. Safe for concurrent use; changes are made one
// after the other.
type Manager struct {
	store Service
	env   module.Env
	log   *slog.Logger

	mu  sync.Mutex // one change at a time
	dir string     // of modules, "" = none
}

// NewManager makes a manager. env is what the policies are built with, dir the folder from which [Manager.Set] takes
// modules; "" = it takes none.
func NewManager(store Service, env module.Env, dir string) *Manager {
	log := env.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Manager{store: store, env: env, log: log, dir: absolute(dir)}
}

// SetModuleDir changes the folder of modules. Policies in force stay.
func (m *Manager) SetModuleDir(dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dir = absolute(dir)
}

// ModuleDir is the folder of modules, "" if there is none.
func (m *Manager) ModuleDir() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dir
}

// absolute names a folder so that messages help a reader who is elsewhere.
func absolute(dir string) string {
	if dir == "" {
		return ""
	}
	if abs, err := filepath.Abs(dir); err == nil { // fails without a working folder only
		return abs
	}
	return filepath.Clean(dir)
}

// Set changes the policy of a domain ("" is everyone), see [master.Service.SetPolicy]. A module's file must lie in
// the configured folder; otherwise the error wraps [ErrModule]. What the configuration says (Reload) may lie
// anywhere.
func (m *Manager) Set(ctx context.Context, domain, text string) error {
	if domain == "" {
		domain = Everyone
	}
	p, err := m.build(ctx, text)
	if err != nil {
		return fmt.Errorf("eviction policy %q: %w", p.Name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.store.SetPolicy(domain, p); err != nil {
		return err
	}
	m.log.Info("eviction policy changed", "domain", domain, "policy", p.Name)
	return nil
}

// build makes the policy of a text from outside; an error comes with the policy's name.
func (m *Manager) build(ctx context.Context, text string) (master.Policy, error) {
	typ, params, p, err := parse(text)
	if err != nil {
		p.Name = text
		return p, err
	}
	if _, named := params[cacheKey]; named {
		return p, fmt.Errorf("%s: what lies there is executed, so only the configuration may name it", cacheKey)
	}
	if file, named := params[moduleKey]; named {
		if params[moduleKey], err = m.locate(file); err != nil {
			return p, err
		}
	}
	return build(ctx, typ, params, p, m.env)
}

// Drop ends a tenant's own policy.
func (m *Manager) Drop(domain string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.store.DropPolicy(domain); err != nil {
		return err
	}
	m.log.Info("eviction policy dropped", "domain", domain)
	return nil
}

// Rollback brings the policy before the last change back.
func (m *Manager) Rollback(domain string) error {
	if domain == "" {
		domain = Everyone
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.store.RollbackPolicy(domain); err != nil {
		return err
	}
	m.log.Info("eviction policy rolled back", "domain", domain)
	return nil
}

// Reload changes from one list to another, as a changed configuration says. All policies are built before the
// first change. It returns the domains that changed.
func (m *Manager) Reload(ctx context.Context, from, to []Named) (changed []string, err error) {
	built, err := BuildAll(ctx, to, m.env)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return Apply(m.store, from, to, built)
}

// List describes all domains.
func (m *Manager) List() []master.DomainStats { return m.store.Policies() }
