package replay

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompactRoundTrip(t *testing.T) {
	b := NewBuilder("x", 16)
	for i, names := range [][]uint64{{5, 6, 7}, {5, 6, 9, 10}, {}, {1}, {1, 9, 8}} {
		if err := b.Add(uint64(i*i), uint32(len(names)*16), uint32(i), names); err != nil {
			t.Fatal(err)
		}
	}
	want := b.Trace()
	want.Requests[0].Tokens = 1 << 30 // more than the chain holds
	want.Requests[1].Tokens = 3
	var buf bytes.Buffer
	if err := WriteCompact(&buf, want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadCompact("x", bytes.NewReader(buf.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want.Requests, got.Requests, cmp.AllowUnexported(Request{})); d != "" {
		t.Errorf("requests (-written +read):\n%s", d)
	}
	if d := cmp.Diff(want.blocks, got.blocks); d != "" {
		t.Errorf("blocks (-written +read):\n%s", d)
	}
	for n := range buf.Len() {
		if _, err := ReadCompact("cut", bytes.NewReader(buf.Bytes()[:n])); err == nil {
			t.Errorf("the first %d of %d bytes are read without an error", n, buf.Len())
		}
	}
}

func FuzzReadCompact(f *testing.F) {
	b := NewBuilder("x", 16)
	for _, names := range [][]uint64{{5, 6, 7}, {5, 6, 9, 10}} {
		if err := b.Add(1, 7, 8, names); err != nil {
			f.Fatal(err)
		}
	}
	var buf bytes.Buffer
	if err := WriteCompact(&buf, b.Trace()); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add([]byte(compactMagic))
	f.Fuzz(func(t *testing.T, in []byte) {
		tr, err := readCompact("fuzz", bytes.NewReader(in), 1<<16)
		if err == nil && tr.Accesses() > 1<<16 {
			t.Fatalf("%d accesses in spite of the limit", tr.Accesses())
		}
	})
}

func TestMooncakeErrorsNameTheLine(t *testing.T) {
	ok := `{"timestamp": 5, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}` + "\n"
	for name, c := range map[string]struct{ in, want string }{
		"not JSON":       {ok + "{", "t.jsonl:2: Mooncake JSONL: want one JSON object: unexpected end of JSON input"},
		"field missing":  {ok + "\n" + `{"timestamp": 7}`, "t.jsonl:3: Mooncake JSONL: want an object with timestamp"},
		"wrong type":     {`{"timestamp": "x"}`, "t.jsonl:1: Mooncake JSONL: timestamp: want a whole number, not negative, got string"},
		"time goes back": {ok + strings.Replace(ok, "5", "4", 1), "t.jsonl:2: Mooncake JSONL: time 4 ms is before the 5 ms"},
		"block twice":    {ok + strings.Replace(ok, "[1, 2]", "[3, 1, 3]", 1), "t.jsonl:2: Mooncake JSONL: block 3 appears twice in one chain (second time at position 2)"},
		"empty":          {"\n\n", "t.jsonl: Mooncake JSONL: no request in it"},
	} {
		_, err := ReadMooncake("t.jsonl", strings.NewReader(c.in))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: error %v, want it to begin with %q", name, err, c.want)
		}
	}
	tr, err := ReadMooncake("t.jsonl", strings.NewReader(ok+ok))
	if err != nil || len(tr.Requests) != 2 || !tr.partial(&tr.Requests[1]) {
		t.Errorf("two good lines: %v", err)
	}
}

func FuzzReadMooncake(f *testing.F) {
	f.Add([]byte(`{"timestamp": 5, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		if tr, err := ReadMooncake("f", bytes.NewReader(in)); err == nil {
			if err := WriteCompact(io.Discard, tr); err != nil && !errors.Is(err, ErrTrace) {
				t.Fatal(err)
			}
		}
	})
}
