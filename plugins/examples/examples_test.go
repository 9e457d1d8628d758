package examples

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	_ "github.com/mooncake-agent/mooncake/eviction/all"
	"github.com/mooncake-agent/mooncake/eviction/evictiontest"
	"github.com/mooncake-agent/mooncake/eviction/replay"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(goDir)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// fresh is the folder where make plugins built the examples, if the tests are to use that.
var fresh = os.Getenv("MOONCAKE_PLUGINS")

// wasmFile is the path of an example that is built: from testdata or fresh, those in Go built here.
func wasmFile(tb testing.TB, name string) string {
	tb.Helper()
	if strings.HasSuffix(name, "-go") && raceDetector {
		tb.Skip("guests in Go are tested without -race only (make test-plugins)")
	}
	switch {
	case fresh != "":
		return filepath.Join(fresh, name+".wasm")
	case strings.HasSuffix(name, "-go"):
		return builtGo(tb, name)
	}
	return filepath.Join("testdata", name+".wasm")
}

var (
	goLock sync.Mutex
	goDir  string
)

func builtGo(tb testing.TB, name string) string {
	tb.Helper()
	goLock.Lock()
	defer goLock.Unlock()
	if goDir == "" {
		dir, err := os.MkdirTemp("", "examples")
		if err != nil {
			tb.Fatal(err)
		}
		goDir = dir
	}
	out := filepath.Join(goDir, name+".wasm")
	if _, err := os.Stat(out); err == nil {
		return out
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-buildmode=c-shared", "-ldflags=-s -w", "-o", out, "./"+name)
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("go build %s: %v\n%s", name, err, text)
	}
	return out
}

func native(tb testing.TB, name string) eviction.Factory {
	tb.Helper()
	f, err := eviction.Kind.Build(context.Background(), name, module.Env{}, module.NoConfig{})
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

var trace = sync.OnceValues(func() (*replay.Trace, error) {
	return replay.Open("../../eviction/replay/testdata/conversation.trace")
})

func conversation(tb testing.TB) *replay.Trace {
	tb.Helper()
	t, err := trace()
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// watched notes each victim.
type watched struct {
	eviction.Policy
	victims []eviction.Handle
}

func (w *watched) Victims(dst []eviction.Handle, need eviction.Need) ([]eviction.Handle, error) {
	at := len(dst)
	dst, err := w.Policy.Victims(dst, need)
	w.victims = append(w.victims, dst[at:]...)
	return dst, err
}

// run replays the conversation trace.
func run(tb testing.TB, f eviction.Factory, capacity uint64) ([]eviction.Handle, replay.Result) {
	tb.Helper()
	var w *watched
	r, err := replay.Run(conversation(tb), eviction.FactoryFunc(func(s eviction.Spec) (eviction.Policy, error) {
		p, err := f.New(s)
		w = &watched{Policy: p}
		return w, err
	}), capacity, replay.Options{Seed: 1})
	if err != nil {
		tb.Fatal(err)
	}
	return w.victims, r
}

func sameVictims(tb testing.TB, what string, got, want []eviction.Handle) {
	tb.Helper()
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			tb.Fatalf("%s: victim %d of %d is handle %d, want %d", what, i, len(want), got[i], want[i])
		}
	}
	if len(got) != len(want) || len(want) == 0 {
		tb.Fatalf("%s: %d victims, want %d and some", what, len(got), len(want))
	}
}

// The same policy in four languages decides as the built-in one, each time.
func TestLRU(t *testing.T) {
	want := map[uint64][]eviction.Handle{}
	if !raceDetector {
		for _, c := range []uint64{1000} {
			want[c], _ = run(t, native(t, "lru"), c)
		}
	}
	for _, name := range []string{"lru-c", "lru-go", "lru-rust", "lru-as"} {
		t.Run(name, func(t *testing.T) {
			h := newPlainHost(t, wasmFile(t, name))
			evictiontest.Run(t, h, evictiontest.Options{Foreign: true, ExactRestore: true})
			for c, want := range want {
				got, _ := run(t, h, c)
				sameVictims(t, fmt.Sprintf("%d blocks", c), got, want)
			}
		})
	}
}

