package shm

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/core/guard"
	"github.com/mooncake-agent/mooncake/transports"
)

var (
	// errUnknown: the owner has to be asked about the range.
	errUnknown = errors.New("shm: range not known yet")
	// errRevoked: the owner took the region away in the middle of an op.
	errRevoked = fmt.Errorf("shm: the peer unregistered the region: %w", transports.ErrInterrupted)
)

func canceled(err error) error { return fmt.Errorf("shm: %w", err) }

// link is a live connection to an owner, and what is mapped over it.
type link struct {
	t  *Transport
	p  *Peer
	c  *net.UnixConn
	to target

	// why is set by whoever ends the link first.
	why atomic.Pointer[error]

	// use is held for reading while bytes are copied, for writing while mappings change.
	use      sync.RWMutex
	regs     []*remote // sorted by address, no overlaps
	byID     map[uint64]*remote
	shunned  []shunned
	mappings map[mapKey]*mapping
	down     error // set when nothing is mapped any more

	mu         sync.Mutex
	head, tail *call // parked: their ranges are not known
	asking     bool  // a question is open
	asked      span  // its range
	seq        uint64
	timer      *time.Timer
	over       bool

	done chan struct{}
}

// remote is a region of the peer.
type remote struct {
	span
	id       uint64
	access   transports.Access
	data     []byte
	m        *mapping
	unusable error // it was offered, but it is not mapped
}

// mapping is one memfd, mapped once however many regions lie in it.
type mapping struct {
	key   mapKey
	data  []byte
	users int
}

type mapKey struct {
	dev, ino, size uint64
	writable       bool
}

// shunned is a range of which the owner said that it cannot be shared.
type shunned struct {
	span
	until time.Time
}

const (
	shunFor    = time.Second
	maxShunned = 256
)

// connect reaches the owner and proves in both directions that the two processes see the same memory. Errors wrap
// transports.ErrUnreachable.
func (t *Transport) connect(ctx context.Context, p *Peer, to target) (*link, error) {
	fail := func(reason string, err error) (*link, error) {
		t.m.dialFailures.WithLabelValues(reason).Inc()
		return nil, fmt.Errorf("shm: segment %q, socket %s: %s: %w: %w", to.segment, to.socket, reason, transports.ErrUnreachable, err)
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.ConnectTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", to.socket)
	if err != nil {
		return fail("connect", err)
	}
	c := conn.(*net.UnixConn)
	end, _ := ctx.Deadline()
	c.SetDeadline(end)
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })
	err = t.prove(c, to)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		reason := "proof"
		if errors.Is(err, errForeignUser) {
			reason = "uid"
		}
		return fail(reason, err)
	}
	c.SetDeadline(time.Time{})
	l := &link{t: t, p: p, c: c, to: to, mappings: map[mapKey]*mapping{}, byID: map[uint64]*remote{}, done: make(chan struct{})}
	t.m.links.Inc()
	return l, nil
}

// prove is the initiator's side of the handshake.
func (t *Transport) prove(c *net.UnixConn, to target) error {
	if err := checkPeer(c, t.uid); err != nil {
		return err
	}
	if err := send(c, &message{typ: msgHello, version: protoVersion, text: to.instance}, -1); err != nil {
		return err
	}
	m, fd, err := receive(c)
	if err != nil {
		return err
	}
	if fd >= 0 {
		defer unix.Close(fd)
	}
	if m.typ == msgRefuse {
		return fmt.Errorf("the peer refused: %q", m.text)
	}
	if m.typ != msgOffer || m.version < protoVersion {
		return fmt.Errorf("message of type %d instead of an offer: %w", m.typ, transports.ErrProtocol)
	}
	f, err := inspect(fd)
	if err != nil {
		return fmt.Errorf("control memory: %w", err)
	}
	if f.size < controlLen || !f.writable {
		return fmt.Errorf("control memory of %d bytes: %w", f.size, transports.ErrProtocol)
	}
	mem, err := unix.Mmap(fd, 0, controlLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map control memory: %w", err)
	}
	defer unix.Munmap(mem)
	proof := message{typ: msgProof}
	var own [tokenLen]byte
	rand.Read(own[:])
	if err := guard.Run(func() {
		copy(proof.token[:], mem)
		copy(mem[tokenLen:], own[:])
	}); err != nil {
		return err
	}
	if err := send(c, &proof, -1); err != nil {
		return err
	}
	m, _, err = receive(c)
	if err != nil {
		return err
	}
	if m.typ == msgRefuse {
		return fmt.Errorf("the peer refused: %q", m.text)
	}
	if m.typ != msgWelcome || subtle.ConstantTimeCompare(m.token[:], own[:]) != 1 {
		return errors.New("the peer does not see our token: this is not the same memory")
	}
	return nil
}

