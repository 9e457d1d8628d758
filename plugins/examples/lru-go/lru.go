// Command lru-go is an eviction policy: least recently used, the end of a chain first. It decides like the built-in
// policy lru. policy.Keep does what every policy needs; what is this one's own are the functions at the end.
package main

import "github.com/mooncake-agent/mooncake/plugins/sdk/go/policy"

func init() { policy.Register(newPolicy) }

func main() {}

// lru is one list of handles, the one used last in front.
type lru struct{ lists policy.Lists }

// newPolicy is called once. Make all that is needed for c.MaxHandles objects here. Numbers from the configuration are
// to be had by c.Param("name", default).
func newPolicy(c *policy.Config) (policy.Policy, error) {
	return policy.Keep(c, &lru{policy.NewLists(c.MaxHandles, 1)}), nil
}

// Insert: the object e.Handle is there now. What is known of it, such as its place in the chain, is in e.
func (l *lru) Insert(e *policy.Event) { l.lists.PushFront(0, e.Handle) }

// Touch: it was read.
func (l *lru) Touch(e *policy.Event) { l.lists.MoveFront(0, e.Handle) }

// Remove: it is gone, evicted or for another reason.
func (l *lru) Remove(e *policy.Event, evicted bool) { l.lists.Remove(e.Handle) }

// Refuse: it was named but is in use; others go first. Without this function Keep sets it aside for a while.
func (l *lru) Refuse(h uint32) { l.lists.MoveFront(0, h) }

// Victims offers objects, the one to throw away first first, and changes nothing.
func (l *lru) Victims() { policy.OfferAll(&l.lists, 0) }
