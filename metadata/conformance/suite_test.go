package conformance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/internal/conform"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// faulty breaks one rule of the four basic calls, and of List.
type faulty struct {
	metadata.Backend
	fault string
}

func (f *faulty) Get(ctx context.Context, key string) (metadata.Entry, error) {
	if f.fault == "ignores the context" {
		ctx = context.Background()
	}
	e, err := f.Backend.Get(ctx, key)
	if f.fault == "errors without a class" && err != nil {
		err = errors.New("gone")
	}
	return e, err
}

func (f *faulty) Put(ctx context.Context, key string, value []byte) error {
	switch f.fault {
	case "folds letters":
		key = strings.ToLower(key)
	case "strips newlines":
		value = []byte(strings.TrimSpace(string(value)))
	case "takes an empty key":
		if key == "" {
			return nil
		}
	case "limits values":
		if len(value) > 64<<10 {
			return metadata.ErrTooLarge
		}
	}
	return f.Backend.Put(ctx, key, value)
}

func (f *faulty) Delete(ctx context.Context, key string) error {
	if _, err := f.Backend.Get(ctx, key); f.fault == "refuses a second delete" && err != nil {
		return err
	}
	return f.Backend.Delete(ctx, key)
}

func (f *faulty) Close() error {
	if f.fault == "is not closed by Close" {
		return nil
	}
	return f.Backend.Close()
}

func (f *faulty) List(ctx context.Context, prefix string) ([]metadata.Entry, error) {
	all, err := f.Backend.(metadata.Lister).List(ctx, prefix)
	if f.fault == "lists in no order" {
		slices.Reverse(all)
	}
	return all, err
}

// failed runs the checks that need no feature but list on a backend with a fault, and returns the names of those that
// failed.
func failed(fault string) (names []string) {
	store := memory.NewStore()
	svc := Service{Open: func(T) metadata.Backend { return &faulty{store.Open(), fault} }}
	for _, c := range Checks(svc, Declared{Lister: true}) {
		if fault == "is not closed by Close" && c.Name == "nothing leaks" {
			continue
		}
		if o := conform.Run(c.Name, time.Minute, c.Run); len(o.Failures) > 0 {
			names = append(names, c.Name)
		}
	}
	return names
}

func TestSuiteFindsFaults(t *testing.T) {
	for fault, check := range map[string]string{
		"errors without a class":  "get of an absent key",
		"folds letters":           "odd keys are distinct",
		"strips newlines":         "put then get",
		"takes an empty key":      "the empty key is refused",
		"limits values":           "large values",
		"refuses a second delete": "delete is idempotent",
		"is not closed by Close":  "calls after close",
		"ignores the context":     "an ended context",
		"lists in no order":       "list",
	} {
		if got := failed(fault); !slices.Contains(got, check) {
			t.Errorf("a backend that %s fails %q, want %q among them", fault, got, check)
		}
	}
	if got := failed(""); len(got) > 0 {
		t.Errorf("a backend without a fault fails %q", got)
	}
}

func TestDeclaredBy(t *testing.T) {
	b := memory.NewStore().Open()
	defer b.Close()
	if got, want := DeclaredBy(b), (Declared{Lister: true, Committer: true, Watcher: true, Leaser: true}); got != want {
		t.Errorf("%T declares %+v", b, got)
	}
	if got := DeclaredBy(&faulty{}); got != (Declared{Lister: true}) {
		t.Errorf("declares %+v", got)
	}
}