// run serves the link until it ends.
func (l *link) run() {
	err := l.read()
	l.fail(err)
	l.end()
}

// fail ends the link with err unless it has ended before.
func (l *link) fail(err error) {
	if l.why.CompareAndSwap(nil, &err) {
		l.c.SetDeadline(time.Now().Add(-time.Second)) // wakes the reader
	}
}

func (l *link) read() error {
	for {
		m, fd, err := receive(l.c)
		if err == nil {
			err = l.handle(&m, fd)
		}
		if errors.Is(err, transports.ErrProtocol) {
			return err
		}
		if err != nil {
			return fmt.Errorf("shm: segment %q: the peer has gone: %w", l.to.segment, err)
		}
	}
}

func (l *link) handle(m *message, fd int) error {
	if fd >= 0 {
		defer unix.Close(fd)
	}
	switch m.typ {
	case msgRegion:
		if err := l.answered(m); err != nil {
			return err
		}
		l.resolve(l.adopt(m, fd))
		return nil
	case msgNone:
		if err := l.answered(m); err != nil {
			return err
		}
		if m.flags == whyNotShareable {
			l.shun(span{m.addr, m.addr + m.len})
		}
		l.resolve(noneError(m))
		return nil
	case msgDrop:
		l.forget(m.id)
		return l.say(&message{typ: msgAck, id: m.id})
	}
	return fmt.Errorf("shm: unexpected message of type %d: %w", m.typ, transports.ErrProtocol)
}

func noneError(m *message) error {
	if m.flags == whyNotShareable {
		return fmt.Errorf("shm: the memory at %#x has no file descriptor: %w", m.addr, transports.ErrNotShareable)
	}
	return fmt.Errorf("shm: [%#x, %#x) is not registered: %w", m.addr, m.addr+m.len, transports.ErrRejected)
}

func (l *link) say(m *message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sayLocked(m)
}

func (l *link) sayLocked(m *message) error {
	l.c.SetWriteDeadline(time.Now().Add(sendTimeout))
	return send(l.c, m, -1)
}

// answered checks that a message answers the question that is open.
func (l *link) answered(m *message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.asking || m.seq != l.seq || !(span{m.addr, m.addr + m.len}).contains(l.asked.addr, l.asked.end-l.asked.addr) {
		return fmt.Errorf("shm: segment %q: an answer to no question: %w", l.to.segment, transports.ErrProtocol)
	}
	return nil
}

// adopt maps a region. An error means that its ops take another path.
func (l *link) adopt(m *message, fd int) error {
	r := &remote{span: span{m.addr, m.addr + m.len}, id: m.id, access: transports.Access(m.flags)}
	l.use.Lock()
	defer l.use.Unlock()
	if o := l.byID[r.id]; o != nil && o.span == r.span {
		return o.unusable // asked for just before it was known
	} else if o != nil {
		return fmt.Errorf("shm: segment %q: two regions with the number %d: %w", l.to.segment, r.id, transports.ErrNotShareable)
	}
	if i := l.place(r.addr); i > 0 && l.regs[i-1].end > r.addr || i < len(l.regs) && l.regs[i].addr < r.end {
		return fmt.Errorf("shm: segment %q: region [%#x, %#x) overlaps another one: %w", l.to.segment, r.addr, r.end, transports.ErrNotShareable)
	}
	r.m, r.unusable = l.mapFile(fd, m.off, m.len, r.access)
	if r.unusable == nil {
		r.data = r.m.data[m.off : m.off+m.len]
	} else {
		l.t.m.dialFailures.WithLabelValues("memory").Inc()
		l.t.warn("shm: a region of a peer is not used", r.unusable)
	}
	l.regs = slices.Insert(l.regs, l.place(r.addr), r)
	l.byID[r.id] = r
	return r.unusable
}

