package shm

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports"
)

// owner hands out this node's memory.
type owner struct {
	t   *Transport
	ln  *net.UnixListener
	uid int // of peers that are let in

	mu      sync.Mutex
	conns   map[*served]struct{}
	closing bool
	wg      sync.WaitGroup
}

// served is one peer that maps, or may come to map, memory of this node.
type served struct {
	o    *owner
	c    *net.UnixConn
	pid  int
	gone chan struct{} // closed when the peer has closed its side: it maps nothing any more

	mu      sync.Mutex // also the order of what is sent
	granted map[uint64]struct{}
	drops   map[uint64]chan struct{} // closed at the peer's ack
	proved  bool
}

func newOwner(t *Transport, uid int) (*owner, error) {
	ln, err := listen(t.cfg.SocketDir)
	if err != nil {
		return nil, err
	}
	o := &owner{t: t, ln: ln, uid: uid, conns: map[*served]struct{}{}}
	o.wg.Go(o.accept)
	return o, nil
}

func (o *owner) name() string { return o.ln.Addr().String() }

func (o *owner) accept() {
	for {
		c, err := o.ln.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			o.t.warn("shm: accept", err)
			time.Sleep(20 * time.Millisecond) // no descriptors left: give others the processor
			continue
		}
		s := &served{o: o, c: c, gone: make(chan struct{}), granted: map[uint64]struct{}{}, drops: map[uint64]chan struct{}{}}
		o.mu.Lock()
		full := o.closing || len(o.conns) >= o.t.cfg.MaxPeers
		if !full {
			o.conns[s] = struct{}{}
			o.wg.Go(s.run)
		}
		o.mu.Unlock()
		if full {
			o.t.m.refused.WithLabelValues("full").Inc()
			s.refuse("this node serves as many peers as max_peers allows")
			c.Close()
		}
	}
}

func (o *owner) all() []*served {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make([]*served, 0, len(o.conns))
	for s := range o.conns {
		all = append(all, s)
	}
	return all
}

// close makes every peer let go and waits for it, at most drain_timeout.
func (o *owner) close() error {
	o.mu.Lock()
	o.closing = true
	o.mu.Unlock()
	o.ln.Close()
	all := o.all()
	for _, s := range all {
		s.shut()
	}
	limit := time.NewTimer(o.t.cfg.DrainTimeout)
	defer limit.Stop()
	var err error
	for _, s := range all {
		if err == nil {
			select {
			case <-s.gone:
				continue
			case <-limit.C:
			}
		}
		select {
		case <-s.gone:
		default:
			err = fmt.Errorf("shm: peer process %d did not let go of this node's memory within %v: %w", s.pid, o.t.cfg.DrainTimeout, transports.ErrUnquiet)
			s.c.Close()
		}
	}
	o.wg.Wait()
	return err
}

// run serves one peer.
func (s *served) run() {
	t := s.o.t
	err := s.prove()
	if err == nil {
		t.m.serving.Inc()
		err = s.serve()
		t.m.serving.Dec()
	}
	s.o.mu.Lock()
	delete(s.o.conns, s)
	s.o.mu.Unlock()
	s.c.Close()
	close(s.gone)
	if err != nil {
		t.warn("shm: a peer was dropped", err)
	}
}

// prove lets a peer of the same user in once both sides have seen the other's token in the same memory.
func (s *served) prove() error {
	t := s.o.t
	s.c.SetDeadline(time.Now().Add(t.cfg.ConnectTimeout))
	refuse := func(reason, text string) error {
		t.m.refused.WithLabelValues(reason).Inc()
		s.refuse(text)
		return fmt.Errorf("%s: %s", reason, text)
	}
	if err := checkPeer(s.c, s.o.uid); err != nil {
		return refuse("uid", err.Error())
	}
	if raw, err := s.c.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				s.pid = int(cred.Pid)
			}
		})
	}
	m, _, err := receive(s.c)
	if err != nil {
		t.m.refused.WithLabelValues("protocol").Inc()
		return err
	}
	if m.typ != msgHello || m.version < protoVersion {
		return refuse("version", fmt.Sprintf("this node speaks version %d of the protocol", protoVersion))
	}
	if m.text != t.host.Identity().Instance {
		return refuse("instance", "the engine you look for is not here any more")
	}
	fd, mem, token, err := newControl()
	if err != nil {
		return refuse("memory", err.Error())
	}
	defer unix.Munmap(mem)
	defer unix.Close(fd)
	if err := send(s.c, &message{typ: msgOffer, version: protoVersion}, fd); err != nil {
		return err
	}
	m, _, err = receive(s.c)
	if err != nil || m.typ != msgProof || subtle.ConstantTimeCompare(m.token[:], token[:]) != 1 {
		return errors.Join(refuse("token", "the token does not prove that we share memory"), err)
	}
	answer := message{typ: msgWelcome}
	copy(answer.token[:], mem[tokenLen:])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proved = true
	if err := send(s.c, &answer, -1); err != nil {
		return err
	}
	return s.c.SetDeadline(time.Time{})
}

