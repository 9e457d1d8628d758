package module

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type thing struct{ size int }

type thingConfig struct{ Size int }

func (c *thingConfig) Validate() error {
	if c.Size < 0 {
		return errors.New("size: must not be negative")
	}
	return nil
}

type setSize int

func (s setSize) Decode(into any) error { into.(*thingConfig).Size = int(s); return nil }

func newThings() *Kind[*thing] {
	k := NewKind[*thing]("thing")
	build := func(_ context.Context, _ Env, c thingConfig) (*thing, error) { return &thing{c.Size}, nil }
	Define(k, "tcp", "a plain thing", thingConfig{Size: 7}, build)
	Define(k, "verbs", "a fast thing", thingConfig{}, build, Alias("rdma"),
		Probe(func() error { return fmt.Errorf("libibverbs.so.1 not found: %w", ErrSkip) }))
	k.Absent("etcd", "a far thing", "not in this build (-tags noetcd)")
	return k
}

func TestBuildStartsFromDefaults(t *testing.T) {
	k := newThings()
	for _, c := range []struct {
		name string
		s    Section
		want int
	}{{"empty section equals defaults", NoConfig{}, 7}, {"set", setSize(3), 3}} {
		t.Run(c.name, func(t *testing.T) {
			got, err := k.Build(context.Background(), "TCP", Env{}, c.s)
			if err != nil || got.size != c.want {
				t.Fatalf("got %+v, %v; want size %d", got, err, c.want)
			}
		})
	}
	if _, err := k.Build(context.Background(), "tcp", Env{Name: "front"}, setSize(-1)); err == nil || !strings.HasPrefix(err.Error(), "front: size: ") {
		t.Fatalf("invalid config: %v", err)
	}
	if err := k.Check("rdma", setSize(-1)); err == nil {
		t.Fatal("Check accepted an invalid config")
	}
}

func TestUnknownTypeNamesWhatIsThere(t *testing.T) {
	_, err := newThings().Resolve("rmda")
	want := `no thing of type "rmda"; this binary has: etcd, tcp, verbs (rdma); did you mean rdma?`
	if err == nil || err.Error() != want {
		t.Fatalf("got  %v\nwant %s", err, want)
	}
	if !errors.Is(err, ErrUnknown) {
		t.Fatal("does not wrap ErrUnknown")
	}
	if n, err := newThings().Resolve("rdma"); n != "verbs" || err != nil {
		t.Fatalf("alias: %q, %v", n, err)
	}
}

func TestListKeepsSkippedParts(t *testing.T) {
	got := newThings().List()
	want := []Info{
		{Kind: "thing", Name: "etcd", Doc: "a far thing", State: Skipped, Reason: "not in this build (-tags noetcd)"},
		{Kind: "thing", Name: "tcp", Doc: "a plain thing", State: Available, Defaults: thingConfig{Size: 7}},
		{Kind: "thing", Name: "verbs", Doc: "a fast thing", Aliases: []string{"rdma"}, State: Skipped, Reason: "libibverbs.so.1 not found", Defaults: thingConfig{}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
	_, err := newThings().Build(context.Background(), "etcd", Env{}, NoConfig{})
	if !errors.Is(err, ErrSkip) {
		t.Fatalf("building an absent part: %v", err)
	}
}

func TestDuplicateNamePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	newThings().Absent("rdma", "", "")
}

func TestNearest(t *testing.T) {
	names := []string{"transfer_timeout", "metadata_server", "tcp", "shm", "protocol"}
	for in, want := range map[string]string{
		"tansfer_timeout": "transfer_timeout", "metadata-server": "metadata_server", "Tcp": "tcp",
		"smh": "shm", "zzz": "", "": "", "protocl": "protocol", "quota": "",
	} {
		if got := Nearest(in, names); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", in, got, want)
		}
	}
}
