package replay

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/mooncake-agent/mooncake/eviction/trace"
)

// flat is what a trace says, with the blocks by name.
type flat struct {
	Time           uint64
	Tokens, Output uint32
	Tenant         uint32
	Kind           Kind
	Names          []uint64
	Sizes          []uint64
}

func flatten(t *Trace) []flat {
	var out []flat
	for i := range t.Requests {
		r := &t.Requests[i]
		f := flat{r.TimeMS, r.Tokens, r.Output, r.Tenant, r.Kind, t.appendNames(nil, i), nil}
		for _, id := range t.Blocks(i) {
			f.Sizes = append(f.Sizes, t.Size(id))
		}
		out = append(out, f)
	}
	return out
}

// full is a trace with everything that any form can hold.
func full(tb testing.TB, blockTokens uint32) *Trace {
	tb.Helper()
	b := NewBuilder("full", blockTokens)
	for i, q := range []struct {
		kind  Kind
		names []uint64
	}{
		{Wanted, []uint64{7, 8, 1 << 63}}, {Wanted, []uint64{7, 8, 9}}, {Stored, []uint64{100}}, {Wanted, []uint64{1}}, {Removed, []uint64{9}}, {Wanted, []uint64{7, 8, 9}},
	} {
		sizes := make([]uint64, len(q.names))
		for k, name := range q.names {
			sizes[k] = name%5 + 1
		}
		r := Request{TimeMS: uint64(1000 * i), Tokens: uint32(len(q.names))*blockTokens - 3, Output: 9, Tenant: uint32(i % 2), Kind: q.kind}
		if err := b.AddRequest(r, q.names, sizes); err != nil {
			tb.Fatal(err)
		}
	}
	return b.Trace()
}

// TestConvert writes and reads every form and checks that what it can hold is the same, and that Loses names the rest.
func TestConvert(t *testing.T) {
	wanted := func(keep func(*flat)) func([]flat) []flat {
		return func(in []flat) (out []flat) {
			for _, f := range in {
				if f.Kind == Wanted {
					keep(&f)
					out = append(out, f)
				}
			}
			return out
		}
	}
	ones := func(f *flat) {
		f.Tenant = 0
		for i := range f.Sizes {
			f.Sizes[i] = 1
		}
	}
	for _, c := range []struct {
		form   Format
		tokens uint32
		lost   int
		keeps  func([]flat) []flat
	}{
		{Mooncake, 512, 3, wanted(ones)},
		{Bailian, 16, 3, wanted(ones)},
		{CSV, 0, 0, func(f []flat) []flat { return f }},
		{Oracle, 0, 4, nil},
		{Compact, 512, 3, nil},
		{Recording, 16, 1, nil},
	} {
		tr := full(t, max(1, c.tokens))
		if c.tokens == 0 {
			tr.BlockTokens = 0
		}
		if lost := Loses(tr, c.form); len(lost) != c.lost {
			t.Errorf("%s loses %q, want %d things", c.form, lost, c.lost)
		}
		var b bytes.Buffer
		if err := Write(&b, tr, c.form); err != nil {
			t.Fatalf("%s: %v", c.form, err)
		}
		o := ReadOptions{}
		if c.form == Oracle || c.form == CSV {
			o.Format = c.form
		}
		got, err := Read("t", &b, o)
		if err != nil {
			t.Errorf("%s: %v", c.form, err)
			continue
		}
		if c.tokens != 0 && got.BlockTokens != c.tokens {
			t.Errorf("%s: %d tokens in a block, want %d", c.form, got.BlockTokens, c.tokens)
		}
		if c.keeps != nil {
			if d := cmp.Diff(c.keeps(flatten(tr)), flatten(got)); d != "" {
				t.Errorf("%s (-written +read):\n%s", c.form, d)
			}
			continue
		}
		// The others have names of their own: the same cache tells.
		if a, b := Infinite(tr, Options{}), Infinite(got, Options{}); a.Hits != b.Hits && c.form != Compact && c.form != Oracle || a.Accesses != b.Accesses {
			t.Errorf("%s: infinite cache %+v, want %+v", c.form, b, a)
		}
	}
}

