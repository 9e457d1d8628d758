package replay

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// ReadRows reads a file that `mooncake replay --json` wrote.
func ReadRows(path string) ([]Row, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return decodeRows(path, f)
}

func decodeRows(name string, r io.Reader) ([]Row, error) {
	var rows []Row
	dec := json.NewDecoder(r)
	if err := dec.Decode(&rows); err != nil {
		return nil, fmt.Errorf("%s: byte %d: want a list of results, as mooncake replay --json prints: %w: %w", name, dec.InputOffset(), err, ErrTrace)
	}
	for i := range rows {
		if rows[i].Policy == "" || rows[i].Size == 0 {
			return nil, fmt.Errorf("%s: result %d has no policy or no size: want what mooncake replay --json prints: %w", name, i+1, ErrTrace)
		}
	}
	return rows, nil
}

// Difference is one policy at one size in two result files. A or B is nil if only the other has it.
type Difference struct {
	Policy, Size string
	A, B         *Row
}

// Prefix is by how much B has more prefix hits, 0 if one is missing.
func (d *Difference) Prefix() float64 {
	if d.A == nil || d.B == nil {
		return 0
	}
	return d.B.PrefixHit - d.A.PrefixHit
}

// Compare matches the rows of two results: those of a, then those that only b has.
func Compare(a, b []Row) []Difference {
	key := func(r *Row) string { return fmt.Sprintf("%s\x00%d", r.Policy, r.Size) }
	inB := map[string]*Row{}
	for i := range b {
		inB[key(&b[i])] = &b[i]
	}
	var out []Difference
	for i := range a {
		r := &a[i]
		out = append(out, Difference{r.Policy, r.SizeArg, r, inB[key(r)]})
		delete(inB, key(r))
	}
	for i := range b {
		if r := &b[i]; inB[key(r)] == r {
			out = append(out, Difference{r.Policy, r.SizeArg, nil, r})
		}
	}
	return out
}
