package wasm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/evictiontest"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// One factory, several domains at once: each has an instance of its own and they know nothing of each other.
func TestInstancesSideBySide(t *testing.T) {
	f := guest(t, "lru")
	var wg sync.WaitGroup
	answers := make([][]eviction.Handle, 4)
	for i := range answers {
		wg.Go(func() {
			h := evictiontest.NewHost(t, f, spec(100))
			defer h.P.Close()
			h.Work(5, 500, nil)
			answers[i] = h.Victims(evictiontest.Any(100))
		})
	}
	wg.Wait()
	for i, a := range answers {
		if len(a) == 0 || len(a) != len(answers[0]) || a[0] != answers[0][0] || a[len(a)-1] != answers[0][len(a)-1] {
			t.Errorf("instance %d answers otherwise than instance 0", i)
		}
	}
}

// Two that open the same new module at once both get it.
func TestOpenedTwiceAtOnce(t *testing.T) {
	c := file(t, lruBytes(t))
	c.CacheDir = t.TempDir() + "/code"
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			f, err := Open(context.Background(), c, nil)
			if err != nil {
				t.Error(err)
				return
			}
			f.Close()
		})
	}
	wg.Wait()
}

// Nobody closes a factory that a swap has replaced: its machine code goes with it.
func TestDroppedFactoriesFreeTheirCode(t *testing.T) {
	c := config(t, "lru")
	executable := func() (n int) {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(b) {
			if f := bytes.Fields(line); bytes.Contains(f[1], []byte("x")) && len(f) == 5 { // no file behind it
				n++
			}
		}
		return n
	}
	before := executable()
	const n = 40
	for range n {
		f, err := Open(context.Background(), c, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.New(spec(10))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, 30*time.Second, func() error {
		runtime.GC()
		if now := executable(); now >= before+n/2 {
			return fmt.Errorf("%d mappings of machine code, %d before %d factories were made and dropped", now, before, n)
		}
		return nil
	})
}
