package quotas

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "quotas.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// written is what mooncake_master 0.3.13.post1 wrote after four PUTs.
const written = `version: 1

tenants:
  - name: "b:x"
    quota: 1073741824
  - name: "default"
    quota: 1073741824
  - name: "it's"
    quota: 1073741824
  - name: "t9"
    quota: 1000
`

func TestRead(t *testing.T) {
	const gib = 1 << 30
	got, err := Read(write(t, written))
	if diff := cmp.Diff([]Tenant{{"b:x", gib}, {"default", gib}, {"it's", gib}, {"t9", 1000}}, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for _, c := range []struct{ text, want string }{
		{"tenants: []\n", "version is missing"},
		{"version: 2\ntenants: []\n", ":1:1: version: 2 is not known"},
		{"version: 1\n", "tenants is missing or not a list"},
		{"version: 1\ntenants: [x]\n", ":2:1: tenants: entry 1: needs name and quota"},
		{"version: 1\ntenants: [{quota: 1}]\n", "entry 1: name is missing"},
		{"version: 1\ntenants: [{name: a}]\n", `entry 1: "a": quota is missing`},
		{"version: 1\ntenants: [{name: a, quota: 0}]\n", `"a": quota: must be positive`},
		{"version: 1\ntenants: [{name: a, quota: 5 XB}]\n", `"a": quota: "5 XB" has the unknown unit`},
		{"version: 1\ntenants: [{name: a, quota: 1}, {name: a, quota: 1}]\n", `entry 2: "a" is named twice`},
		{"", "is empty"},
	} {
		if _, err := Read(write(t, c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
	if got, err := Read(write(t, `{"version": 1, "tenants": [{"name": "a", "quota": "2GB"}]}`)); err != nil || len(got) != 1 || got[0].Bytes != 2*gib {
		t.Error(got, err)
	}
}

func TestStore(t *testing.T) {
	cfg := master.DefaultConfig()
	cfg.MultiTenants = true
	s, err := master.New(master.Options{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	path := write(t, written)
	store, err := Open(s, path)
	if err != nil {
		t.Fatal(err)
	}
	if q, code := s.TenantQuota("t9"); code != wire.OK || q.Requested != 1000 {
		t.Error(q, code)
	}
	if code := store.SetTenantQuota("new", 5); code != wire.OK {
		t.Error(code)
	}
	if code := store.DeleteTenantQuota("b:x"); code != wire.OK {
		t.Error(code)
	}
	want := []Tenant{{"default", 1 << 30}, {"it's", 1 << 30}, {"new", 5}, {"t9", 1000}}
	if got, err := Read(path); cmp.Diff(want, got) != "" || err != nil {
		t.Error(got, err)
	}
	// A file that cannot be written undoes the change.
	store.path = filepath.Join(t.TempDir(), "gone", "quotas.yaml")
	if code := store.SetTenantQuota("late", 5); code != wire.ErrPersistentFail {
		t.Error(code)
	}
	if code := store.SetTenantQuota("t9", 7); code != wire.ErrPersistentFail {
		t.Error(code)
	}
	if code := store.DeleteTenantQuota("t9"); code != wire.ErrPersistentFail {
		t.Error(code)
	}
	if q, code := s.TenantQuota("t9"); code != wire.OK || q.Requested != 1000 {
		t.Error(q, code)
	}
	if _, code := s.TenantQuota("late"); code == wire.OK {
		t.Error("a tenant without a file entry is registered")
	}
	if _, err := Open(s, write(t, "version: 1\ntenants: [{name: _x, quota: 1}]\n")); err == nil || !strings.Contains(err.Error(), `"_x"`) {
		t.Error(err)
	}
}
