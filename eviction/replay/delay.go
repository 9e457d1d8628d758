package replay

import "container/heap"

// prefill is the part of a request that is computed and stored at a later time.
type prefill struct {
	at      uint64 // ms
	request uint32
	matched uint32 // blocks at the beginning that were found
}

// prefills wait in order of time, those of equal time in order of their requests.
type prefills []prefill

func (p prefills) Len() int { return len(p) }
func (p prefills) Less(i, j int) bool {
	return p[i].at < p[j].at || p[i].at == p[j].at && p[i].request < p[j].request
}
func (p prefills) Swap(i, j int) { p[i], p[j] = p[j], p[i] }
func (p *prefills) Push(x any)   { *p = append(*p, x.(prefill)) }
func (p *prefills) Pop() any {
	old := *p
	x := old[len(old)-1]
	*p = old[:len(old)-1]
	return x
}

func (p *prefills) add(x prefill)        { heap.Push(p, x) }
func (p *prefills) take() prefill        { return heap.Pop(p).(prefill) }
func (p prefills) due(nowMS uint64) bool { return len(p) > 0 && p[0].at <= nowMS }
