package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func sweep(tb testing.TB, tr *Trace, sizes string, names ...string) *Sweep {
	tb.Helper()
	s := &Sweep{Trace: tr, Options: Options{Seed: 5}}
	for _, n := range names {
		s.Policies = append(s.Policies, Candidate{Name: n, Factory: policy(tb, n)})
	}
	var err error
	if s.Sizes, err = ParseCapacities(sizes, tr, 4096); err != nil {
		tb.Fatal(err)
	}
	return s
}

// TestSweepDoesNotDependOnThreads also checks the order and number of rows.
func TestSweepDoesNotDependOnThreads(t *testing.T) {
	tr, err := Generate("chat", 3, 6000)
	if err != nil {
		t.Fatal(err)
	}
	var all [][]Row
	for _, threads := range []int{1, 3, 16} {
		s := sweep(t, tr, "50,10%", "lru", "random", "adaptive")
		s.Policies = append(s.Policies, Candidate{Name: "lru:order=head", Factory: policy(t, "lru"), HeadFirst: true})
		s.Threads = threads
		last := 0
		s.Done = func(done, runs int) {
			if done != last+1 || runs != s.Runs() {
				t.Errorf("told of run %d of %d after %d of %d", done, runs, last, s.Runs())
			}
			last = done
		}
		rows, err := s.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if last != s.Runs() {
			t.Errorf("told of %d runs, want %d", last, s.Runs())
		}
		all = append(all, rows)
	}
	var names []string
	for _, r := range all[0] {
		names = append(names, r.Policy+"@"+r.SizeArg)
	}
	want := "lru@50 random@50 adaptive@50 lru:order=head@50 min@50 infinite@50 lru@10% random@10% adaptive@10% lru:order=head@10% min@10% infinite@10%"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("rows %s\nwant %s", got, want)
	}
	for _, rows := range all[1:] {
		if d := cmp.Diff(all[0], rows, cmpopts.IgnoreFields(Row{}, "NsPerAccess")); d != "" {
			t.Errorf("other results with more threads:\n%s", d)
		}
	}
}

// TestSweepOnly runs a part of the grid.
func TestSweepOnly(t *testing.T) {
	s := sweep(t, open(t, synthetic), "50,60", "lru", "fifo")
	s.Only = func(policy string, size Capacity) bool { return (policy == "lru") == (size.Units == 50) }
	rows, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range rows {
		names = append(names, r.Policy+"@"+r.SizeArg)
	}
	if got := strings.Join(names, " "); got != "lru@50 min@50 infinite@50 fifo@60 min@60 infinite@60" {
		t.Errorf("rows %s", got)
	}
}

func TestSweepEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := sweep(t, open(t, synthetic), "50,60,70,80", "lru")
	s.Done = func(int, int) { cancel() }
	if _, err := s.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Run after the end of its context: %v", err)
	}
	s = sweep(t, open(t, synthetic), "50", "lru")
	s.Sizes[0].Units = 0 // no policy takes that
	if _, err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "lru at 50: ") {
		t.Errorf("a run that cannot begin: %v", err)
	}
}

func TestParseCapacities(t *testing.T) {
	plain, sized := open(t, synthetic), full(t, 16) // 43924 blocks; 7 blocks of 19 bytes
	for _, c := range []struct {
		arg  string
		tr   *Trace
		want uint64 // 0 error
		text string
	}{
		{"5000", plain, 5000, ""},
		{"5%", plain, 2196, ""},
		{"0.5", plain, 21962, ""},
		{"1MB", plain, 256, ""},
		{"8192B", plain, 2, ""},
		{"0", plain, 0, "want at least one block"},
		{"1.5", plain, 0, "want a share of the footprint above 0 and up to 1"},
		{"x", plain, 0, "want blocks (5000), bytes with a unit (64GB), a share of the footprint (0.05 or 5%), or auto"},
		{"100B", plain, 0, "less than one block of 4096 bytes"},
		{"2", sized, 2 * sized.MeanSize(), ""},
		{"1KB", sized, 1024, ""},
		{"100%", sized, sized.Footprint(), ""},
	} {
		got, err := ParseCapacities(c.arg, c.tr, 4096)
		switch {
		case c.want != 0 && (err != nil || len(got) != 1 || got[0] != Capacity{c.arg, c.want}):
			t.Errorf("%s: %v, %v, want %d", c.arg, got, err, c.want)
		case c.want == 0 && (err == nil || !strings.HasSuffix(err.Error(), c.text)):
			t.Errorf("%s: error %v, want %q", c.arg, err, c.text)
		}
	}
	if got, err := ParseCapacities("auto,5,5", plain, 0); err != nil || len(got) != len(ladder)+1 || got[0].Arg != "0.5%" {
		t.Errorf("auto,5,5: %v, %v", got, err)
	}
	if _, err := ParseCapacities("1GB", plain, 0); err == nil || !strings.Contains(err.Error(), "the trace has no block sizes") {
		t.Errorf("bytes without block size: %v", err)
	}
}

