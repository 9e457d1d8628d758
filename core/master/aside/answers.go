package aside

import "github.com/mooncake-agent/mooncake/eviction"

// question is what answers are kept by.
type question struct {
	tenant, segment uint32
	flags           eviction.NeedFlags
}

var plain = question{tenant: eviction.AnyTenant}

const (
	questionsMax = 64 // questions that are remembered
	forgetAfter  = 60 // ticks after which one that nobody asks is forgotten
	mostAhead    = 4096
	share        = 16 // of what is resident, at most one in so many is named ahead
)

// answer is what the policy named for one question, and how it is asked.
type answer struct {
	question
	handles []eviction.Handle // 0: taken off since
	first   int               // all before it are taken off
	left    int
	most    int    // handles to ask for
	known   bool   // the policy has answered
	heard   uint64 // how many events it had been told when it did
	unheard int    // ticks since the host asked
	// wanted: it is to be asked again. ranOut: it gave out since it was asked last. lasted: it did not since the last tick.
	// few: the policy named fewer than it was asked for.
	wanted, ranOut, lasted, few bool
}

// take appends up to most of what is left. It stays named until an event takes it off.
func (a *answer) take(dst []eviction.Handle, most int) []eviction.Handle {
	for i := a.first; i < len(a.handles) && most > 0; i++ {
		if h := a.handles[i]; h != 0 {
			dst = append(dst, h)
			most--
		}
	}
	return dst
}

// answers are all of a policy. Guarded by Policy.mu.
type answers struct {
	list   []*answer
	named  []uint64          // a bit for each handle: it may be in an answer
	wanted int               // answers to ask for again
	base   int               // least number of handles to ask for
	few    bool              // some answer is
	spare  []eviction.Handle // for the next answer
}

// want finds the answer to a question that the host asks.
func (s *answers) want(q question) *answer {
	for _, a := range s.list {
		if a.question == q {
			a.unheard = 0
			return a
		}
	}
	a := &answer{question: q, most: s.base}
	if len(s.list) < questionsMax {
		s.list = append(s.list, a)
	} else {
		old := 0
		for i := range s.list {
			if s.list[i].unheard > s.list[old].unheard {
				old = i
			}
		}
		s.put(old, a)
	}
	s.again(a)
	return a
}

// put replaces an answer in the list, or takes it out with nil.
func (s *answers) put(i int, a *answer) {
	if s.list[i].wanted {
		s.wanted--
	}
	if a != nil {
		s.list[i] = a
		return
	}
	last := len(s.list) - 1
	s.list[i] = s.list[last]
	s.list = s.list[:last]
}

// again lets an answer be asked for again.
func (s *answers) again(a *answer) {
	if !a.wanted {
		a.wanted = true
		s.wanted++
	}
}

// ran notes that an answer did not last until the next.
func (s *answers) ran(a *answer) {
	a.ranOut, a.lasted = true, false
	s.again(a)
}

// follow takes the handle of an event off all answers. It reports that it was in one.
func (s *answers) follow(e *eviction.Event) (named bool) {
	switch e.Kind {
	case eviction.Access, eviction.Remove, eviction.Reject, eviction.Pin, eviction.Moved:
	default:
		return false
	}
	h := e.Handle
	if word := int(h >> 6); h == 0 || word >= len(s.named) || s.named[word]>>(h&63)&1 == 0 {
		return false
	}
	s.named[h>>6] &^= 1 << (h & 63)
	for _, a := range s.list {
		for i := a.first; i < len(a.handles); i++ {
			if a.handles[i] != h {
				continue
			}
			named = true
			a.handles[i] = 0
			for a.first < len(a.handles) && a.handles[a.first] == 0 {
				a.first++
			}
			if a.left--; a.left <= len(a.handles)/2 {
				s.again(a)
			}
			break
		}
	}
	return named
}

// more follows a new object: the policy may name more now where it named few.
func (s *answers) more() {
	if !s.few {
		return
	}
	s.few = false
	for _, a := range s.list {
		if a.few {
			s.again(a)
		}
	}
}

// tick comes about once a second: old answers are asked for again, questions that nobody asks are forgotten, and what
// has always lasted gets shorter.
func (s *answers) tick() {
	for i := len(s.list) - 1; i >= 0; i-- {
		a := s.list[i]
		if a.unheard++; a.unheard > forgetAfter && a.question != plain {
			s.put(i, nil)
			continue
		}
		if a.lasted {
			a.most = max(s.base, a.most/2)
		}
		a.lasted = true
		s.again(a)
	}
}

// next is an answer to ask for, nil if there is none. Its number of handles fits what is resident.
func (s *answers) next(resident int) *answer {
	if s.wanted == 0 {
		return nil
	}
	for _, a := range s.list {
		if !a.wanted {
			continue
		}
		a.wanted = false
		s.wanted--
		if a.ranOut {
			a.most *= 2
		}
		a.ranOut = false
		a.most = max(s.base, min(a.most, mostAhead, resident/share))
		return a
	}
	return nil
}

// install replaces an answer by a new one, given when the policy had been told so many events. Those since then are in
// since.
func (s *answers) install(a *answer, handles []eviction.Handle, heard uint64, since []eviction.Event) {
	a.known, a.heard = true, heard
	s.spare, a.handles = a.handles, handles
	a.first, a.left = 0, len(handles)
	a.few = a.left < a.most
	s.few = s.few || a.few
	for _, h := range handles {
		for int(h>>6) >= len(s.named) {
			s.named = append(s.named, 0)
		}
		s.named[h>>6] |= 1 << (h & 63)
	}
	for i := range since {
		s.follow(&since[i])
	}
}