// TestConvertKeepsHits sends a whole trace through each form, compressed, and replays it.
func TestConvertKeepsHits(t *testing.T) {
	tr, err := Generate("agent", 1, 20_000)
	if err != nil {
		t.Fatal(err)
	}
	lru := policy(t, "lru")
	want := mustRun(t, tr, lru, 500, Options{})
	dir := t.TempDir()
	for _, form := range Formats {
		for _, suffix := range []string{".gz", ".zst", ""} {
			path := filepath.Join(dir, string(form)+".x"+suffix)
			err := trace.WriteNew(path, func(w io.Writer) error { return Write(w, tr, form) })
			if form == Bailian {
				if !errors.Is(err, ErrTrace) {
					t.Errorf("512-token blocks in %s: %v", form, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			o := ReadOptions{}
			if form == Oracle || form == CSV {
				o.Format = form
			}
			got, err := OpenFiles([]string{path}, o)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			r := mustRun(t, got, lru, 500, Options{HeadFirst: form == Oracle})
			if form == Oracle { // single blocks
				if want := mustRun(t, tr, lru, 500, Options{HeadFirst: true}); r.Hits != want.Hits {
					t.Errorf("%s: %d hits, want %d", path, r.Hits, want.Hits)
				}
			} else if r.Prefix != want.Prefix || r.Hits != want.Hits {
				t.Errorf("%s: %d prefix hits, %d hits, want %d and %d", path, r.Prefix, r.Hits, want.Prefix, want.Hits)
			}
			if len(got.SHA256) != 64 {
				t.Errorf("%s: SHA-256 %q", path, got.SHA256)
			}
			if err := trace.WriteNew(path, func(io.Writer) error { return nil }); !errors.Is(err, os.ErrExist) {
				t.Errorf("%s: overwritten: %v", path, err)
			}
		}
	}
}

const bailianOK = `{"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 33, "output_length": 7, "type": "text", "turn": 2, "hash_ids": [1089, 1090, 6326]}` + "\n"

func TestReadersNameThePlace(t *testing.T) {
	oracle := make([]byte, 50)
	oracle[0] = 9
	for name, c := range map[string]struct {
		file string
		in   string
		o    ReadOptions
		want string
	}{
		"unknown form":       {"t", "hello", ReadOptions{}, "t: cannot tell what form this trace has: name one of mooncake, bailian, oracleGeneral, csv, compact, recording"},
		"empty":              {"t", "", ReadOptions{}, "t: cannot tell what form"},
		"bailian field":      {"t", bailianOK + `{"chat_id": 1}`, ReadOptions{}, "t:2: Bailian JSONL: want an object with chat_id, parent_chat_id, timestamp"},
		"bailian type":       {"t", bailianOK + "\n" + strings.Replace(bailianOK, "61.114", `"x"`, 1), ReadOptions{}, "t:3: Bailian JSONL: timestamp: want a number, got string"},
		"bailian time":       {"t", strings.Replace(bailianOK, "61.114", "-1", 1), ReadOptions{}, "t:1: Bailian JSONL: timestamp: time -1 is negative or too large"},
		"bailian order":      {"t", bailianOK + strings.Replace(bailianOK, "61.1", "60.1", 1), ReadOptions{}, "t:2: Bailian JSONL: time 60114 ms is before the 61114 ms of the request before (read it sorted by time)"},
		"bailian cut":        {"t", bailianOK + bailianOK[:40], ReadOptions{}, "t:2: Bailian JSONL: want one JSON object: unexpected end"},
		"oracle cut":         {"t.oracleGeneral", string(oracle), ReadOptions{}, "t.oracleGeneral: record 2: oracleGeneral: time 0 ms is before the 9000 ms"},
		"oracle end":         {"t.oracleGeneral", string(oracle[:30]), ReadOptions{}, "t.oracleGeneral: record 2: oracleGeneral: 6 bytes at the end, want 24"},
		"csv header":         {"t.csv", "a,b\n1,2\n", ReadOptions{}, `t.csv:1: csv: no column "time_ms" for time in the header (a, b): name columns by header or number`},
		"csv number":         {"t.csv", "t,k\n1,2\nx,3\n", ReadOptions{CSV: mustCSV(t, "time=t,key=k")}, `t.csv:3:1: csv: column t: "x": want a number`},
		"csv size":           {"t.csv", "1,2,3\n1,2,-3\n", ReadOptions{CSV: mustCSV(t, "time=1,key=2,size=3")}, `t.csv:2:5: csv: column 3: "-3": want a whole number of 63 bits, not negative`},
		"csv few":            {"t.csv", "1,2,3\n", ReadOptions{CSV: mustCSV(t, "time=1,key=7")}, `t.csv:1: csv: 3 columns, want at least 7`},
		"csv uneven":         {"t.csv", "1,2\n3\n", ReadOptions{CSV: mustCSV(t, "time=1,key=2")}, `t.csv:2:1: csv: wrong number of fields`},
		"csv key":            {"t.csv", "1,2\n3,\n", ReadOptions{CSV: mustCSV(t, "time=1,key=2")}, `t.csv:2:3: csv: column 2: it is empty: want a key`},
		"csv op":             {"t.csv", "1,2,set\n", ReadOptions{CSV: mustCSV(t, "time=1,key=2,op=3")}, `t.csv:1:5: csv: column 3: "set": want get, put or remove`},
		"csv time goes back": {"t.csv", "5,2\n4,2\n", ReadOptions{CSV: mustCSV(t, "time=1,key=2")}, `t.csv:2: csv: time 4 ms is before the 5 ms`},
		"compact":            {"t", compactMagic + "x", ReadOptions{}, "t: compact trace: "},
		"recording":          {"t", trace.Magic + "{}\n", ReadOptions{}, "t: recording: no get or put in it"},
		"gzip":               {"t", "\x1f\x8bx", ReadOptions{}, "t: "},
	} {
		_, err := Read(c.file, strings.NewReader(c.in), c.o)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: error %v, want it to begin with %q", name, err, c.want)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func mustCSV(tb testing.TB, text string) CSVSpec {
	tb.Helper()
	s, err := ParseCSVSpec(text)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestBailian(t *testing.T) {
	tr, err := Read("t", strings.NewReader(bailianOK), ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []flat{{61114, 33, 7, 0, Wanted, []uint64{1089, 1090, 6326}, []uint64{1, 1, 1}}}
	if d := cmp.Diff(want, flatten(tr)); d != "" || tr.BlockTokens != 16 || !tr.partial(&tr.Requests[0]) {
		t.Errorf("%d tokens a block, (-want +got):\n%s", tr.BlockTokens, d)
	}
}

func TestSort(t *testing.T) {
	in := `{"timestamp": 5, "hash_ids": [1]}` + "\n" + `{"timestamp": 3, "hash_ids": [2]}` + "\n" + `{"timestamp": 5, "hash_ids": [3]}`
	tr, err := Read("t", strings.NewReader(in), ReadOptions{Sort: true})
	if err != nil {
		t.Fatal(err)
	}
	var names []uint64
	for i := range tr.Requests {
		names = tr.appendNames(names, i)
	}
	if d := cmp.Diff([]uint64{2, 1, 3}, names); d != "" {
		t.Errorf("order: %s", d)
	}
}

func TestCSVColumns(t *testing.T) {
	const in = "when;object;who;prev\n1.5;a;3;\n1.5;b;3;a\n2;c;3;b\n2;d;0;c\n2;d;0;a\n"
	tr, err := Read("t", strings.NewReader(in), ReadOptions{Format: CSV, CSV: mustCSV(t, "time=when,key=object,tenant=who,parent=prev,unit=s,sep=;")})
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for i := range tr.Requests {
		got = append(got, int(tr.Requests[i].TimeMS), len(tr.Blocks(i)))
	}
	// c names b as parent but comes at another time; the second d does not follow a.
	if d := cmp.Diff([]int{1500, 2, 2000, 2, 2000, 1}, got); d != "" {
		t.Errorf("times and lengths of requests: %s", d)
	}
	for text, want := range map[string]string{
		"key=1":               "csv columns: time and key are needed",
		"time=1,key":          `csv columns: "key": want name=column, such as time=1`,
		"time=1,key=2,unit=h": `csv columns: unit "h": want ns, us, ms or s`,
		"time=1,key=2,sep=ab": `csv columns: sep "ab": want one character, or tab`,
		"time=1,key=2,foo=3":  `csv columns: no column "foo"; there are: time, key, size, request,`,
	} {
		if _, err := ParseCSVSpec(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestDamagedCompression(t *testing.T) {
	var z, g bytes.Buffer
	zw, _ := zstd.NewWriter(&z)
	gw := gzip.NewWriter(&g)
	for _, w := range []io.WriteCloser{zw, gw} {
		if err := errors.Join(writeMooncake(w, full(t, 512)), w.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for name, b := range map[string][]byte{"zst": z.Bytes(), "gz": g.Bytes()} {
		if _, err := Read("t", bytes.NewReader(b[:len(b)/2]), ReadOptions{}); err == nil || !strings.HasPrefix(err.Error(), "t") {
			t.Errorf("half of a file in %s: %v", name, err)
		}
	}
}

// FuzzRead gives the readers, told apart by the first byte, anything; what they take can be replayed and written.
func FuzzRead(f *testing.F) {
	forms := []Format{Mooncake, Bailian, Oracle, CSV, Recording}
	for i, form := range forms {
		var b bytes.Buffer
		tr := full(f, 16)
		if err := Write(&b, tr, form); err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b.Bytes(), false)
	}
	f.Add(uint8(1), []byte(bailianOK), true)
	f.Fuzz(func(t *testing.T, form uint8, in []byte, sort bool) {
		tr, err := Read("f", bytes.NewReader(in), ReadOptions{Format: forms[int(form)%len(forms)], Sort: sort})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f") {
				t.Fatalf("the error does not name the file: %v", err)
			}
			return
		}
		if tr.Accesses() > 10_000 {
			return
		}
		inf, best := Infinite(tr, Options{}), Min(tr, tr.Footprint()/2+1, Options{})
		if inf.Accesses != best.Accesses || best.Hits > inf.Hits {
			t.Fatalf("infinite %+v, min %+v", inf, best)
		}
		for _, form := range []Format{CSV, Recording, Oracle} {
			if err := Write(io.Discard, tr, form); err != nil && !errors.Is(err, ErrTrace) {
				t.Fatal(err)
			}
		}
		Analyze(tr)
	})
}

func FuzzParse(f *testing.F) {
	f.Add("time=1,key=2,size=3,unit=s,sep=;")
	f.Add("prefix(lru-k:k=3,order=head,5%) >= block(min,5000) - 0.3%")
	f.Add("5000,64GB,0.05,5%,auto")
	tr := full(f, 16)
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = ParseCSVSpec(text)
		if a, err := ParseAssertion(text); err == nil {
			_, _, _ = a.Check([]Row{{Policy: "lru", Size: 5, SizeArg: "5"}})
		}
		if sizes, err := ParseCapacities(text, tr, 16); err == nil {
			for _, s := range sizes {
				if s.Units == 0 {
					t.Errorf("%q gives a size of 0", text)
				}
			}
		}
		_, _ = decodeRows("f", strings.NewReader(text))
	})
}
