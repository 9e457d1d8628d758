package external

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

func TestLife(t *testing.T) {
	g := open(t, faulty(t, "", nil))
	if i := g.Info(); i.Name != "faulty" || i.Kind != pluginv1.Kind_KIND_EVICTION {
		t.Fatalf("info %v", i)
	}
	p := g.Plugin()
	var joined []uint64
	if err := p.Run(within(t, time.Minute), func(_ context.Context, proc *Process) error {
		joined = append(joined, proc.Generation())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	proc, err := p.Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pluginv1.NewEvictionServiceClient(proc.Conn()).Start(t.Context(), &pluginv1.StartPolicyRequest{Capacity: 1, MaxHandles: 1}); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(Running(), p) {
		t.Error("a running plugin is not in the list")
	}
	if s := p.Status(); s.State != StateReady || s.PID == 0 || s.Generation != 1 {
		t.Errorf("status %+v", s)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if proc.Exit() != "exited with status 0" {
		t.Errorf("a plugin that was asked to end: %s", proc.Exit())
	}
	if _, err := p.Process(t.Context()); err == nil {
		t.Error("a stopped plugin has a process")
	}
	if len(joined) != 1 || slices.Contains(Running(), p) {
		t.Errorf("joined %v; still in the list", joined)
	}
}

func TestLogs(t *testing.T) {
	m, err := newMetrics(prometheus.NewRegistry(), "eviction", "test")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	j := newJournal(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), m.silent)
	long := strings.Repeat("x", 3*maxLine)
	j.follow(t.Context(), 2, strings.NewReader("plain\n"+`{"@level":"warn","@message":"json","disk":"a\u001b[31m","@module":"m"}`+"\r\n"+long+"\nlast, without an end"))
	lines := j.last(10)
	if len(lines) != 4 || lines[0].Text != "plain" || lines[1].Level != slog.LevelWarn || lines[1].Text != "json" || lines[3].Text != "last, without an end" {
		t.Fatalf("lines %+v", lines)
	}
	if n := len(lines[2].Text); n > maxLine+3 {
		t.Errorf("a line of %d bytes is kept", n)
	}
	if strings.Contains(out.String(), "\x1b") || !strings.Contains(out.String(), "level=WARN msg=json disk=") || !strings.Contains(out.String(), "generation=2") {
		t.Errorf("records:\n%s", &out)
	}
	for range 3 * lineBurst {
		j.take(3, []byte("again"))
	}
	if n := testutil.ToFloat64(m.silent); n < lineBurst {
		t.Errorf("%v lines were left out", n)
	}
	if n := len(j.last(1_000_000)); n > keptLines {
		t.Errorf("%d lines are kept", n)
	}
}

func TestBucket(t *testing.T) {
	b, now := bucket{rate: 10, burst: 20}, time.Unix(1, 0)
	if w := b.take(20, now); w != 0 {
		t.Errorf("a full bucket waits %v", w)
	}
	if w := b.take(5, now); w != 500*time.Millisecond {
		t.Errorf("five more wait %v", w)
	}
	if b.has(1, now.Add(100*time.Millisecond)) {
		t.Error("an empty bucket has one")
	}
	if !b.has(1, now.Add(time.Second)) {
		t.Error("a bucket does not fill")
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte("plain"))
	f.Add([]byte(`{"@level":"warn","@message":"json","x":{"y":[1]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		text, _, attrs := parseLine(raw)
		if len(text) > maxLine+3 || len(attrs) > maxAttrCount || strings.ContainsAny(text, "\n\x1b") {
			t.Errorf("%q and %d attributes", text, len(attrs))
		}
	})
}

// Two hosts of one machine do not remove each other's folders.
func TestRunDirs(t *testing.T) {
	base := filepath.Join(scratch, "dirs")
	path, err := openRunDir(base)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := openRunDir(base); err != nil || again != path {
		t.Fatalf("%s, %v", again, err)
	}
	removeStale(base) // as another process would
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o700 {
		t.Fatalf("%v, %v", st, err)
	}
	closeRunDir(path)
	closeRunDir(path)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
	open := filepath.Join(scratch, "open")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	for base, want := range map[string]string{open: "mode 0700", filepath.Join(scratch, strings.Repeat("x", maxRunDir)): "at most"} {
		if _, err := openRunDir(base); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", base, err)
		}
	}
}

// A process that cannot be made ready is a failure like any other; Run waits for the next one.
func TestJoinErrorsAreFailures(t *testing.T) {
	p := open(t, faulty(t, "", nil)).Plugin()
	defer p.Stop()
	tries := 0
	err := p.Run(within(t, time.Minute), func(context.Context, *Process) error {
		if tries++; tries == 1 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || p.Status().Generation != 2 || !strings.Contains(p.Status().LastError, "not yet") {
		t.Errorf("%v, %+v", err, p.Status())
	}
}
