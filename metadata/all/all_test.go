package all

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/metadata"
)

func TestEveryBackendIsListed(t *testing.T) {
	var names []string
	for _, i := range metadata.Kind.List() {
		names = append(names, i.Name)
		if i.State == module.Skipped && !strings.Contains(i.Reason, "-tags no"+i.Name) {
			t.Errorf("%s is skipped without its reason: %q", i.Name, i.Reason)
		}
	}
	if want := []string{"etcd", "http", "memory", "redis"}; !slices.Equal(names, want) {
		t.Fatalf("this binary lists %v, want %v", names, want)
	}
}

// S16: every scheme of metadata_server names a backend, or an error lists what there is.
func TestSchemes(t *testing.T) {
	for scheme, c := range map[string]struct{ name, url string }{
		"etcd": {"etcd", "etcd://h:2379"}, "ETCD": {"etcd", "h:2379"}, "redis": {"redis", "redis://h"},
		"http": {"http", "http://h/metadata"}, "https": {"http", "https://h/metadata"}, "memory": {"memory", "memory://"},
	} {
		if name, err := metadata.Kind.Resolve(scheme); err != nil || name != c.name {
			t.Errorf("%s: %q, %v; want %s", scheme, name, err, c.name)
		}
		b, err := metadata.Kind.Build(context.Background(), scheme, module.Env{}, section(c.url))
		if errors.Is(err, module.ErrSkip) {
			continue // left out of this binary
		}
		if err != nil {
			t.Errorf("%s: %v", scheme, err)
			continue
		}
		if err := b.Close(); err != nil {
			t.Errorf("%s: %v", scheme, err)
		}
	}
	for _, scheme := range []string{"consul", "mongodb", "foo", ""} {
		_, err := metadata.Kind.Resolve(scheme)
		if !errors.Is(err, module.ErrUnknown) || !strings.Contains(err.Error(), "etcd, http (https), memory, redis") {
			t.Errorf("%s: %v", scheme, err)
		}
	}
}

// section is a config section with only a url.
type section string

// Decode sets the field URL, which every backend's config has.
func (s section) Decode(into any) error {
	reflect.ValueOf(into).Elem().FieldByName("URL").SetString(string(s))
	return nil
}
