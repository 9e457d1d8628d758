package replay

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/eviction/trace"
)

// rec is one call of a client. Keys that were not found are negative.
type rec struct {
	op   trace.Op
	ms   uint64
	keys []int
}

func record(tb testing.TB, w *trace.Writer, first uint32, deepestFirst bool, calls []rec) {
	tb.Helper()
	for i, c := range calls {
		for j := range c.keys {
			k := j
			if deepestFirst {
				k = len(c.keys) - 1 - j
			}
			q := trace.Record{Op: c.op, Batch: first + uint32(i), TimeMS: c.ms, Key: uint64(max(c.keys[k], -c.keys[k])), Flags: trace.Found, Size: 64}
			if c.keys[k] < 0 {
				q.Flags, q.Size = 0, 0
			}
			if k > 0 {
				q.Parent = uint64(max(c.keys[k-1], -c.keys[k-1]))
			}
			if err := w.Append(&q); err != nil {
				tb.Fatal(err)
			}
		}
	}
}

// TestRecordingRequests checks which requests come of which calls.
func TestRecordingRequests(t *testing.T) {
	const get, put, exist, remove = trace.Get, trace.Put, trace.Exist, trace.Remove
	type req struct {
		Kind  Kind
		MS    uint64
		Names []uint64
	}
	for name, c := range map[string]struct {
		calls []rec
		want  []req
	}{
		"question, get, put": {
			[]rec{{exist, 1, []int{1, 2, -3, -4}}, {get, 2, []int{1, 2}}, {put, 90, []int{3, 4}}},
			[]req{{Wanted, 1, []uint64{1, 2, 3, 4}}},
		},
		"get, put": {
			[]rec{{get, 2, []int{1, -2, -3}}, {put, 3, []int{2, 3}}},
			[]req{{Wanted, 2, []uint64{1, 2, 3}}},
		},
		"only a question":   {[]rec{{exist, 1, []int{1, 2}}, {get, 2, []int{9}}}, []req{{Wanted, 2, []uint64{9}}}},
		"all are new":       {[]rec{{exist, 1, []int{-1, -2}}, {put, 5, []int{1, 2}}}, []req{{Wanted, 1, []uint64{1, 2}}}},
		"put of a new tail": {[]rec{{get, 1, []int{1, -2}}, {put, 5, []int{2, 3}}}, []req{{Wanted, 1, []uint64{1, 2}}, {Stored, 5, []uint64{3}}}},
		"put alone":         {[]rec{{put, 5, []int{2, 3}}}, []req{{Stored, 5, []uint64{2, 3}}}},
		"put much later":    {[]rec{{get, 1, []int{-1}}, {put, 1 + claimMS + 1, []int{1}}}, []req{{Wanted, 1, []uint64{1}}, {Stored, 2 + claimMS, []uint64{1}}}},
		"again":             {[]rec{{get, 1, []int{1}}, {get, 2, []int{1}}}, []req{{Wanted, 1, []uint64{1}}, {Wanted, 2, []uint64{1}}}},
		"asked twice":       {[]rec{{exist, 1, []int{-1}}, {exist, 2, []int{-1}}, {put, 3, []int{1}}}, []req{{Wanted, 2, []uint64{1}}}},
		"key twice in call": {[]rec{{get, 1, []int{1, 1, -2, -2}}}, []req{{Wanted, 1, []uint64{1, 2}}}},
		"removed":           {[]rec{{put, 1, []int{1, 2}}, {remove, 2, []int{2}}}, []req{{Stored, 1, []uint64{1, 2}}, {Removed, 2, []uint64{2}}}},
		"evictions are the store's business": {
			[]rec{{put, 1, []int{1}}, {trace.Evict, 2, []int{1}}, {trace.Resize, 3, []int{0}}, {9, 4, []int{1}}}, []req{{Stored, 1, []uint64{1}}},
		},
	} {
		for _, deepestFirst := range []bool{false, true} {
			var b bytes.Buffer
			w, err := trace.NewWriter(&b, trace.Header{BlockTokens: 16})
			if err != nil {
				t.Fatal(err)
			}
			record(t, w, 1, deepestFirst, c.calls)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			tr, err := Read("t", &b, ReadOptions{})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			var got []req
			for i := range tr.Requests {
				r := &tr.Requests[i]
				got = append(got, req{r.Kind, r.TimeMS, tr.appendNames(nil, i)})
				if r.Kind == Wanted && r.Tokens != 16*r.n {
					t.Errorf("%s: %d tokens in %d blocks", name, r.Tokens, r.n)
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("%s, deepest first %v (-want +got):\n%s", name, deepestFirst, d)
			}
			for id := range tr.sizes {
				if tr.sizes[id] != 64 {
					t.Errorf("%s: size %d, want 64 from get or put", name, tr.sizes[id])
				}
			}
		}
	}
}

// TestRecordingParts reads a rotated recording whose last part was cut, where a question is in one part and its answer in the next.
func TestRecordingParts(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.rec"), filepath.Join(dir, "b.rec.zst")
	w, err := trace.Create(a, trace.Header{})
	if err != nil {
		t.Fatal(err)
	}
	record(t, w, 1, false, []rec{{trace.Exist, 1, []int{1, -2}}, {trace.Exist, 2, []int{7}}})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w, err = trace.Create(b, trace.Header{Part: 1}); err != nil {
		t.Fatal(err)
	}
	record(t, w, 3, false, []rec{{trace.Get, 3, []int{1}}, {trace.Put, 4, []int{2}}})
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	record(t, w, 9, false, []rec{{trace.Get, 9, []int{1}}})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b, s[:len(s)-8], 0o600); err != nil {
		t.Fatal(err)
	}
	tr, err := OpenFiles([]string{a, b}, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.Requests) != 1 || len(tr.Blocks(0)) != 2 || tr.Requests[0].TimeMS != 1 {
		t.Errorf("requests %v", flatten(tr))
	}
	warnings := strings.Join(tr.Warnings, "\n")
	if !strings.Contains(warnings, "b.rec.zst ends in the middle of a block: read the 2 records before it") || !strings.Contains(warnings, "left out 1 calls") {
		t.Errorf("warnings %q", warnings)
	}
	if _, err := OpenFiles([]string{b, a}, ReadOptions{}); err == nil || !strings.Contains(err.Error(), "a.rec") || !strings.Contains(err.Error(), "is before") {
		t.Errorf("parts in the wrong order: %v", err)
	}
	other := filepath.Join(dir, "c.jsonl")
	if err := os.WriteFile(other, []byte(bailianOK), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFiles([]string{a, other}, ReadOptions{}); err == nil || !strings.Contains(err.Error(), "several files can only be the parts of one recording") {
		t.Errorf("a recording and another file: %v", err)
	}
}
