package fake

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

// memory is a registered region. Who copies holds use for reading.
type memory struct {
	d      *Device
	key    uint32
	iova   uint64
	access device.Access

	use sync.RWMutex
	mem []byte // nil when closed
}

// RegisterMemory implements device.Device.
func (d *Device) RegisterMemory(mem []byte, iova uint64, a device.Access) (device.Memory, error) {
	d.f.mu.Lock()
	d.f.lastKey += 0x101
	key := d.f.lastKey
	d.f.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.spec.Limits
	switch n := uint64(len(mem)); {
	case d.usable() != nil:
		return nil, d.usable()
	case n == 0 || iova == 0:
		return nil, d.errorf(unix.EINVAL, "register %d bytes at %#x", n, iova)
	case l.MaxMRSize > 0 && n > l.MaxMRSize:
		return nil, d.errorf(unix.EIO, "register %d bytes", n)
	case len(d.mrs) >= l.MaxMR:
		return nil, d.errorf(unix.ENOMEM, "register %d bytes", n)
	case a&device.AccessRemoteWrite != 0 && a&device.AccessLocalWrite == 0:
		return nil, d.errorf(unix.EINVAL, "register: remote write without local write")
	case a&device.AccessRelaxedOrdering != 0 && !l.RelaxedOrdering:
		return nil, d.errorf(unix.EOPNOTSUPP, "register: relaxed ordering")
	}
	m := &memory{d: d, key: key, iova: iova, access: a, mem: mem}
	d.mrs[key] = m
	return m, nil
}

func (m *memory) LKey() uint32 { return m.key }
func (m *memory) RKey() uint32 { return m.key }

// Close implements device.Memory. Work that could still touch the memory counts as a violation.
func (m *memory) Close() error {
	if m.d.uses(m.key) {
		m.d.m.violations.Add(1)
	}
	m.use.Lock()
	m.mem = nil
	m.use.Unlock()
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	delete(m.d.mrs, m.key)
	return nil
}

// slice returns the range, or nil when it is not inside the region or not allowed. use is held for reading; m may be nil.
func (m *memory) slice(addr uint64, n uint32, need device.Access) []byte {
	if m == nil || m.access&need != need || addr < m.iova {
		return nil
	}
	off, size := addr-m.iova, uint64(len(m.mem))
	if off > size || uint64(n) > size-off {
		return nil
	}
	return m.mem[off : off+uint64(n)]
}

// lock holds use of both for reading, always in the same order, because a waiting writer holds up readers.
func lock(a, b *memory) (unlock func()) {
	switch {
	case a == b:
		b = nil
	case a != nil && b != nil && a.key > b.key:
		a, b = b, a
	}
	for _, m := range []*memory{a, b} {
		if m != nil {
			m.use.RLock()
		}
	}
	return func() {
		for _, m := range []*memory{a, b} {
			if m != nil {
				m.use.RUnlock()
			}
		}
	}
}

// uses tells whether posted work has a region as its local memory.
func (d *Device) uses(key uint32) bool {
	d.mu.Lock()
	qps := make([]*QP, 0, len(d.qps))
	for _, q := range d.qps {
		qps = append(qps, q)
	}
	d.mu.Unlock()
	for _, q := range qps {
		q.mu.Lock()
		for _, w := range q.queue {
			if w.LKey == key && w.Len > 0 {
				q.mu.Unlock()
				return true
			}
		}
		q.mu.Unlock()
	}
	return false
}

// find returns the region with a key.
func (d *Device) find(key uint32) *memory {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mrs[key]
}
