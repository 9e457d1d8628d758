package policy

// Order ranks resident handles that may be evicted. [Keep] calls it with nothing else, so it needs no checks. An
// event is valid only during the call.
type Order interface {
	// Insert adds e.Handle. e.Kind is Insert or Restore, or something else when the handle comes back after a pin
	// or a refusal; then only Handle and NowMs are sure to be filled.
	Insert(e *Event)
	// Touch records a use.
	Touch(e *Event)
	// Remove takes e.Handle out. evicted tells that it was a victim.
	Remove(e *Event, evicted bool)
	// Victims calls Offer with handles, the one to evict first first, until Offer says false. It changes nothing.
	Victims()
}

// Refuser is an [Order] with a way of its own to let others go first when h was named but cannot go now. From other
// orders such a handle is set aside for a while.
type Refuser interface{ Refuse(h uint32) }

// States of a handle. Behind inOrder they are lists too, but for hard.
const (
	absent = iota
	inOrder
	refused
	soft
	hard
	none // handle 0, which is no object
)

const (
	maxSkips = 200 // a call has a budget; the host helps itself to the rest
	comeBack = 8   // one refused handle comes back with every so many evictions
)

type object struct{ state, tenant, segment uint32 }

// A module has one policy. Its state is in variables because access to them costs a guest in Go the least.
var kept struct {
	order    Order
	refuser  Refuser
	objects  []object // by handle
	aside    Lists    // refused and soft-pinned handles
	refusals uint32   // handles on the list
	evicted  uint32
	back     Event // of a handle that comes back
	bad      bool  // an event was not allowed
}

type keeper struct{}

// Keep makes the module's policy of an order: it looks after pins, refusals, tenants, segments and events that do
// not fit.
func Keep(c *Config, o Order) Policy {
	k := &kept
	k.order, k.objects, k.aside = o, make([]object, int(c.MaxHandles)+1), NewLists(c.MaxHandles, hard)
	k.refuser, _ = o.(Refuser)
	k.refusals, k.evicted, k.bad = 0, 0, false
	k.objects[0].state = none
	return keeper{}
}

// A jump in a function of Go costs a guest as much fuel as the whole function has instructions. So what is done for
// each event is cut into small functions, with what is rare in others.

func (keeper) Apply(records []Event) error {
	for i := range records {
		e := &records[i]
		if int(e.Handle) < len(kept.objects) {
			handlers[e.Kind&15](e)
		} else {
			kept.bad = true
		}
	}
	if kept.bad {
		return ErrEvent
	}
	return nil
}

var handlers = [16]func(*Event){
	0: nothing, Insert: insert, Access: access, Probe: nothing, Remove: remove, Reject: reject, Pin: pin, Unpin: unpin, Ghost: nothing,
	Tick: nothing, Restore: insert, Resize: nothing, Candidate: nothing, Moved: moved, 14: nothing, 15: nothing,
}

// newer is not 0 if the kind of an event is larger than those that handlers can tell apart.
func newer(e *Event) uint32 { return uint32(e.Kind &^ 15) }

func nothing(*Event) {}

//go:nosplit
func insert(e *Event) {
	o := &kept.objects[e.Handle]
	if o.state|uint32(e.Flags&(FlagSoftPin|FlagHardPin))|newer(e) == 0 {
		*o = object{inOrder, e.Tenant, e.Segment}
		kept.order.Insert(e)
		return
	}
	insertPinned(e)
}

func insertPinned(e *Event) {
	o := &kept.objects[e.Handle]
	if newer(e) != 0 {
		return
	}
	if o.state != absent {
		kept.bad = true
		return
	}
	*o = object{absent, e.Tenant, e.Segment}
	putAside(e.Handle, pinOf[e.Flags&3])
}

//go:nosplit
func access(e *Event) {
	if kept.objects[e.Handle].state^inOrder|newer(e) == 0 {
		kept.order.Touch(e)
		return
	}
	accessAside(e)
}

func accessAside(e *Event) {
	switch state := kept.objects[e.Handle].state | newer(e); state {
	case refused:
		comesBack(e)
	case soft:
		kept.aside.MoveFront(soft, e.Handle)
	}
}

