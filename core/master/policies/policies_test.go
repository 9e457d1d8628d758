package policies

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/module"
	_ "github.com/mooncake-agent/mooncake/eviction/adaptive"
	_ "github.com/mooncake-agent/mooncake/eviction/lru"
	_ "github.com/mooncake-agent/mooncake/eviction/lruk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSplit(t *testing.T) {
	for _, c := range []struct{ text, domain, policy string }{
		{"lru", "*", "lru"}, {"lru-k:k=3", "*", "lru-k:k=3"}, {"team-a=lru", "team-a", "lru"}, {"team-a=lru-k:k=3", "team-a", "lru-k:k=3"},
		{"*=lru", "*", "lru"}, {"=lru", "*", "lru"}, {"wasm:module=/a=b", "*", "wasm:module=/a=b"},
		{"/a=b/c.wasm", "*", "/a=b/c.wasm"}, {"team-a=/a=b/c.wasm:reserve=0", "team-a", "/a=b/c.wasm:reserve=0"},
	} {
		n := Split(c.text)
		if n.Domain != c.domain || n.Text != c.policy {
			t.Errorf("%q: %+v", c.text, n)
		}
		if again := Split(n.String()); again != n {
			t.Errorf("%q: %+v is written %q and read %+v", c.text, n, n, again)
		}
	}
}

func TestBuild(t *testing.T) {
	p, err := Build(t.Context(), "lru-k:k=3,admission=on,refused=evict,guard=alarm", module.Env{})
	if err != nil || p.Factory == nil || p.Admission != "on" || p.Refused != "evict" || p.Guard != "alarm" || p.Name != "lru-k:k=3,admission=on,refused=evict,guard=alarm" {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := Build(t.Context(), "native", module.Env{}); err != nil || p.Factory != nil {
		t.Errorf("native: %+v, %v", p, err)
	}
	for _, c := range []struct{ text, want string }{
		{"lru:guard=maybe", `guard: "maybe" is not known`}, {"lru:admission=yes", "on or off"}, {"lru:refused=x", "no_space or evict"}, {"lur", "did you mean lru?"},
		{"lru-k:k=9", "from 2 to 4"}, {"lru-k:kk=2", "unknown key"}, {"native:k=1", "native has no settings"}, {"", "a name is missing"},
	} {
		if err := Check(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Check %q: %v, want %s", c.text, err, c.want)
		}
		if _, err := Build(t.Context(), c.text, module.Env{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Build %q: %v, want %s", c.text, err, c.want)
		}
	}
	if _, err := BuildAll(t.Context(), []Named{{"a", "lru"}, {"a", "lru"}}, module.Env{}); err == nil {
		t.Error("two policies of one domain")
	}
	if got := fmt.Sprint(WithDefault([]Named{{"a", "lru"}})); got != "[adaptive a=lru]" {
		t.Error(got)
	}
	if got := fmt.Sprint(WithDefault([]Named{{"*", "lru"}})); got != "[lru]" {
		t.Error(got)
	}
}

// service is a master with tenants.
func service(t *testing.T, list ...Named) *master.Service {
	t.Helper()
	built, err := BuildAll(t.Context(), list, module.Env{})
	if err != nil {
		t.Fatal(err)
	}
	c := master.DefaultConfig()
	c.MultiTenants, c.DefaultQuota = true, 1<<30
	s, err := master.New(master.Options{Config: c, Seed: 1, Policies: built})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func inForce(s *master.Service) string {
	var out []string
	for _, d := range s.Policies() {
		out = append(out, d.Name+"="+d.Policy)
	}
	return strings.Join(out, " ")
}

// A changed configuration changes what differs, and leaves alone what was set by hand.
func TestReload(t *testing.T) {
	from := []Named{{"*", "lru"}, {"a", "lru-k"}, {"b", "lru"}}
	s := service(t, from...)
	m := NewManager(s, module.Env{}, "")
	if err := m.Set(t.Context(), "b", "native"); err != nil {
		t.Fatal(err)
	}
	to := []Named{{"*", "adaptive"}, {"b", "lru"}, {"c", "lru-k:k=3"}}
	changed, err := m.Reload(t.Context(), from, to)
	if err != nil || fmt.Sprint(changed) != "[* c a]" {
		t.Errorf("changed %v, %v", changed, err)
	}
	if got := inForce(s); got != "*=adaptive b=native c=lru-k:k=3" {
		t.Errorf("in force: %s", got)
	}
	if _, err := m.Reload(t.Context(), to, []Named{{"*", "lru"}, {"c", "lur"}}); err == nil {
		t.Error("a bad policy was taken")
	}
	if got := inForce(s); got != "*=adaptive b=native c=lru-k:k=3" {
		t.Errorf("after a refused reload: %s", got)
	}
	if err := m.Rollback(""); err != nil {
		t.Fatal(err)
	}
	if got := inForce(s); got != "*=lru b=native c=lru-k:k=3" {
		t.Errorf("after a rollback: %s", got)
	}
	if err := m.Drop("c"); err != nil {
		t.Fatal(err)
	}
	if err := m.Drop("c"); err == nil {
		t.Error("dropped twice")
	}
	if err := m.Rollback("nobody"); err == nil || !strings.Contains(err.Error(), `no eviction domain "nobody"; there are: *, b`) {
		t.Error(err)
	}
	if err := m.Set(t.Context(), "", "lur"); err == nil || !strings.Contains(err.Error(), "did you mean") {
		t.Error(err)
	}
	if _, err := m.Reload(t.Context(), []Named{{"*", "lru"}}, nil); err != nil {
		t.Fatal(err)
	}
	if got := inForce(s); got != "*=native b=native" {
		t.Errorf("without a policy: %s", got)
	}
}
