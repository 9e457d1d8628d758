package wasm

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/plugins/abi"
	"github.com/mooncake-agent/mooncake/plugins/hostorder"
)

// A score guest sees a window of candidates: the tail of the host's order and a few chosen by chance. The best
// quarter of them is named, then the window is filled up and scored again, until there are enough.
const (
	takeShare = 4  // of the candidates, one in so many is named before the next look
	maxRounds = 64 // looks for one answer
)

// ranking is the scored window, kept to be used again.
type ranking struct {
	score   [abi.MaxCandidates]float64
	refused [abi.MaxCandidates]bool
	at      []int
	records [abi.MaxCandidates + 1]eviction.Event
}

// score answers a question with a guest in score mode.
func (p *policy) score(dst []eviction.Handle, need *eviction.Need) ([]eviction.Handle, *Fault) {
	p.told.Questions++
	want, missing, first := need.Max, need.Bytes, len(dst)
	p.cands = p.cands[:0]
	tail := p.order.Back(hostorder.Main)
	// Chance depends on what has happened only: asking twice gives the same answer.
	chance := scatter(p.spec.Seed) ^ p.order.Applied<<16
	for round := 0; round < maxRounds && len(dst)-first < want; round++ {
		tail, chance = p.window(tail, chance, need)
		if len(p.cands) == 0 {
			break
		}
		if fault := p.rate(); fault != nil {
			return dst, fault
		}
		take := max(1, len(p.cands)/takeShare)
		if tail == 0 {
			take = len(p.cands) // everything is in view
		}
		for _, i := range p.rank.at[:min(take, want-(len(dst)-first))] {
			h := p.cands[i]
			r := p.order.At(h)
			p.order.Name(r)
			dst = append(dst, eviction.Handle(h))
			if need.Bytes > 0 {
				if r.Size >= missing {
					return dst, nil
				}
				missing -= r.Size
			}
		}
		p.cands = slices.DeleteFunc(p.cands, func(h uint32) bool { return p.order.IsNamed(p.order.At(h)) })
	}
	return dst, nil
}

// window fills the candidates up: from the tail of the order onwards, then by chance. It returns where the tail
// goes on, 0 at the end.
func (p *policy) window(tail uint32, chance uint64, need *eviction.Need) (uint32, uint64) {
	o := &p.order
	for looked := 0; tail != 0 && len(p.cands) < abi.TailCandidates && looked < hostorder.MaxWalk; looked++ {
		r := o.At(tail)
		if !o.IsCandidate(r) && o.Refusal(tail, need) == 0 {
			o.Nominate(r)
			p.cands = append(p.cands, tail)
		}
		tail = o.Newer(tail)
	}
	if tail == 0 {
		return 0, chance
	}
	const tries = 4
	for n := 0; n < tries*abi.RandomCandidates && len(p.cands) < abi.MaxCandidates; n++ {
		chance++
		h := 1 + uint32(scatter(chance)%uint64(o.Largest))
		if o.Place(h) != hostorder.Main {
			continue
		}
		if r := o.At(h); !o.IsCandidate(r) && o.Refusal(h, need) == 0 {
			o.Nominate(r)
			p.cands = append(p.cands, h)
		}
	}
	return tail, chance
}

// rate asks for the scores of all candidates and ranks them: lowest first, refused ones after the others, NaN
// last.
func (p *policy) rate() *Fault {
	t, n := p.guest, len(p.cands)
	k := &p.rank
	k.records[0] = eviction.Event{Kind: eviction.Tick, NowMS: p.order.Now}
	for i, h := range p.cands {
		r := p.order.At(h)
		e := p.order.Event(h, r)
		e.Kind, e.NowMS, e.Req = eviction.Candidate, r.LastMS, r.Uses
		k.records[i+1] = e
		k.refused[i] = p.order.IsRefused(r)
	}
	t.now = p.order.Now
	abi.EncodeAll(t.buffer(abi.BufferEvents), k.records[:n+1])
	spent, nanos := t.spent, t.nanos
	got, fault := t.call(abi.FuncScore, t.hot.score, p.f.budget(n+1), uint64(n+1))
	p.told.Events += uint64(n)
	p.told.Batches++
	p.told.EventFuel += t.spent - spent
	p.told.EventNanos += t.nanos - nanos
	if fault != nil {
		return fault
	}
	if got < 0 || int(got) > n {
		return faultf(FaultReturn, abi.FuncScore, "returned %d for %d candidates", got, n)
	}
	scores := t.buffer(abi.BufferScores)
	k.at = k.at[:0]
	for i := range n {
		k.score[i] = math.Float64frombits(binary.LittleEndian.Uint64(scores[8*i:]))
		k.at = append(k.at, i)
	}
	slices.SortStableFunc(k.at, func(a, b int) int {
		if k.refused[a] != k.refused[b] {
			if k.refused[b] {
				return -1
			}
			return 1
		}
		x, y := k.score[a], k.score[b]
		switch nx, ny := math.IsNaN(x), math.IsNaN(y); {
		case nx && ny:
			return 0
		case nx:
			return 1
		case ny:
			return -1
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	return nil
}

func handleAt(b []byte, i int) uint32 { return binary.LittleEndian.Uint32(b[abi.HandleSize*i:]) }
