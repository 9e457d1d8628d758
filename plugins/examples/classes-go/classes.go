// Command classes-go is an eviction policy that learns which kinds of block are worth keeping. A block's class is
// how many blocks its request added and how often it was used since; each class is a list in order of use, and
// the block that has waited longest for its class goes first. A class whose blocks are mostly thrown away unused
// waits less, one whose blocks come back waits longer.
package main

import "github.com/mooncake-agent/mooncake/plugins/sdk/go/policy"

func init() {
	policy.Register(func(c *policy.Config) (policy.Policy, error) { return policy.Keep(c, newClasses(c)), nil })
}

func main() {}

const (
	adds    = 5 // 1, 2-4, 5-8, 9-16 and more blocks added by the request
	reuses  = 3 // not used again yet, once, more often
	classes = adds * reuses
	memory  = 4096 // uses and evictions after which old ones count half
)

type object struct {
	class uint8
	used  uint32 // tick of its last use
}

type classPolicy struct {
	lists      policy.Lists
	objects    []object // by handle
	tick       uint32   // uses
	used, gone [classes]float64
	patience   [classes]float64 // how long a block of the class may wait, against others
	cursor     [classes]uint32  // for Victims
	waits      [classes]float64 // for Victims
}

func newClasses(c *policy.Config) *classPolicy {
	p := &classPolicy{lists: policy.NewLists(c.MaxHandles, classes), objects: make([]object, int(c.MaxHandles)+1)}
	for i := range p.patience {
		p.patience[i] = 0.5
	}
	return p
}

func addClass(n uint32) uint8 {
	switch {
	case n <= 1:
		return 0
	case n <= 4:
		return 1
	case n <= 8:
		return 2
	case n <= 16:
		return 3
	}
	return 4
}

func (p *classPolicy) Insert(e *policy.Event) {
	if e.Kind == policy.Insert || e.Kind == policy.Restore {
		p.objects[e.Handle].class = addClass(e.Added) * reuses
	}
	p.push(e.Handle)
}

func (p *classPolicy) push(h uint32) {
	p.tick++
	p.objects[h].used = p.tick
	p.lists.PushFront(int(p.objects[h].class), h)
}

func (p *classPolicy) Touch(e *policy.Event) {
	o := &p.objects[e.Handle]
	p.learn(&p.used, o.class)
	p.lists.Remove(e.Handle)
	if o.class%reuses < reuses-1 {
		o.class++
	}
	p.push(e.Handle)
}

func (p *classPolicy) Remove(e *policy.Event, evicted bool) {
	if evicted {
		p.learn(&p.gone, p.objects[e.Handle].class)
	}
	p.lists.Remove(e.Handle)
}

// learn counts what became of a block of a class.
func (p *classPolicy) learn(counts *[classes]float64, c uint8) {
	if counts[c]++; p.used[c]+p.gone[c] > memory {
		p.used[c] /= 2
		p.gone[c] /= 2
	}
	p.patience[c] = max(0.05, (p.used[c]+1)/(p.used[c]+p.gone[c]+2))
}

// Victims merges the classes: the block that has waited longest, in terms of its class's patience, is next.
func (p *classPolicy) Victims() {
	for c := 0; c < classes; c++ {
		p.look(c, p.lists.Back(c))
	}
	for {
		c := p.longest()
		if p.waits[c] < 0 || !policy.Offer(p.cursor[c]) {
			return
		}
		p.look(c, p.lists.Newer(p.cursor[c]))
	}
}

// look puts the cursor of a class on h and notes how long it has waited: less than 0 if it is none.
//
//go:noinline
func (p *classPolicy) look(c int, h uint32) {
	p.cursor[c], p.waits[c] = h, -1
	if h != 0 {
		p.waits[c] = float64(p.tick-p.objects[h].used) / p.patience[c]
	}
}

// longest is the class with the longest wait.
//
//go:noinline
func (p *classPolicy) longest() int {
	best, most := 0, p.waits[0]
	for c := 1; c < classes; c++ {
		if w := p.waits[c]; w > most {
			best, most = c, w
		}
	}
	return best
}
