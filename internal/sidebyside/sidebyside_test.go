package sidebyside

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestQuietKeepsTheLeastDisturbedRun(t *testing.T) {
	loads := []float64{0.9, 0.3, 0.5, 0.1, 0.0}
	n := 0
	type sample struct{ foreign, n float64 }
	foreign := func(s sample) float64 { return s.foreign }
	for _, c := range []struct {
		limit float64
		want  float64 // which run
		runs  int
	}{{0, 1, 1}, {0.4, 2, 2}, {0.15, 4, 4}, {0.95, 1, 1}, {0.000001, 5, 5}} {
		n = 0
		s, err := Quiet(c.limit, foreign, func() (sample, error) { n++; return sample{loads[n-1], float64(n)}, nil })
		if err != nil || s.n != c.want || n != c.runs {
			t.Errorf("limit %v: run %v of %d, %v; want run %v of %d", c.limit, s.n, n, err, c.want, c.runs)
		}
	}
	n = 0
	if _, err := Quiet(0.001, foreign, func() (sample, error) { n++; return sample{foreign: 1}, errors.New("no") }); err == nil || n != 1 {
		t.Errorf("a failed run was repeated %d times", n)
	}
}

func TestStatistics(t *testing.T) {
	if Median(nil) != 0 || Median([]float64{3, 1}) != 2 || Median([]float64{5, 1, 2}) != 2 {
		t.Error("median")
	}
	// The median of the ratios is not the ratio of the medians.
	if r, ok := Ratio([]float64{2, 1, 9}, []float64{1, 2, 3}); r != 2 || !ok {
		t.Errorf("ratio %v, %v", r, ok)
	}
	if r, ok := Ratio([]float64{2, 3}, []float64{0}); ok {
		t.Errorf("ratio of nothing: %v", r)
	}
	if s := Runs([]float64{2, 1}, "%.1f"); s != "[1.0, 2.0]" {
		t.Error(s)
	}
	if !slices.Equal(Order(0), []int{Ours, Theirs}) || !slices.Equal(Order(1), []int{Theirs, Ours}) {
		t.Error("order")
	}
}

func TestMeasure(t *testing.T) {
	t.Setenv("MOONCAKE_X", "1")
	t.Setenv("MC_X", "1")
	t.Setenv("some_proxy", "1")
	r, err := Measure(Command(t.Context(), "sh", "-c", `env | grep -E 'MOONCAKE_X|MC_X|some_proxy'; echo out; echo err >&2`), os.Getpid())
	if err != nil || r.Stdout != "out\n" || r.Stderr != "err\n" || r.Foreign < 0 {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = Measure(Command(t.Context(), "sh", "-c", "echo why >&2; exit 3"))
	if ee := new(exec.ExitError); !errors.As(err, &ee) || ee.ExitCode() != 3 || !strings.Contains(err.Error(), "why") {
		t.Errorf("failed program: %v", err)
	}
	if _, err := Measure(Command(t.Context(), "true"), 1<<30); err == nil {
		t.Error("measured with a process that cannot exist")
	}
}

func TestStart(t *testing.T) {
	if _, err := Start(t.Context(), Command(t.Context(), "sh", "-c", "echo broken >&2; exit 1"), func() error { return errors.New("not yet") }); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a program that ends at once: %v", err)
	}
	n := 0
	p, err := Start(t.Context(), Command(t.Context(), "sleep", "100"), func() error {
		if n++; n < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if p.PID() <= 0 || n != 3 {
		t.Errorf("pid %d, asked %d times", p.PID(), n)
	}
	begin := time.Now()
	p.Stop()
	if d := time.Since(begin); d >= stopTimeout {
		t.Errorf("stop took %v", d)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Command(t.Context(), "sleep", "100"), func() error { return errors.New("never") }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled start: %v", err)
	}
}

func TestListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := Listens(l.Addr().String())(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if Listens(l.Addr().String())() == nil {
		t.Error("nobody listens")
	}
	if n, err := FreePort(); n == 0 || err != nil {
		t.Errorf("port %d, %v", n, err)
	}
}

func TestFindWheel(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("MOONCAKE_CACHE", dir)
	if found, err := FindWheel("wheel-0.3.13.*", "bin", "python"); err == nil || !strings.Contains(err.Error(), "make setup") {
		t.Errorf("%q, %v", found, err)
	}
	want := filepath.Join(dir, "wheel-0.3.13.post1", "bin", "python")
	if err := os.MkdirAll(filepath.Dir(want), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(want, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if found, err := FindWheel("wheel-0.3.13.*", "bin", "python"); err != nil || found != want {
		t.Errorf("%q, %v", found, err)
	}
}

func TestTail(t *testing.T) {
	var l lastBytes
	for range 100 {
		if _, err := l.Write([]byte(strings.Repeat("x", 100))); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.b) != 4096 || len(l.String()) != 600 {
		t.Errorf("%d bytes kept, %d shown", len(l.b), len(l.String()))
	}
}
