package rdma

import (
	"log/slog"
	"reflect"
	"testing"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

// section sets fields of a part's config.
type section map[string]any

func (s section) Decode(into any) error {
	v := reflect.ValueOf(into).Elem()
	for name, value := range s {
		f := v.FieldByName(name)
		f.Set(reflect.ValueOf(value).Convert(f.Type()))
	}
	return nil
}

func verbs(t testing.TB, s section) transports.Transport {
	t.Helper()
	tr, err := transports.Kind.Build(t.Context(), "verbs", module.Env{Log: slog.New(slog.DiscardHandler)}, s)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// The suite that every transport passes, on real queue pairs.
func TestConformance(t *testing.T) {
	machine(t)
	transporttest.Run(t, transporttest.Harness{Access: true, Keyed: true, Largest: 1<<20 + 3, New: func(t testing.TB) transports.Transport {
		return verbs(t, section{"Devices": []string{"rxe0"}})
	}})
}