//go:nosplit
func remove(e *Event) {
	o := &kept.objects[e.Handle]
	if o.state^inOrder|newer(e)|kept.refusals == 0 {
		o.state = absent
		kept.order.Remove(e, e.Code == Evicted)
		return
	}
	removeAside(e)
}

// removeAside also brings one refused handle back with every so many evictions.
func removeAside(e *Event) {
	if newer(e) != 0 {
		return
	}
	leave(e, e.Code == Evicted)
	if e.Code != Evicted {
		return
	}
	if kept.evicted++; kept.evicted%comeBack == 0 && kept.aside.Back(refused) != 0 {
		kept.back = Event{Kind: Unpin, Handle: kept.aside.Back(refused), NowMS: e.NowMS}
		comesBack(&kept.back)
	}
}

// reject: h is in use, others go first.
func reject(e *Event) {
	if kept.objects[e.Handle].state^inOrder|newer(e) != 0 {
		return
	}
	if kept.refuser != nil {
		kept.refuser.Refuse(e.Handle)
		return
	}
	kept.order.Remove(e, false)
	putAside(e.Handle, refused)
}

// pinOf is the state by the flags of pins.
var pinOf = [4]uint32{absent, soft, hard, hard}

func pin(e *Event) {
	state := kept.objects[e.Handle].state | newer(e)
	if p := pinOf[e.Flags&3]; p != absent && state != absent && state <= hard {
		leave(e, false)
		putAside(e.Handle, p)
	}
}

func unpin(e *Event) {
	if s := kept.objects[e.Handle].state | newer(e); s == soft || s == hard {
		comesBack(e)
	}
}

func moved(e *Event) {
	if newer(e) == 0 {
		o := &kept.objects[e.Handle]
		o.tenant, o.segment = e.Tenant, e.Segment
	}
}

// comesBack gives a handle that is aside to the order again.
func comesBack(e *Event) {
	leave(e, false)
	kept.objects[e.Handle].state = inOrder
	kept.order.Insert(e)
}

// leave takes a handle out of whatever has it.
func leave(e *Event, evicted bool) {
	o := &kept.objects[e.Handle]
	was := o.state
	if was == none {
		return
	}
	o.state = absent
	if was == inOrder {
		kept.order.Remove(e, evicted)
		return
	}
	if was == refused {
		kept.refusals--
	}
	if was == refused || was == soft {
		kept.aside.Remove(e.Handle)
	}
}

func putAside(h, state uint32) {
	kept.objects[h].state = state
	if state == hard {
		return
	}
	if state == refused {
		kept.refusals++
	}
	kept.aside.PushFront(int(state), h)
}

func (keeper) Victims(dst []uint32, need Need) []uint32 {
	asked.need, asked.answer, asked.n, asked.skips = need, dst[:need.Max], 0, maxSkips
	asked.any = need.Tenant == AnyTenant && need.Segment == AnySegment
	kept.order.Victims()
	OfferAll(&kept.aside, refused)
	if need.Flags&NeedSoftPins != 0 {
		OfferAll(&kept.aside, soft)
	}
	return dst[:asked.n]
}

// asked is the question that is being answered.
var asked struct {
	need   Need
	any    bool
	answer []uint32
	n      int
	skips  int
}

// Offer names h as the next best victim and reports whether more are wanted. It is for Order.Victims.
func Offer(h uint32) bool {
	if !asked.any && !wanted(h) {
		return asked.skips > 0
	}
	if n := asked.n; n < len(asked.answer) {
		asked.answer[n] = h
		asked.n = n + 1
	}
	return asked.n < len(asked.answer)
}

func wanted(h uint32) bool {
	o := &kept.objects[h]
	if asked.need.Wants(o.tenant, o.segment) {
		return true
	}
	asked.skips--
	return false
}

// OfferAll offers the handles of a list, oldest first.
func OfferAll(l *Lists, list int) {
	for h := l.Back(list); h != 0 && Offer(h); h = l.Newer(h) {
	}
}