func (s *served) refuse(text string) {
	s.c.SetWriteDeadline(time.Now().Add(sendTimeout))
	_ = send(s.c, &message{typ: msgRefuse, text: text}, -1) // it is being refused anyway
}

// serve answers until the peer has closed its side. After an error of the peer's it only waits for that.
func (s *served) serve() error {
	var why error
	for {
		m, fd, err := receive(s.c)
		if fd >= 0 {
			unix.Close(fd)
		}
		if err != nil && !errors.Is(err, transports.ErrProtocol) {
			return why // the end of the peer, or of this transport
		}
		switch {
		case why != nil: // nothing it says counts any more
			continue
		case err == nil && m.typ == msgLookup:
			s.answer(&m)
			continue
		case err == nil && m.typ == msgAck && s.acked(m.id):
			continue
		case err == nil:
			err = fmt.Errorf("shm: unexpected message of type %d: %w", m.typ, transports.ErrProtocol)
		}
		why = err
		s.shut()
	}
}

// shut asks the peer to let go of everything and to close its side.
func (s *served) shut() {
	s.mu.Lock()
	proved := s.proved
	s.mu.Unlock()
	if proved {
		s.c.CloseWrite()
	} else {
		s.c.Close() // it has got nothing yet
	}
}

// answer grants a region to the peer.
func (s *served) answer(q *message) {
	t := s.o.t
	t.regs.use.RLock()
	r := t.regs.find(q.addr, q.len)
	if r != nil {
		s.mu.Lock() // whoever unregisters r waits for the answer and sends the drop behind it
		s.granted[r.id] = struct{}{}
	}
	t.regs.use.RUnlock()
	if r == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.say(t.none(q), -1)
		return
	}
	defer s.mu.Unlock()
	fd := r.fd
	if t.cfg.Mode == readOnly || r.access&transports.RemoteWrite == 0 {
		ro, err := reopenReadOnly(fd)
		if err != nil {
			delete(s.granted, r.id)
			t.warn("shm: open a region for reading", err)
			s.say(&message{typ: msgNone, seq: q.seq, addr: r.addr, len: r.end - r.addr, flags: whyNotShareable}, -1)
			return
		}
		defer unix.Close(ro)
		fd = ro
	}
	s.say(&message{typ: msgRegion, seq: q.seq, id: r.id, addr: r.addr, len: r.end - r.addr, off: r.off, flags: byte(r.access)}, fd)
}

// none is the answer for a range that is in no region with a memfd.
func (t *Transport) none(q *message) *message {
	m := &message{typ: msgNone, seq: q.seq, addr: q.addr, len: q.len, flags: whyUnknown}
	ref, err := t.host.Find(q.addr, q.len)
	if err != nil {
		return m
	}
	ref.Release()
	m.flags = whyNotShareable
	s := t.regs.shunned(q.addr, q.len)
	if ref, err := t.host.Find(s.addr, s.end-s.addr); err == nil {
		ref.Release()
		m.addr, m.len = s.addr, s.end-s.addr
	}
	return m
}

// say sends in the connection's order. A peer that does not read is shut out. s.mu is held.
func (s *served) say(m *message, fd int) {
	s.c.SetWriteDeadline(time.Now().Add(sendTimeout))
	if err := send(s.c, m, fd); err != nil {
		s.c.CloseWrite()
	}
}

func (s *served) acked(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch, ok := s.drops[id]
	if !ok {
		return false
	}
	delete(s.drops, id)
	delete(s.granted, id)
	close(ch)
	return true
}

// revoke returns when the peer does not map the region any more, or when ctx ends.
func (s *served) revoke(ctx context.Context, id uint64) error {
	s.mu.Lock()
	ch := s.drops[id]
	if _, has := s.granted[id]; has && ch == nil {
		ch = make(chan struct{})
		s.drops[id] = ch
		s.say(&message{typ: msgDrop, id: id}, -1)
	}
	s.mu.Unlock()
	if ch == nil {
		return nil
	}
	select {
	case <-ch:
	case <-s.gone:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