func TestAssertions(t *testing.T) {
	rows := []Row{
		{Policy: "lru", Size: 5000, SizeArg: "5000", PrefixHit: 0.1118, BlockHit: 0.1104, Evictions: 7},
		{Policy: "lru-k:k=3,order=head", Size: 100, SizeArg: "5%", PrefixHit: 0.2},
	}
	for text, want := range map[string]bool{
		"prefix(lru,5000) >= 0.111":                                  true,
		"prefix(lru,5000)>=0.1119":                                   false,
		"prefix( lru , 5000 ) > 11.1%":                               true,
		"prefix(lru,5000) == 11.2% +- 0.05%":                         true,
		"block(lru,5000) == 11.2% +- 0.05%":                          false,
		"block(lru,5000) != 11.2% +- 0.05%":                          true,
		"evictions(lru,5000) <= 7":                                   true,
		"evictions(lru,5000) < 7":                                    false,
		"prefix(lru-k:k=3,order=head,5%) >= 0.2":                     true,
		"prefix(lru-k:k=3,order=head,100) >= prefix(lru,5000) + 0.1": false,
		"prefix(lru,5000) >= prefix(lru-k:k=3,order=head,5%) - 8.9%": true,
	} {
		a, err := ParseAssertion(text)
		if err != nil {
			t.Error(err)
			continue
		}
		if ok, seen, err := a.Check(rows); err != nil || ok != want || !strings.Contains(seen, ": left side ") {
			t.Errorf("%s: %v (%s, %v), want %v", text, ok, seen, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                              "want METRIC(POLICY,SIZE) >= NUMBER",
		"prefix(lru,5000)":              "want METRIC(POLICY,SIZE) >= NUMBER",
		"prefix(lru) >= 1":              "want a number or METRIC(POLICY,SIZE)",
		"speed(lru,5000) >= 1":          `no metric "speed"; there are: prefix, block,`,
		"prefix(lru,5000) >= x":         "want a number or METRIC(POLICY,SIZE)",
		"prefix(lru,5000) >= 1 +- 0.1":  "+- goes with == and != only",
		"prefix(lru,5000) == 1 +- many": "want a number",
		"prefix(lru,5000) >= NaN":       "want a number or METRIC(POLICY,SIZE)",
	} {
		if _, err := ParseAssertion(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	a, err := ParseAssertion("prefix(arc,5000) >= block(lru,1%)")
	if err != nil {
		t.Fatal(err)
	}
	if p, s := a.Runs(); !cmp.Equal(p, []string{"arc", "lru"}) || !cmp.Equal(s, []string{"5000", "1%"}) {
		t.Errorf("Runs: %v, %v", p, s)
	}
	if _, _, err := a.Check(rows); err == nil || !strings.Contains(err.Error(), `no result of policy "arc" at size "5000"; there are: lru, lru-k:k=3,order=head; sizes 5000, 5%`) {
		t.Errorf("a run that was not made: %v", err)
	}
}

func TestCompare(t *testing.T) {
	a := []Row{{Policy: "lru", Size: 1, PrefixHit: 0.5}, {Policy: "arc", Size: 1}}
	b := []Row{{Policy: "lru", Size: 2}, {Policy: "lru", Size: 1, PrefixHit: 0.25}}
	got := Compare(a, b)
	if len(got) != 3 || got[0].Prefix() != -0.25 || got[1].B != nil || got[1].Prefix() != 0 || got[2].A != nil || got[2].B.Size != 2 {
		t.Errorf("%+v", got)
	}
	path := filepath.Join(t.TempDir(), "r.json")
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if rows, err := ReadRows(path); err != nil || !cmp.Equal(rows, a) {
		t.Errorf("%v, %v", rows, err)
	}
	for text, want := range map[string]string{
		`{}`:    "f: byte 2: want a list of results, as mooncake replay --json prints",
		`[{}]`:  "f: result 1 has no policy or no size",
		`[{"p"`: "f: byte 0: want a list of results",
	} {
		if _, err := decodeRows("f", strings.NewReader(text)); !errors.Is(err, ErrTrace) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}

func TestSVG(t *testing.T) {
	rows, err := sweep(t, open(t, synthetic), "1%,5%", "lru", "fifo").Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rows[0].Policy = `<lru & "co">`
	for _, rows := range [][]Row{rows, rows[:1]} {
		var b bytes.Buffer
		if err := WriteSVG(&b, rows); err != nil {
			t.Fatal(err)
		}
		points, lines := 0, 0
		for d := xml.NewDecoder(&b); ; {
			tok, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if e, ok := tok.(xml.StartElement); ok {
				switch e.Name.Local {
				case "circle":
					points++
				case "polyline":
					lines++
				}
			}
		}
		if points != len(rows) || lines == 0 {
			t.Errorf("%d points in %d lines for %d results", points, lines, len(rows))
		}
	}
	if err := WriteSVG(io.Discard, nil); err == nil {
		t.Error("nothing can be drawn")
	}
}

// TestAnalyze checks a trace that can be checked by hand, and the sizes that LRU needs against LRU.
func TestAnalyze(t *testing.T) {
	b := NewBuilder("t", 512)
	for i, names := range [][]uint64{{1, 2}, {1, 2, 3}, {4}, {1}} {
		if err := b.Add(uint64(i)*60_000, uint32(len(names)*512-i), 0, names); err != nil {
			t.Fatal(err)
		}
	}
	a := Analyze(b.Trace())
	want := Analysis{
		Trace: "t", Requests: 4, Accesses: 7, Unique: 4, Footprint: 4, BlockTokens: 512, Tenants: 1, Duration: 180, InputTokens: 7*512 - 6, Partial: 3,
		Infinite: 3.0 / 7, OnceOnly: 0.5,
		Chain:       Quantiles{Mean: 1.75, P10: 1, P50: 1, P90: 3, P99: 3, Max: 3},
		Reuse:       Quantiles{Mean: 1.75, P10: 1, P50: 1, P90: 3, P99: 3, Max: 3},
		Gap:         Quantiles{Mean: 80, P10: 60, P50: 60, P90: 120, P99: 120, Max: 120},
		WorkingSets: []WorkingSet{{Window: 60, Windows: 4, Mean: 1.75, Max: 3}},
		// 2 comes back past 1 and 3; 1 past 2 and 3; 1 again past 4.
		Needs: []Need{{0.5, 3}, {0.8, 3}, {0.9, 3}, {0.95, 3}, {0.99, 3}, {1, 3}},
	}
	if d := cmp.Diff(want, a); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	tr := open(t, synthetic)
	inf := Infinite(tr, Options{})
	for _, n := range Analyze(tr).Needs[:2] {
		r := mustRun(t, tr, policy(t, "lru"), n.Size, Options{})
		if share := float64(r.Hits) / float64(inf.Hits); share < n.Share-0.002 || share > n.Share+0.002 {
			t.Errorf("LRU of %d blocks has %.4f of the hits, the analysis says %.2f", n.Size, share, n.Share)
		}
	}
	if a := Analyze(&Trace{}); a.Requests != 0 {
		t.Errorf("%+v", a)
	}
}
