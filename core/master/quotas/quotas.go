// Package quotas keeps the tenants' quotas in a file, as upstream's file connector does
// (--tenant_quota_connector_uri):
//
//	version: 1
//	tenants:
//	  - name: "team-a"
//	    quota: 1073741824
//
// The file is read at the start and written again, whole and atomically, when a quota changes over HTTP.
package quotas

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/core/units"
)

// Tenant is one entry of the file.
type Tenant struct {
	Name  string `yaml:"name"`
	Bytes uint64 `yaml:"quota"`
}

type content struct {
	Version int      `yaml:"version"`
	Tenants []Tenant `yaml:"tenants"`
}

// Read reads a file. The error names the file and what is wrong in it.
func Read(path string) ([]Tenant, error) {
	doc, err := config.ReadDocument(path)
	if err != nil {
		return nil, err
	}
	var problems config.Errors
	bad := func(key, format string, args ...any) {
		problems.Problems = append(problems.Problems, doc.Problem(key, format, args...))
	}
	if v := doc.Value("version"); v == nil {
		return nil, fmt.Errorf("%s: version is missing; write version: 1", path)
	} else if fmt.Sprint(v) != "1" {
		bad("version", "%v is not known; write version: 1", v)
	}
	list, ok := doc.Value("tenants").([]any)
	if !ok {
		return nil, fmt.Errorf("%s: tenants is missing or not a list", path)
	}
	var out []Tenant
	for i, e := range list {
		t, err := tenant(e)
		if err == nil && slices.ContainsFunc(out, func(o Tenant) bool { return o.Name == t.Name }) {
			err = fmt.Errorf("%q is named twice", t.Name)
		}
		if err != nil {
			bad("tenants", "entry %d: %v", i+1, err)
			continue
		}
		out = append(out, t)
	}
	if len(problems.Problems) > 0 {
		return nil, &problems
	}
	return out, nil
}

func tenant(e any) (t Tenant, err error) {
	m, ok := e.(map[string]any)
	if !ok {
		return t, errors.New("needs name and quota")
	}
	if t.Name, ok = m["name"].(string); !ok || t.Name == "" {
		return t, errors.New("name is missing")
	}
	var text string
	switch v := m["quota"].(type) {
	case string:
		text = v
	case json.Number:
		text = v.String()
	default:
		return t, fmt.Errorf("%q: quota is missing", t.Name)
	}
	n, err := units.ParseSize(text)
	if err == nil && n == 0 {
		err = errors.New("must be positive")
	}
	if err != nil {
		return t, fmt.Errorf("%q: quota: %w", t.Name, err)
	}
	t.Bytes = uint64(n)
	return t, nil
}

// Write replaces a file by one with these tenants, in order of their names.
func Write(path string, tenants []Tenant) error {
	tenants = slices.Clone(tenants)
	slices.SortFunc(tenants, func(a, b Tenant) int { return strings.Compare(a.Name, b.Name) })
	if tenants == nil {
		tenants = []Tenant{}
	}
	b, err := yaml.Marshal(content{Version: 1, Tenants: tenants})
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// Store is a master whose quotas are kept in a file.
type Store struct {
	*master.Service
	path string
	mu   sync.Mutex // one change at a time
}

// Open reads the file and registers its tenants with the service.
func Open(s *master.Service, path string) (*Store, error) {
	tenants, err := Read(path)
	if err != nil {
		return nil, err
	}
	for _, t := range tenants {
		if code := s.SetTenantQuota(t.Name, t.Bytes); code != wire.OK {
			return nil, fmt.Errorf("%s: tenant %q: %w", path, t.Name, code)
		}
	}
	return &Store{Service: s, path: path}, nil
}

// SetTenantQuota is the service's, and is undone if the file cannot be written.
func (s *Store) SetTenantQuota(name string, bytes uint64) wire.ErrorCode {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, had := s.Service.TenantQuota(name)
	if code := s.Service.SetTenantQuota(name, bytes); code != wire.OK {
		return code
	}
	if s.save() == nil {
		return wire.OK
	}
	if had == wire.OK && old.Requested > 0 {
		s.Service.SetTenantQuota(name, old.Requested)
	} else {
		s.Service.DeleteTenantQuota(name)
	}
	return wire.ErrPersistentFail
}

// DeleteTenantQuota is the service's, and is undone if the file cannot be written.
func (s *Store) DeleteTenantQuota(name string) wire.ErrorCode {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, _ := s.Service.TenantQuota(name)
	if code := s.Service.DeleteTenantQuota(name); code != wire.OK {
		return code
	}
	if s.save() == nil {
		return wire.OK
	}
	s.Service.SetTenantQuota(name, old.Requested)
	return wire.ErrPersistentFail
}

func (s *Store) save() error {
	all, code := s.Service.TenantQuotas()
	if code != wire.OK {
		return code
	}
	var out []Tenant
	for _, t := range all {
		if t.Requested > 0 {
			out = append(out, Tenant{t.Name, t.Requested})
		}
	}
	return Write(s.path, out)
}
