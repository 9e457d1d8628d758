package transport

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
)

// fileKey identifies a memfd.
type fileKey struct {
	dev, ino uint64
	writable bool
}

// segment is one memfd that regions lie in. Transport.mu guards it.
type segment struct {
	key    fileKey
	id     uint64
	fd     int // the host's own
	size   uint64
	users  int // regions
	closed bool
}

func (g *segment) close() {
	if !g.closed {
		g.closed = true
		unix.Close(g.fd)
	}
}

// region is one registered region; it is its own transports.Registration.
type region struct {
	t    *Transport
	of   transports.Region
	id   uint64
	seg  *segment
	off  uint64
	ops  atomic.Int64  // in flight with the plugin, with this region as their local memory
	idle chan struct{} // holds a token when ops fell to 0; capacity 1

	// Guarded by t.mu.
	told    *session // the process that knows of it, or is being told
	refused error    // why the plugin cannot use it
	gone    bool     // Close was called
	freed   bool     // Close has done its work
}

var _ transports.Registration = (*region)(nil)

// inspect accepts memfds that cannot shrink: a plugin that mapped another file would die when it does.
func inspect(r transports.Region) (fd int, key fileKey, size uint64, err error) {
	fd, off, ok := r.FD()
	if !ok {
		return -1, key, 0, errors.New("it has no file descriptor")
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return -1, key, 0, errors.New("its file is no memfd that is sealed against shrinking")
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return -1, key, 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, key, 0, err
	}
	size = uint64(st.Size)
	if off < 0 || uint64(off) > size || r.Len() > size-uint64(off) {
		return -1, key, 0, fmt.Errorf("it is not inside the %d bytes of its memfd", size)
	}
	return fd, fileKey{dev: st.Dev, ino: st.Ino, writable: flags&unix.O_ACCMODE == unix.O_RDWR}, size, nil
}

// Register implements transports.Transport. While the plugin is not ready the region is only noted; the plugin learns of
// it as soon as it is.
func (t *Transport) Register(ctx context.Context, r transports.Region) (transports.Registration, error) {
	g, s, err := t.note(r)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return g, nil
	}
	err = s.registerAll(ctx, []*region{g})
	t.mu.Lock()
	refused := g.refused
	t.mu.Unlock()
	switch {
	case refused != nil:
		err = refused
	case err == nil:
		return g, nil
	case s.isDead(): // the next process is told
		return g, nil
	}
	closed, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.callTimeout)
	defer cancel()
	if e := g.Close(closed); e != nil {
		t.log.Error("a region that could not be registered is not quiet", "err", e)
	}
	return nil, t.errorf("register %d bytes at %#x: %w", r.Len(), r.Addr(), err)
}

// note adds r to the list. A session is returned if it is ready and has to be told.
func (t *Transport) note(r transports.Region) (*region, *session, error) {
	if r.Addr() == 0 || r.Len() == 0 || r.Addr()+r.Len() < r.Addr() {
		return nil, nil, t.errorf("region of %d bytes at %#x is no range of memory", r.Len(), r.Addr())
	}
	fd, key, size, why := inspect(r)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil, nil, t.errorf("register: %w", transports.ErrClosed)
	case why != nil:
		return nil, nil, t.errorf("region at %#x: %w: %w", r.Addr(), why, transports.ErrNotShareable)
	case t.regions[r.Addr()] != nil:
		return nil, nil, t.errorf("a region at %#x is registered already", r.Addr())
	}
	seg := t.segments[key]
	if seg == nil {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, nil, t.errorf("keep the memfd of the region at %#x: %w", r.Addr(), err)
		}
		t.lastID++
		seg = &segment{key: key, id: t.lastID, fd: own, size: size}
		t.segments[key] = seg
	}
	seg.users++
	t.lastID++
	_, off, _ := r.FD()
	g := &region{t: t, of: r, id: t.lastID, seg: seg, off: uint64(off), told: t.cur, idle: make(chan struct{}, 1)}
	t.regions[r.Addr()] = g
	return g, t.cur, nil
}

func (g *region) proto() *pluginv1.Region {
	a := g.of.Access()
	return &pluginv1.Region{RegionId: g.id, SegmentId: g.seg.id, Offset: g.off, Length: g.of.Len(), Address: g.of.Addr(), Location: g.of.Location(),
		RemoteRead: a&transports.RemoteRead != 0, RemoteWrite: a&transports.RemoteWrite != 0}
}

// local returns the region of an op's local side, counted as in use until done.
func (t *Transport) local(r transports.Region) (*region, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.regions[r.Addr()]
	switch {
	case t.closed:
		return nil, t.errorf("%w", transports.ErrClosed)
	case g == nil || g.of.Len() != r.Len():
		return nil, t.errorf("the local memory at %#x was not registered with this transport: %w", r.Addr(), transports.ErrNotShareable)
	case g.gone:
		return nil, t.errorf("the region at %#x is being unregistered: %w", r.Addr(), transports.ErrClosed)
	case g.refused != nil:
		return nil, g.refused
	}
	g.ops.Add(1)
	return g, nil
}

// done undoes local.
func (g *region) done() {
	if g.ops.Add(-1) == 0 {
		g.wake()
	}
}

func (g *region) isGone() bool {
	g.t.mu.Lock()
	defer g.t.mu.Unlock()
	return g.gone
}

func (g *region) wake() {
	select {
	case g.idle <- struct{}{}:
	default:
	}
}

// Close implements transports.Registration.
func (g *region) Close(ctx context.Context) error {
	t := g.t
	t.mu.Lock()
	g.gone = true
	s, freed := g.told, g.freed
	t.mu.Unlock()
	if freed {
		return nil
	}
	if s != nil {
		if err := s.unregister(ctx, g); err != nil {
			return t.errorf("region [%#x, %#x): %w", g.of.Addr(), g.of.Addr()+g.of.Len(), err)
		}
	}
	t.mu.Lock()
	if g.freed {
		t.mu.Unlock()
		return nil
	}
	g.freed = true
	if t.regions[g.of.Addr()] == g {
		delete(t.regions, g.of.Addr())
	}
	seg := g.seg
	seg.users--
	last := seg.users == 0
	if last && t.segments[seg.key] == seg {
		delete(t.segments, seg.key)
	}
	t.mu.Unlock()
	if last {
		if s != nil {
			s.drop(ctx, seg)
		}
		t.mu.Lock()
		seg.close()
		t.mu.Unlock()
	}
	return nil
}
