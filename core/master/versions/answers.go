package versions

import "github.com/mooncake-agent/mooncake/core/rpc/wire"

// answers holds the type code of every function's answer in each version.
var answers = func() map[uint32]*[wire.NumVersions]uint32 {
	out := map[uint32]*[wire.NumVersions]uint32{}
	for _, m := range wire.Methods() {
		codes := new([wire.NumVersions]uint32)
		for _, v := range m.Versions().Versions() {
			l, _ := m.Layout(v)
			codes[v] = l.ResponseCode
		}
		out[m.ID()] = codes
	}
	return out
}()

// sameAnswers reports whether all versions of a set read the same answer of a function.
func sameAnswers(fn uint32, set wire.VersionSet) bool {
	v, ok := set.Newest()
	return ok && withAnswerOf(fn, v, set) == set
}

// withAnswerOf returns those of a set that read the answer that v reads.
func withAnswerOf(fn uint32, v wire.Version, set wire.VersionSet) wire.VersionSet {
	codes := answers[fn]
	if codes == nil {
		return set
	}
	var same wire.VersionSet
	for u := range wire.Version(wire.NumVersions) {
		if set.Has(u) && codes[u] == codes[v] {
			same |= wire.SetOf(u)
		}
	}
	return same
}

// neverFetch are versions whose masters have FetchTasks but whose clients never call it.
const neverFetch = wire.VersionSet(1<<wire.V0_3_8 | 1<<wire.V0_3_9)