func TestS3FIFO(t *testing.T) {
	h := newPlainHost(t, wasmFile(t, "s3fifo-c"))
	evictiontest.Run(t, h, evictiontest.Options{Foreign: true})
	for _, c := range []uint64{1000, 5000} {
		if raceDetector {
			break
		}
		_, own := run(t, h, c)
		_, builtIn := run(t, native(t, "s3fifo"), c)
		if own.BlockHit() < builtIn.BlockHit()-0.005 || own.PrefixHit() < builtIn.PrefixHit()-0.005 {
			t.Errorf("%d blocks: block and prefix hit %.4f %.4f, the built-in s3fifo has %.4f %.4f", c, own.BlockHit(), own.PrefixHit(), builtIn.BlockHit(), builtIn.PrefixHit())
		}
	}
	g, err := h.start(eviction.Spec{Capacity: 100, MaxHandles: 100}, `{"small": 1.0, "promote": 1}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
}

// The memory and the fuel that a guest has by default are enough for a master with millions of objects.
func TestExamplesStartWithManyObjects(t *testing.T) {
	if raceDetector {
		t.Skip("skipped: the race detector sees nothing of guests")
	}
	for _, name := range []string{"lru-c", "lru-go", "lru-rust", "lru-as", "s3fifo-c", "classes-go"} {
		g, err := newPlainHost(t, wasmFile(t, name)).start(eviction.Spec{Capacity: 8 << 40, MaxHandles: 8 << 20}, "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestClasses(t *testing.T) {
	h := newPlainHost(t, wasmFile(t, "classes-go"))
	evictiontest.Run(t, h, evictiontest.Options{Foreign: true})
	_, own := run(t, h, 20000)
	_, lru := run(t, native(t, "lru"), 20000)
	if own.PrefixHit() < lru.PrefixHit() {
		t.Errorf("prefix hit %.4f, lru has %.4f", own.PrefixHit(), lru.PrefixHit())
	}
}

func TestScores(t *testing.T) {
	records := []eviction.Event{{Kind: eviction.Tick, NowMS: 1000}}
	for i := range 64 { // last used 0, 10, 20, ... ms; once each
		records = append(records, eviction.Event{Kind: eviction.Candidate, Handle: eviction.Handle(64 - i), NowMS: uint64(10 * i), Req: 1})
	}
	for _, name := range []string{"score-wat", "score-c"} {
		t.Run(name, func(t *testing.T) {
			g, err := newPlainHost(t, wasmFile(t, name)).start(eviction.Spec{Capacity: 100, MaxHandles: 100}, "")
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{64, 1, 17} {
				scores, err := g.Score(records[:n+1])
				if err != nil || len(scores) != n {
					t.Fatalf("%d scores of %d, error %v", len(scores), n, err)
				}
				for i := 1; i < n; i++ {
					if !(scores[i] > scores[i-1]) {
						t.Errorf("score %d is %v, of the block used before it %v", i, scores[i], scores[i-1])
					}
				}
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// What is in testdata is what the compilers make of the sources, as far as one can tell from what it decides.
func TestRebuilt(t *testing.T) {
	if fresh == "" {
		t.Skip("make test-plugins runs this: it builds the examples")
	}
	kept, err := filepath.Glob("testdata/*.wasm")
	if err != nil || len(kept) < 6 {
		t.Fatalf("%d modules in testdata, error %v", len(kept), err)
	}
	for _, path := range kept {
		name := strings.TrimSuffix(filepath.Base(path), ".wasm")
		t.Run(name, func(t *testing.T) {
			now := filepath.Join(fresh, name+".wasm")
			a, errA := os.ReadFile(path)
			b, errB := os.ReadFile(now)
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			if bytes.Equal(a, b) {
				return
			}
			t.Logf("testdata has %d bytes, the compiler made %d: comparing what they decide", len(a), len(b))
			if strings.HasPrefix(name, "score") {
				TestScores(t)
				return
			}
			got, _ := run(t, newPlainHost(t, now), 5000)
			want, _ := run(t, newPlainHost(t, path), 5000)
			sameVictims(t, name, got, want)
		})
	}
}

// Examples are short, and each is in the list.
func TestSources(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*-*/*")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d examples, error %v", len(files), err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { // programs of their own are as long as they need
		folder := filepath.Dir(f)
		external := strings.HasPrefix(f, "external-")
		if external && !strings.Contains(string(readme), "]("+folder+") |") {
			t.Errorf("%s is not in README.md", folder)
		}
		return external
	})
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte("\n")); n >= 150 {
			t.Errorf("%s has %d lines, an example has less than 150", f, n)
		}
		if strings.HasPrefix(f, "score") {
			code := 0
			for line := range strings.Lines(string(text)) {
				if l := strings.TrimSpace(line); l != "" && !strings.HasPrefix(l, "/*") && !strings.HasPrefix(l, ";;") {
					code++
				}
			}
			if code > 10 {
				t.Errorf("%s has %d lines of code, score mode takes ten", f, code)
			}
		}
		if !strings.Contains(string(readme), "]("+filepath.ToSlash(f)+") |") {
			t.Errorf("%s is not in README.md", f)
		}
	}
}
