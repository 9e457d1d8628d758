package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
)

// memory is what the node has handed over: mapped segments, and the regions in them.
type memory struct {
	mu       sync.Mutex
	segments map[uint64]*segment
	regions  map[uint64]*region // by id
	sorted   []*region          // by address
}

// segment is one mapped memfd.
type segment struct {
	f       *os.File
	data    []byte
	regions int
}

// region is one region of the node in this process.
type region struct {
	m      *memory
	id     uint64
	seg    *segment
	off    uint64
	addr   uint64
	n      uint64
	where  string
	access transports.Access
	reg    transports.Registration

	refs  int // guarded by m.mu
	gone  bool
	quiet chan struct{} // closed when gone and without refs
}

var _ transports.Region = (*region)(nil)

func (m *memory) init() {
	m.segments, m.regions = map[uint64]*segment{}, map[uint64]*region{}
}

// Addr is the published address.
func (r *region) Addr() uint64 { return r.addr }

// Len is the size in bytes.
func (r *region) Len() uint64 { return r.n }

// Location is upstream's memory location.
func (r *region) Location() string { return r.where }

// Access is what peers may do.
func (r *region) Access() transports.Access { return r.access }

// Bytes is the memory in this process.
func (r *region) Bytes() []byte { return r.seg.data[r.off : r.off+r.n : r.off+r.n] }

// FD is the memfd that the node handed over.
func (r *region) FD() (int, int64, bool) { return int(r.seg.f.Fd()), int64(r.off), true }

// ReleaseRef implements the owner of a transports.Ref.
func (r *region) ReleaseRef() {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if r.refs--; r.refs == 0 && r.gone {
		close(r.quiet)
	}
}

// give maps a segment. The file is memory's from then on.
func (m *memory) give(seg *pluginv1.Segment, f *os.File) (err error) {
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	m.mu.Lock()
	defer m.mu.Unlock()
	if seg.SegmentId == 0 || m.segments[seg.SegmentId] != nil {
		return fmt.Errorf("segment %d was handed over before", seg.SegmentId)
	}
	if n := seg.Length; n == 0 || n > 1<<62 {
		return fmt.Errorf("segment of %d bytes", n)
	}
	prot := unix.PROT_READ
	if seg.Writable {
		prot |= unix.PROT_WRITE
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(seg.Length), prot, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %d bytes: %w", seg.Length, err)
	}
	if err := unix.Madvise(data, unix.MADV_DONTFORK); err != nil { // no child may hold it when this process is dead
		unix.Munmap(data)
		return fmt.Errorf("madvise: %w", err)
	}
	m.segments[seg.SegmentId] = &segment{f: f, data: data}
	return nil
}

func (m *memory) drop(id uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.segments[id]
	switch {
	case g == nil:
		return fmt.Errorf("segment %d was not handed over", id)
	case g.regions > 0:
		return fmt.Errorf("segment %d still holds %d regions", id, g.regions)
	}
	delete(m.segments, id)
	return errors.Join(unix.Munmap(g.data), g.f.Close())
}

// clear unmaps everything. The transport is closed.
func (m *memory) clear() (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, g := range m.segments {
		err = errors.Join(err, unix.Munmap(g.data), g.f.Close())
		delete(m.segments, id)
	}
	m.regions, m.sorted = map[uint64]*region{}, nil
	return err
}

// region checks what the node says. The region is not in use before add.
func (m *memory) region(q *pluginv1.Region) (*region, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.segments[q.SegmentId]
	switch {
	case g == nil:
		return nil, fmt.Errorf("segment %d was not handed over: %w", q.SegmentId, transports.ErrNotRegistered)
	case q.RegionId == 0 || m.regions[q.RegionId] != nil:
		return nil, fmt.Errorf("region %d is known: %w", q.RegionId, transports.ErrNotRegistered)
	case q.Length == 0 || q.Offset > uint64(len(g.data)) || q.Length > uint64(len(g.data))-q.Offset || q.Address == 0 || q.Address+q.Length < q.Address:
		return nil, fmt.Errorf("region of %d bytes at offset %d of %d: %w", q.Length, q.Offset, len(g.data), transports.ErrNotRegistered)
	}
	r := &region{m: m, id: q.RegionId, seg: g, off: q.Offset, addr: q.Address, n: q.Length, where: q.Location, quiet: make(chan struct{})}
	if q.RemoteRead {
		r.access |= transports.RemoteRead
	}
	if q.RemoteWrite {
		r.access |= transports.RemoteWrite
	}
	return r, nil
}

func (m *memory) search(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(m.sorted, addr, func(r *region, a uint64) int { return cmp.Compare(r.addr, a) })
}

func (m *memory) add(r *region) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := m.search(r.addr)
	m.sorted = slices.Insert(m.sorted, i, r)
	m.regions[r.id] = r
	r.seg.regions++
}

func (m *memory) byID(id uint64) *region {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.regions[id]
}

// remove ends the use of r and returns when nothing touches it, or when ctx ends. It can be called again then.
func (m *memory) remove(ctx context.Context, r *region) error {
	m.mu.Lock()
	if !r.gone {
		r.gone = true
		if i, ok := m.search(r.addr); ok && m.sorted[i] == r {
			m.sorted = slices.Delete(m.sorted, i, i+1)
		}
		if r.refs == 0 {
			close(r.quiet)
		}
	}
	m.mu.Unlock()
	if err := r.reg.Close(ctx); err != nil {
		return err
	}
	select {
	case <-r.quiet:
	case <-ctx.Done():
		return fmt.Errorf("region at %#x is in use: %w: %w", r.addr, transports.ErrUnquiet, context.Cause(ctx))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.regions[r.id] == r {
		delete(m.regions, r.id)
		r.seg.regions--
	}
	return nil
}

// find is Host.Find.
func (m *memory) find(addr, n uint64) (transports.Ref, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, same := m.search(addr)
	if !same {
		i--
	}
	if i < 0 || n == 0 {
		return transports.Ref{}, transports.ErrNotRegistered
	}
	r := m.sorted[i]
	off := addr - r.addr
	if off >= r.n || n > r.n-off {
		return transports.Ref{}, transports.ErrNotRegistered
	}
	r.refs++
	return transports.Ref{Data: r.Bytes()[off : off+n : off+n], Access: r.access, Owner: r}, nil
}