// mapFile maps a peer's memfd, or finds it mapped. l.use is held for writing.
func (l *link) mapFile(fd int, off, n uint64, access transports.Access) (*mapping, error) {
	bad := func(err error) (*mapping, error) {
		return nil, fmt.Errorf("shm: segment %q: memory that the peer handed over: %w: %w", l.to.segment, err, transports.ErrNotShareable)
	}
	f, err := inspect(fd)
	if err != nil {
		return bad(err)
	}
	if f.size < off+n {
		return bad(fmt.Errorf("%d bytes at offset %d are not inside its %d bytes", n, off, f.size))
	}
	key := mapKey{dev: f.dev, ino: f.ino, size: f.size, writable: f.writable && access&transports.RemoteWrite != 0 && l.t.cfg.Mode != readOnly}
	if m := l.mappings[key]; m != nil {
		m.users++
		return m, nil
	}
	prot := unix.PROT_READ
	if key.writable {
		prot |= unix.PROT_WRITE
	}
	if f.size > 1<<62 {
		return bad(fmt.Errorf("%d bytes cannot be mapped", f.size))
	}
	data, err := unix.Mmap(fd, 0, int(f.size), prot, unix.MAP_SHARED)
	if err != nil {
		return bad(fmt.Errorf("map %d bytes: %w", f.size, err))
	}
	m := &mapping{key: key, data: data, users: 1}
	l.mappings[key] = m
	l.t.m.mapped.Add(float64(len(data)))
	return m, nil
}

func (l *link) unmap(m *mapping) {
	if m.users--; m.users > 0 {
		return
	}
	delete(l.mappings, m.key)
	l.t.m.mapped.Sub(float64(len(m.data)))
	if err := unix.Munmap(m.data); err != nil {
		l.t.warn("shm: unmap", err)
	}
}

// forget lets go of a region that its owner unregisters, after the pieces under way.
func (l *link) forget(id uint64) {
	l.use.Lock()
	defer l.use.Unlock()
	r := l.byID[id]
	if r == nil {
		return
	}
	delete(l.byID, id)
	i := l.place(r.addr)
	l.regs = slices.Delete(l.regs, i, i+1)
	if r.m != nil {
		l.unmap(r.m)
	}
}

func (l *link) shun(s span) {
	l.use.Lock()
	defer l.use.Unlock()
	now := time.Now()
	l.shunned = slices.DeleteFunc(l.shunned, func(o shunned) bool { return now.After(o.until) })
	if len(l.shunned) == maxShunned {
		l.shunned = slices.Delete(l.shunned, 0, 1)
	}
	l.shunned = append(l.shunned, shunned{s, now.Add(shunFor)})
}

