package trace

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sample is traffic of every form: chains in both orders, single keys, many batches.
func sample(n int) []Record {
	r := rand.New(rand.NewPCG(1, 2))
	var out []Record
	now, batch := uint64(1_700_000_000_000), uint32(5)
	for len(out) < n {
		now += uint64(r.IntN(3))
		batch += uint32(r.IntN(4)) - 1
		head := Record{Op: Op(1 + r.IntN(7)), Tenant: uint32(r.IntN(3)), Batch: batch, TimeMS: now}
		keys := make([]uint64, 1+r.IntN(12))
		for i := range keys {
			keys[i] = r.Uint64()
		}
		for i := range keys {
			q := head
			k := i
			if batch%5 == 0 { // deepest first
				k = len(keys) - 1 - i
			}
			if q.Key = keys[k]; k > 0 {
				q.Parent = keys[k-1]
			}
			q.Flags, q.Size = Flags(r.IntN(8)), uint64(r.IntN(1<<20))
			out = append(out, q)
		}
	}
	return out
}

func encode(t testing.TB, records []Record) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, Header{Source: "test", BlockTokens: 16})
	if err != nil {
		t.Fatal(err)
	}
	for i := range records {
		if err := w.Append(&records[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w.Bytes() != uint64(b.Len()) || w.Records() != uint64(len(records)) {
		t.Errorf("the writer counts %d bytes and %d records, wrote %d and %d", w.Bytes(), w.Records(), b.Len(), len(records))
	}
	return b.Bytes()
}

func decode(r *Reader) ([]Record, error) {
	var out []Record
	for {
		var q Record
		if err := r.Next(&q); err != nil {
			if err == io.EOF {
				err = nil
			}
			return out, err
		}
		out = append(out, q)
	}
}

func TestRoundTrip(t *testing.T) {
	want := sample(50_000)
	dir := t.TempDir()
	for _, name := range []string{"r.rec", "r.rec.gz", "r.rec.zst"} {
		path := filepath.Join(dir, name)
		w, err := Create(path, Header{Source: "test", Start: 7, Capacity: 1 << 30, BlockTokens: 16, Part: 2})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Create(path, Header{}); !errors.Is(err, os.ErrExist) {
			t.Errorf("a second Create of %s: %v, want that it exists", name, err)
		}
		for i := range want {
			if err := w.Append(&want[i]); err != nil {
				t.Fatal(err)
			}
			if i%10_000 == 0 {
				if err := w.Flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if h := r.Header(); h != (Header{"test", 7, 1 << 30, 16, 2}) {
			t.Errorf("header %+v", h)
		}
		got, err := decode(r)
		if err != nil || r.Truncated() {
			t.Fatalf("%s: %v, truncated %v", name, err, r.Truncated())
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("%s:\n%s", name, d)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestTruncated cuts recordings where a killed writer would: what was flushed must come back.
func TestTruncated(t *testing.T) {
	want := sample(20_000)
	dir := t.TempDir()
	for _, name := range []string{"r.rec", "r.rec.gz", "r.rec.zst"} {
		path := filepath.Join(dir, name)
		w, err := Create(path, Header{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range want[:15_000] {
			if err := w.Append(&want[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		at, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := 15_000; i < len(want); i++ {
			if err := w.Append(&want[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		for _, more := range []int64{2000, 3} {
			if err := os.Truncate(path, at.Size()+more); err != nil {
				t.Fatal(err)
			}
			r, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			got, err := decode(r)
			if err != nil || len(got) != 15_000 || !r.Truncated() {
				t.Errorf("%s cut %d bytes after a flush: %d records, truncated %v, error %v; want 15000, true, none", name, more, len(got), r.Truncated(), err)
			}
			if d := cmp.Diff(want[:len(got)], got); d != "" {
				t.Errorf("%s:\n%s", name, d)
			}
			_ = r.Close()
		}
	}
}

func TestErrorsSayWhere(t *testing.T) {
	good := encode(t, sample(100))
	head := bytes.IndexByte(good[len(Magic):], '\n') + len(Magic) + 1
	change := func(at int, to byte) []byte {
		b := bytes.Clone(good)
		b[at] = to
		return b
	}
	for name, c := range map[string]struct {
		in   []byte
		want string
	}{
		"empty":         {nil, `f: does not begin with the line "mooncake recording 1"`},
		"other file":    {[]byte("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}"), `f: does not begin with the line`},
		"other version": {change(len(Magic)-2, '2'), `f: does not begin with the line`},
		"no header":     {[]byte(Magic + "x\n"), "f:2: want a header as one line of JSON"},
		"long header":   {[]byte(Magic + strings.Repeat(" ", 5000)), "f:2: want a header as one line of JSON: more than 4096 bytes"},
		"length":        {change(head+3, 1), "f: block 1 (after record 0): length "},
		"damage":        {change(head+20, good[head+20]^1), "f: block 1 (after record 0): checksum does not match"},
	} {
		r, err := NewReader("f", bytes.NewReader(c.in))
		if err == nil {
			_, err = decode(r)
		}
		if !errors.Is(err, ErrFormat) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// TestTimeNeverGoesBack checks that a clock that jumps makes no recording that cannot be read.
func TestTimeNeverGoesBack(t *testing.T) {
	r, err := NewReader("f", bytes.NewReader(encode(t, []Record{{Op: Get, TimeMS: 10, Key: 1}, {Op: Get, TimeMS: 4, Key: 2}})))
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(r)
	if err != nil || len(got) != 2 || got[1].TimeMS != 10 {
		t.Errorf("%v, %v; want the second at 10 ms", got, err)
	}
}

// TestSize checks the promise of a few bytes a block, and that Append does not allocate.
func TestSize(t *testing.T) {
	var records []Record
	for b := range uint32(1000) {
		for i := range uint64(10) {
			q := Record{Op: Put, Batch: b, TimeMS: uint64(b) * 7, Key: uint64(b)*1e9 + i + 1, Size: 1 << 20}
			if i > 0 {
				q.Parent = q.Key - 1
			}
			records = append(records, q)
		}
	}
	if n := len(encode(t, records)); n > 15*len(records) {
		t.Errorf("%d bytes for %d records", n, len(records))
	}
	w, err := NewWriter(io.Discard, Header{})
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(10, func() {
		for i := range records {
			_ = w.Append(&records[i])
		}
	}); n != 0 {
		t.Errorf("%v allocations for %d records", n, len(records))
	}
}

type full struct{ left int }

func (f *full) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, errors.New("disk full")
	}
	return len(b), nil
}

func TestWriteErrorStays(t *testing.T) {
	w, err := NewWriter(&full{100}, Header{})
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		err = w.Append(&Record{Op: Get, Key: 1})
	}
	if err == nil || w.Flush() != err || w.Close() != err {
		t.Errorf("Append, Flush and Close after a failed write: %v, %v, %v; want the same error", err, w.Flush(), w.Close())
	}
}

func FuzzReader(f *testing.F) {
	f.Add(encode(f, sample(50)), true)
	f.Add(encode(f, sample(3))[len(Magic)+1:], false)
	f.Fuzz(func(t *testing.T, in []byte, whole bool) {
		if !whole { // content of one block with the right sum
			content := in[:min(len(in), BlockSize)]
			var c context
			for len(content) > 0 {
				was, again := c, c
				var q, q2 Record
				n, err := c.decode(content, &q)
				if err != nil {
					return
				}
				if _, err := again.decode(was.append(nil, &q, q.TimeMS), &q2); err != nil || q != q2 {
					t.Fatalf("%+v written and read again: %+v, %v", q, q2, err)
				}
				content = content[n:]
			}
			return
		}
		r, err := NewReader("f", bytes.NewReader(in))
		if err != nil {
			return
		}
		got, err := decode(r)
		if err != nil {
			return
		}
		b := encode(t, got)
		r, err = NewReader("f", bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode(r)
		if d := cmp.Diff(got, again); err != nil || d != "" {
			t.Fatalf("written and read again: %v\n%s", err, d)
		}
	})
}

func FuzzDecompress(f *testing.F) {
	var b bytes.Buffer
	for _, name := range []string{"x.gz", "x.zst"} {
		b.Reset()
		w, err := NewCompressor(name, &b)
		if err != nil {
			f.Fatal(err)
		}
		_, _ = io.WriteString(w, "content")
		_ = w.(io.Closer).Close()
		f.Add(bytes.Clone(b.Bytes()))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		d, err := Decompress(bytes.NewReader(in))
		if err != nil {
			return
		}
		defer d.Close()
		_, _ = io.Copy(io.Discard, io.LimitReader(d, 1<<20))
	})
}

func BenchmarkAppend(b *testing.B) {
	records := sample(100_000)
	w, err := NewWriter(io.Discard, Header{})
	if err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		if err := w.Append(&records[i]); err != nil {
			b.Fatal(err)
		}
		if i++; i == len(records) {
			i = 0
		}
	}
}
