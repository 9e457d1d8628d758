package versions

import (
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

const (
	// quick is the longest time between a guessed answer and the end of its connection that says by itself "the
	// caller could not decode it". Clients close 0.1 to 0.3 ms after such an answer; the rest is for the network. A
	// program that reads one object and ends was never seen to do so in less than 4 ms.
	quick = 2 * time.Millisecond
	// hangUp is the same on a slow machine. It counts only if the caller proves that it lives on: its next
	// connection, within comeBack, goes on asking, where a new program begins with ServiceReady.
	hangUp   = 20 * time.Millisecond
	comeBack = time.Second
	// settle is how long a connection must go on after a guessed answer until the guess counts as confirmed.
	settle = 100 * time.Millisecond
	// forget is how long an address or client without connections is remembered.
	forget = time.Hour
	// Most addresses and clients that are remembered; those without connections are dropped above.
	maxHosts   = 1 << 14
	maxClients = 1 << 17
	// maxPatience bounds how many hang-ups in a row flip a guess, as a power of two.
	maxPatience = 4
)

// Memory remembers who speaks what. It is a [wire.Resolver]. All methods may be called concurrently.
type Memory struct {
	log *slog.Logger
	now func() time.Time
	// proc is where the kernel shows processes and sockets.
	proc      string
	processes lookups

	sameProcess                                             atomic.Uint64
	made, confirmed, rejected, contradictions, readyHangUps atomic.Uint64

	mu      sync.Mutex
	clients map[wire.UUID]*client
	hosts   map[netip.Addr]*host
	own     map[netip.Addr]bool // addresses of this host
	ownAt   time.Time
}

// New makes an empty memory.
func New(log *slog.Logger) *Memory {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Memory{log: log, now: time.Now, proc: "/proc", clients: map[wire.UUID]*client{}, hosts: map[netip.Addr]*host{}}
}

// client is what is known about one client id.
type client struct {
	id    wire.UUID
	known atomic.Uint32 // VersionSet
	host  *host         // of its latest connection
	open  int           // connections whose latest id it is; guarded by Memory.mu
	left  time.Time     // when open became 0
}

// host is what is known about one source address. Guarded by Memory.mu.
type host struct {
	addr               netip.Addr
	local              bool // this host
	callers            map[*caller]struct{}
	accepted, rejected wire.VersionSet // guesses
	strikes            int             // hang-ups since the last flip
	patience           int             // 2^patience hang-ups make a flip
	left               time.Time       // when the last caller went
	warned             time.Time       // of the hint about 0.3.7
	suspect            *guess          // of a connection that ended within hangUp, but not quick
	suspectAt          time.Time
}

// caller is one connection.
type caller struct {
	host    *host
	addr    netip.AddrPort
	pinned  bool
	version wire.Version // with pinned
	known   atomic.Uint32
	client  atomic.Pointer[client]
	guess   atomic.Pointer[guess]
	// begins: it sent ServiceReady, as programs do when they start.
	begins atomic.Bool
	// looked: its process was looked for; undecided: that should be done before the next answer.
	looked, undecided atomic.Bool
	pid               atomic.Int64 // 0: not known
}

// guess is an answer whose form the evidence does not decide.
type guess struct {
	fn    uint32
	set   wire.VersionSet // the versions that can read the answer
	from  wire.VersionSet // the versions among which it was chosen
	after wire.VersionSet // those that the same caller, as far as can be told, could not read before
	first time.Time
	last  atomic.Int64 // Unix nanoseconds of the latest answer of this form
	sure  atomic.Bool  // confirmed
}

// Opened and Closed are for the hooks of [rpc.Options]. A connection of a pinned listener has a [wire.Version]
// as its label.
func (m *Memory) Opened(c *rpc.Conn) {
	v, pinned := c.Label().(wire.Version)
	c.SetData(m.open(c.RemoteAddr(), v, pinned))
}

// Closed forgets a connection and draws the conclusion from how it ended.
func (m *Memory) Closed(c *rpc.Conn, info rpc.CloseInfo) {
	if x, ok := c.Data().(*caller); ok {
		m.close(x, info)
	}
}

// Resolve is part of [wire.Resolver].
func (m *Memory) Resolve(c *rpc.Call, client wire.UUID, candidates wire.VersionSet, ambiguous bool) wire.Version {
	x, ok := c.Conn().Data().(*caller)
	if !ok { // a server without our hooks
		v, _ := candidates.Newest()
		return v
	}
	v := m.resolve(x, c.Function(), client, candidates, ambiguous)
	if c.Slow() && x.undecided.Load() {
		m.look(x)
		v = m.resolve(x, c.Function(), client, candidates, ambiguous)
	}
	return v
}

func (m *Memory) open(addr netip.AddrPort, v wire.Version, pinned bool) *caller {
	c := &caller{addr: addr, version: v, pinned: pinned}
	c.known.Store(uint32(wire.AllVersions))
	if pinned {
		c.known.Store(uint32(wire.SetOf(v)))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.hosts[addr.Addr()]
	if h != nil && len(h.callers) == 0 && m.now().Sub(h.left) > forget {
		h = nil
	}
	if h == nil {
		if len(m.hosts) >= maxHosts {
			m.dropHosts()
		}
		h = &host{addr: addr.Addr(), local: m.ownAddress(addr.Addr()), callers: map[*caller]struct{}{}}
		m.hosts[addr.Addr()] = h
	}
	h.callers[c] = struct{}{}
	c.host = h
	return c
}

// dropHosts makes room by forgetting some addresses without connections; map order is the choice.
func (m *Memory) dropHosts() {
	looked := 0
	for a, h := range m.hosts {
		if len(h.callers) == 0 {
			delete(m.hosts, a)
		}
		if looked++; looked == 64 {
			return
		}
	}
}

func (m *Memory) dropClients() {
	looked := 0
	for id, c := range m.clients {
		if c.open == 0 {
			delete(m.clients, id)
		}
		if looked++; looked == 64 {
			return
		}
	}
}

// resolve is on the path of every request: without a guess it takes no lock.
func (m *Memory) resolve(c *caller, fn uint32, id wire.UUID, candidates wire.VersionSet, ambiguous bool) wire.Version {
	if fn == wire.ServiceReady.ID() {
		if c.pinned {
			return c.version
		}
		c.begins.Store(true)
		return wire.Newest
	}
	if fn == wire.FetchTasks.ID() && !c.pinned {
		if left := candidates &^ neverFetch; left != 0 {
			candidates = left
		}
	}
	if !id.IsZero() {
		if cl := c.client.Load(); cl == nil || cl.id != id {
			m.join(c, id)
		}
	}
	if g := c.guess.Load(); g != nil && !g.sure.Load() && m.now().Sub(g.first) >= settle {
		m.confirm(c, g)
	}
	known := m.narrow(c, candidates)
	newest, _ := known.Newest()
	if !ambiguous || known.Len() == 1 || sameAnswers(fn, known) {
		return newest
	}
	return m.choose(c, fn, known)
}

// possible returns what is known about a caller and its client.
func (c *caller) possible() wire.VersionSet {
	known := wire.VersionSet(c.known.Load())
	if cl := c.client.Load(); cl != nil {
		known &= wire.VersionSet(cl.known.Load())
	}
	return known
}

// narrow adds the evidence of one request.
func (m *Memory) narrow(c *caller, candidates wire.VersionSet) wire.VersionSet {
	known := c.possible()
	left := known & candidates
	switch {
	case left == 0: // what was believed is wrong: begin again with what is certain
		m.contradictions.Add(1)
		c.guess.Store(nil)
		c.known.Store(uint32(candidates))
		if cl := c.client.Load(); cl != nil {
			cl.known.Store(uint32(candidates))
		}
		return candidates
	case left == known:
		return left
	}
	c.known.And(uint32(left))
	if cl := c.client.Load(); cl != nil {
		cl.known.And(uint32(left))
	}
	return left
}

// join makes a connection and a client share what they know.
func (m *Memory) join(c *caller, id wire.UUID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := c.client.Load()
	if old != nil && old.id == id {
		return
	}
	m.leave(old)
	cl := m.clients[id]
	if cl == nil || cl.open == 0 && m.now().Sub(cl.left) > forget {
		if len(m.clients) >= maxClients {
			m.dropClients()
		}
		cl = &client{id: id}
		cl.known.Store(uint32(wire.AllVersions))
		m.clients[id] = cl
	}
	cl.open++
	cl.host = c.host
	known := cl.known.Load() & c.known.Load()
	if known == 0 { // the next request decides
		known = c.known.Load()
	}
	cl.known.Store(known)
	c.known.Store(known)
	c.client.Store(cl)
}

func (m *Memory) leave(cl *client) {
	if cl == nil {
		return
	}
	if cl.open--; cl.open == 0 {
		cl.left = m.now()
	}
}

// choose guesses among versions that expect different answers.
func (m *Memory) choose(c *caller, fn uint32, among wire.VersionSet) wire.Version {
	now := m.now()
	if g := c.guess.Load(); g != nil && g.set&among != 0 {
		g.last.Store(now.UnixNano())
		v, _ := (g.set & among).Newest()
		return v
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.host.local && !c.looked.Load() {
		if _, disagree := c.host.agreement(c, among); disagree {
			c.undecided.Store(true)
			v, _ := among.Newest()
			return v // not sent, if the handler asks Undecided
		}
	}
	m.cameBack(c, now)
	v, after := c.host.choose(c, among)
	g := &guess{fn: fn, set: withAnswerOf(fn, v, among), from: among, after: after, first: now}
	g.last.Store(now.UnixNano())
	c.guess.Store(g)
	m.made.Add(1)
	return v
}

// choose picks a version for a new guess; after is what it takes for rejected by this caller.
func (h *host) choose(c *caller, among wire.VersionSet) (v wire.Version, after wire.VersionSet) {
	agreed, disagree := h.agreement(c, among)
	pick := among
	if disagree {
		if left := among &^ h.rejected; left != 0 {
			pick, after = left, h.rejected&among
		}
		h.rejected &^= among // the next caller is likely another one
	} else {
		pick = agreed
		left := pick &^ h.rejected
		if left == 0 {
			left = among &^ h.rejected
		}
		if left == 0 { // nothing that was tried pleased: hang-ups mean little here
			h.rejected &^= among
			h.patience = min(h.patience+1, maxPatience)
			left = pick
		}
		if liked := left & h.accepted; liked != 0 {
			left = liked
		}
		pick = left
	}
	v, _ = pick.Newest()
	return v, after
}

// agreement returns which versions of among the other callers of the address have in common; disagree tells
// that there is none. Callers that cannot send such a request do not count, nor do those about which nothing
// is known.
func (h *host) agreement(but *caller, among wire.VersionSet) (common wire.VersionSet, disagree bool) {
	common = among
	for c := range h.callers {
		known := c.possible() & among
		if c == but || known == 0 {
			continue
		}
		if common &= known; common == 0 {
			return 0, true
		}
	}
	return common, false
}

// confirm turns a guess that the caller lived with into knowledge.
func (m *Memory) confirm(c *caller, g *guess) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.guess.Load() != g || !g.sure.CompareAndSwap(false, true) {
		return
	}
	m.confirmed.Add(1)
	if left := c.possible() & g.set; left != 0 {
		c.known.And(uint32(left))
		if cl := c.client.Load(); cl != nil {
			cl.known.And(uint32(left))
		}
	}
	h := c.host
	h.accepted = h.accepted&^g.from | g.set
	h.suspect = nil
	h.rejected &^= g.set
	h.strikes, h.patience = 0, 0
}

func (m *Memory) close(c *caller, info rpc.CloseInfo) {
	now := m.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	h := c.host
	delete(h.callers, c)
	if len(h.callers) == 0 {
		h.left = now
	}
	m.leave(c.client.Load())
	if info.Reason != rpc.ClosedByPeer || !info.Answered {
		return
	}
	g := c.guess.Load()
	within := func(d time.Duration) bool {
		return now.UnixNano()-g.last.Load() <= int64(d) || info.SinceAnswer <= d && info.LastFunction == g.fn
	}
	switch {
	case g != nil && !g.sure.Load() && within(quick):
		m.strike(h, g)
	case g != nil && !g.sure.Load() && within(hangUp):
		h.suspect, h.suspectAt = g, now
	case !c.pinned && info.SinceAnswer <= hangUp && info.LastFunction == wire.ServiceReady.ID():
		m.readyHangUps.Add(1)
		if now.Sub(h.warned) > forget {
			h.warned = now
			m.log.Warn("a client hung up on the answer of ServiceReady, as clients of Mooncake 0.3.7 do on this port; "+
				"serve those on a port of their own: --rpc_compat=0.3.7:50057", "address", h.addr)
		}
	}
}

// cameBack counts a slow hang-up whose caller asks on, on a new connection.
func (m *Memory) cameBack(c *caller, now time.Time) {
	h := c.host
	if h.suspect == nil || c.begins.Load() {
		return
	}
	g := h.suspect
	h.suspect = nil
	if now.Sub(h.suspectAt) <= comeBack {
		m.strike(h, g)
	}
}

// strike counts a hang-up against a guess and flips it when there were enough.
func (m *Memory) strike(h *host, g *guess) {
	m.rejected.Add(1)
	if h.strikes++; h.strikes < 1<<h.patience {
		return
	}
	h.strikes = 0
	h.rejected |= g.set | g.after
	h.accepted &^= g.set
	m.log.Info("a client could not read an answer: its address is answered for another Mooncake version from now on",
		"address", h.addr, "answered_for", g.set.String(), "possible", g.from.String())
}
