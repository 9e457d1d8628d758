package replay

import (
	"fmt"
	"io"
)

// Write writes t in a format. What the format cannot hold is left out: see [Loses].
func Write(w io.Writer, t *Trace, f Format) error {
	switch f {
	case Mooncake:
		return writeMooncake(w, t)
	case Bailian:
		return writeBailian(w, t)
	case Oracle:
		return writeOracle(w, t)
	case CSV:
		return writeCSV(w, t)
	case Compact:
		return WriteCompact(w, t)
	case Recording:
		return writeRecording(w, t)
	}
	return fmt.Errorf("no trace format %q; there are: %s", f, formatNames())
}

// Loses tells what of t is lost in a format, in words.
func Loses(t *Trace, f Format) []string {
	var lost []string
	lose := func(is bool, what string) {
		if is {
			lost = append(lost, what)
		}
	}
	text := f == Mooncake || f == Bailian
	var tenants, lengths, kinds, chains bool
	for i := range t.Requests {
		r := &t.Requests[i]
		tenants = tenants || r.Tenant != 0
		lengths = lengths || r.Tokens != 0 || r.Output != 0
		kinds = kinds || r.Kind != Wanted
		chains = chains || r.n > 1
	}
	lose(t.Sized() && (text || f == Compact), "sizes of blocks")
	lose(tenants && (text || f == Compact || f == Oracle), "tenants")
	lose(kinds && f != CSV && f != Recording, "puts without a get, and removals")
	lose(chains && f == Oracle, "chains: each block is a request of its own")
	lose(lengths && (f == Oracle || f == Recording), "lengths of requests")
	lose(t.BlockTokens != 0 && t.BlockTokens != mooncakeTokens && f == Mooncake, fmt.Sprintf("tokens in a block: read it with block tokens %d", t.BlockTokens))
	lose(t.BlockTokens != 0 && (f == Oracle || f == CSV), fmt.Sprintf("tokens in a block: read it with block tokens %d", t.BlockTokens))
	return lost
}