// place is where a region with that address is or belongs.
func (l *link) place(addr uint64) int {
	lo, hi := 0, len(l.regs)
	for lo < hi {
		if mid := (lo + hi) / 2; l.regs[mid].addr < addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// find returns the region that contains the range, errUnknown, or why the range cannot be used. l.use is held.
func (l *link) find(s span) (*remote, error) {
	i := l.place(s.addr)
	if i == len(l.regs) || l.regs[i].addr != s.addr {
		i--
	}
	if i >= 0 && l.regs[i].contains(s.addr, s.end-s.addr) {
		r := l.regs[i]
		return r, r.unusable
	}
	for _, o := range l.shunned {
		if o.contains(s.addr, s.end-s.addr) && time.Now().Before(o.until) {
			return nil, fmt.Errorf("shm: the memory at %#x has no file descriptor: %w", s.addr, transports.ErrNotShareable)
		}
	}
	return nil, errUnknown
}

// move copies one piece. whole is the range of the op, which must lie in one region.
func (l *link) move(local []byte, addr uint64, whole span, write bool, reg *registration) error {
	l.use.RLock()
	defer l.use.RUnlock()
	if l.down != nil {
		return l.down
	}
	r, err := l.find(whole)
	if err != nil {
		return err
	}
	need := transports.RemoteRead
	if write {
		need = transports.RemoteWrite
	}
	if r.access&need == 0 {
		return fmt.Errorf("shm: the region at %#x does not allow it: %w", r.addr, transports.ErrRejected)
	}
	if write && !r.m.key.writable {
		return fmt.Errorf("shm: the region at %#x is mapped for reading only: %w", r.addr, transports.ErrNotShareable)
	}
	if reg != nil {
		l.t.regs.use.RLock()
		defer l.t.regs.use.RUnlock()
		if reg.gone {
			return errLocalGone
		}
	}
	far := r.data[addr-r.addr:][:len(local)]
	if write {
		err = guard.Copy(far, local)
	} else {
		err = guard.Copy(local, far)
	}
	if err != nil {
		return fmt.Errorf("shm: segment %q: %w: %w", l.to.segment, transports.ErrInterrupted, err)
	}
	return nil
}

// park keeps a call whose range is not known until the owner has answered.
func (l *link) park(c *call) {
	l.mu.Lock()
	over := l.over
	if err := c.b.ctx.Err(); over || err != nil { // the watch may have come before; it takes l.mu
		l.mu.Unlock()
		if over {
			err = l.reason(false)
		} else {
			err = canceled(err)
		}
		c.end(err)
		return
	}
	if l.tail == nil {
		l.head = c
	} else {
		l.tail.next = c
	}
	l.tail = c
	if !l.asking {
		l.ask()
	}
	l.mu.Unlock()
}

// ask sends the question about the first parked call. One is open at a time. l.mu is held.
func (l *link) ask() {
	l.seq++
	l.asking, l.asked = true, l.head.span()
	if l.timer == nil {
		l.timer = time.AfterFunc(l.t.cfg.AnswerTimeout, func() {
			l.fail(fmt.Errorf("shm: segment %q: no answer within %v: %w", l.to.segment, l.t.cfg.AnswerTimeout, transports.ErrTimeout))
		})
	} else {
		l.timer.Reset(l.t.cfg.AnswerTimeout)
	}
	if err := l.sayLocked(&message{typ: msgLookup, seq: l.seq, addr: l.asked.addr, len: l.asked.end - l.asked.addr}); err != nil {
		l.fail(fmt.Errorf("shm: segment %q: %w", l.to.segment, err))
	}
}

// resolve ends the parked calls with the range that was asked for with err, and queues again all whose ranges are
// known by now.
func (l *link) resolve(err error) {
	var first, last, failed *call
	bytes := uint64(0)
	l.mu.Lock()
	l.timer.Stop()
	all := l.head
	l.head, l.tail = nil, nil
	l.use.RLock()
	for all != nil {
		c := all
		all, c.next = c.next, nil
		_, unknown := l.find(c.span())
		switch {
		case err != nil && c.span() == l.asked:
			c.next, failed = failed, c
		case unknown == errUnknown:
			if l.tail == nil {
				l.head = c
			} else {
				l.tail.next = c
			}
			l.tail = c
		default:
			if last == nil {
				first = c
			} else {
				last.next = c
			}
			last = c
			bytes += c.len()
		}
	}
	l.use.RUnlock()
	l.asking = false
	if l.head != nil {
		l.ask()
	}
	l.mu.Unlock()
	endAll(failed, err)
	if first != nil {
		l.t.pool.add(first, last, bytes, false)
	}
}

// dropParked ends the parked calls of a batch whose context has ended.
func (l *link) dropParked(b *batch) {
	var over *call
	l.mu.Lock()
	all := l.head
	l.head, l.tail = nil, nil
	for all != nil {
		c := all
		all, c.next = c.next, nil
		if c.b == b {
			c.next, over = over, c
			continue
		}
		if l.tail == nil {
			l.head = c
		} else {
			l.tail.next = c
		}
		l.tail = c
	}
	l.mu.Unlock()
	endAll(over, canceled(b.ctx.Err()))
}

// reason is the error of an op on a link that has ended.
func (l *link) reason(started bool) error {
	err := *l.why.Load()
	if errors.Is(err, transports.ErrClosed) {
		return err
	}
	if started {
		return fmt.Errorf("%w: %w", transports.ErrInterrupted, err)
	}
	return fmt.Errorf("%w: %w", transports.ErrUnreachable, err)
}

// end lets go of the peer's memory and tells it so by closing the connection.
func (l *link) end() {
	l.use.Lock()
	l.down = l.reason(true)
	for _, r := range l.regs {
		if r.m != nil {
			l.unmap(r.m)
		}
	}
	l.regs, l.byID = nil, nil
	l.use.Unlock()
	l.p.lost(l)
	l.mu.Lock()
	l.over = true
	parked := l.head
	l.head, l.tail = nil, nil
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	l.c.Close()
	l.t.m.links.Dec()
	endAll(parked, l.reason(false))
	l.t.pool.drop(func(c *call) bool { return c.l == l }, l.down)
	close(l.done)
}
