package examples

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/plugins/wasm"
)

// BenchmarkLoad takes the LRU in each language from file to factory, compiled anew and from the cache, and makes an
// instance for 4096 objects.
func BenchmarkLoad(b *testing.B) {
	for _, name := range []string{"lru-c", "lru-as", "lru-rust", "lru-go"} {
		c := wasm.DefaultConfig()
		c.Module = wasmFile(b, name)
		load := func(b *testing.B, compiled bool) *wasm.Factory {
			f, err := wasm.Open(context.Background(), c, nil)
			if err != nil || f.Info().Compiled != compiled {
				b.Fatal(err)
			}
			return f
		}
		b.Run(name+"/cold", func(b *testing.B) {
			for b.Loop() {
				c.CacheDir = filepath.Join(b.TempDir(), time.Now().Format("150405.000000000"))
				load(b, true).Close()
			}
		})
		c.CacheDir = filepath.Join(b.TempDir(), "cache")
		f, err := wasm.Open(context.Background(), c, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name+"/cached", func(b *testing.B) {
			for b.Loop() {
				load(b, false).Close()
			}
		})
		b.Run(name+"/instance", func(b *testing.B) {
			for b.Loop() {
				p, err := f.New(eviction.Spec{Capacity: 1 << 20, MaxHandles: 4096, Tenant: eviction.AnyTenant})
				if err != nil {
					b.Fatal(err)
				}
				p.Close()
			}
		})
		f.Close()
	}
}
