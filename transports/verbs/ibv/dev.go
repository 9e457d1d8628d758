//go:build !noverbs

package ibv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

var (
	_ device.Device = (*dev)(nil)
	_ device.Memory = (*memory)(nil)
)

// dev is an open device. Its address fields are constant until Close, which children keep from happening.
type dev struct {
	lib     *library
	sysfs   string
	name    string
	ctx, pd uintptr // *ibv_context, *ibv_pd
	limits  device.Limits
	events  *waiter

	// mu is held for reading by calls that use ctx, so that none of them meets a closed device.
	mu       sync.RWMutex
	closed   bool
	children int // guarded by count
	count    sync.Mutex
}

func (d *dev) Name() string          { return d.name }
func (d *dev) Limits() device.Limits { return d.limits }

// use keeps the device open until the function that it returns is called.
func (d *dev) use() (func(), error) {
	d.mu.RLock()
	if d.closed {
		d.mu.RUnlock()
		return nil, fmt.Errorf("verbs: device %s: %w", d.name, device.ErrClosed)
	}
	return d.mu.RUnlock, nil
}

func (d *dev) child(n int) {
	d.count.Lock()
	d.children += n
	d.count.Unlock()
}

func (d *dev) queryLimits() (device.Limits, error) {
	a := new(cDeviceAttr)
	r, errno := d.lib.call(d.lib.queryDevice, d.ctx, uintptr(unsafe.Pointer(a)))
	if err := status("ibv_query_device "+d.name, r, errno); err != nil {
		return device.Limits{}, err
	}
	return device.Limits{
		Ports:           int(a.PhysPortCount),
		MaxMRSize:       a.MaxMRSize,
		MaxMR:           int(a.MaxMR),
		MaxQP:           int(a.MaxQP),
		MaxQPWork:       int(a.MaxQPWR),
		MaxCQ:           int(a.MaxCQ),
		MaxCQE:          int(a.MaxCQE),
		MaxSGE:          int(a.MaxSGE),
		MaxReadOut:      int(a.MaxQPInitReadAtm),
		MaxReadIn:       int(a.MaxQPReadAtomic),
		RelaxedOrdering: d.lib.regMRIova2 != 0,
		Firmware:        cString(a.FirmwareVersion[:]),
		Vendor:          fmt.Sprintf("%#x", a.VendorID),
	}, nil
}

func (d *dev) Port(port int) (device.Port, error) {
	done, err := d.use()
	if err != nil {
		return device.Port{}, err
	}
	defer done()
	a := new(cPortAttr)
	r, errno := d.lib.call(d.lib.queryPort, d.ctx, uintptr(uint8(port)), uintptr(unsafe.Pointer(a)))
	if err := status(fmt.Sprintf("ibv_query_port %s port %d", d.name, port), r, errno); err != nil {
		return device.Port{}, err
	}
	return device.Port{
		State:     device.PortState(a.State),
		LinkLayer: device.LinkLayer(a.LinkLayer),
		MaxMTU:    device.MTU(a.MaxMTU),
		ActiveMTU: device.MTU(a.ActiveMTU),
		LID:       a.LID,
		GIDs:      int(a.GIDTableLen),
		PKeys:     int(a.PKeyLen),
		SpeedGbps: gbps(a.ActiveWidth, a.ActiveSpeed),
	}, nil
}

// gbps is the data rate of width lanes of a speed, both in the encoding of the InfiniBand architecture.
func gbps(width, speed uint8) float64 {
	lanes := map[uint8]float64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[width]
	lane := map[uint8]float64{1: 2, 2: 4, 4: 8, 8: 10, 16: 13.64, 32: 25, 64: 50, 128: 100}[speed]
	return lanes * lane
}

func (d *dev) RegisterMemory(mem []byte, iova uint64, a device.Access) (device.Memory, error) {
	done, err := d.use()
	if err != nil {
		return nil, err
	}
	defer done()
	addr, n := address(unsafe.SliceData(mem)), uintptr(len(mem))
	what := fmt.Sprintf("ibv_reg_mr of %d bytes at %#x on %s", n, iova, d.name)
	var r uintptr
	var errno unix.Errno
	switch elsewhere := iova != uint64(addr); {
	case d.lib.regMRIova2 != 0 && (elsewhere || a&device.AccessRelaxedOrdering != 0):
		// It drops optional access flags that the kernel does not know.
		r, errno = d.lib.call(d.lib.regMRIova2, d.pd, addr, n, uintptr(iova), uintptr(a))
	case elsewhere:
		return nil, fmt.Errorf("verbs: %s: mapped at %#x, and %s is too old to give memory another address (no ibv_reg_mr_iova2): %w",
			what, addr, libraryName, unix.EOPNOTSUPP)
	default:
		r, errno = d.lib.call(d.lib.regMR, d.pd, addr, n, uintptr(a&^device.AccessRelaxedOrdering))
	}
	mr, err := pointer(what, r, errno)
	if err != nil {
		return nil, err
	}
	d.child(1)
	keys := at[cMR](mr)
	return &memory{dev: d, mr: mr, lkey: keys.LKey, rkey: keys.RKey}, nil
}

type memory struct {
	dev        *dev
	lkey, rkey uint32

	mu sync.Mutex
	mr uintptr // 0 = closed
}

func (m *memory) LKey() uint32 { return m.lkey }
func (m *memory) RKey() uint32 { return m.rkey }

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mr == 0 {
		return nil
	}
	r, errno := m.dev.lib.call(m.dev.lib.deregMR, m.mr)
	if err := status("ibv_dereg_mr on "+m.dev.name, r, errno); err != nil {
		return err
	}
	m.mr = 0
	m.dev.child(-1)
	return nil
}

func (d *dev) Event(ctx context.Context) (device.Event, error) {
	var e device.Event
	var failed error
	err := d.events.until(ctx, func() bool {
		raw := new(cAsyncEvent)
		r, errno := d.lib.call(d.lib.getAsyncEvent, d.ctx, uintptr(unsafe.Pointer(raw)))
		if int32(r) != 0 {
			if failed = again("ibv_get_async_event on "+d.name, errno); failed == nil {
				return false
			}
			return true
		}
		e = event(raw)
		d.lib.call(d.lib.ackAsyncEvent, uintptr(unsafe.Pointer(raw)))
		return true
	})
	if errors.Is(err, os.ErrClosed) {
		err = fmt.Errorf("verbs: device %s: %w", d.name, device.ErrClosed)
	}
	if err == nil {
		err = failed
	}
	return e, err
}

// again is nil when a call failed only because there is nothing to read yet.
func again(what string, errno unix.Errno) error {
	if errno == unix.EAGAIN || errno == unix.EINTR {
		return nil
	}
	return fail(what, errno)
}

// event reads an event that is not acknowledged yet, so that the queue pair in it still exists.
func event(raw *cAsyncEvent) device.Event {
	e := device.Event{Kind: device.EventKind(raw.Type)}
	switch e.Kind {
	case device.EventQPFatal, device.EventQPRequestError, device.EventQPAccessError, device.EventCommEstablished,
		device.EventSQDrained, device.EventPathMigrated, device.EventPathMigrationErr, device.EventQPLastWQE:
		e.QP = at[cQP](raw.Element).QPNum
	case device.EventPortActive, device.EventPortError, device.EventLIDChange, device.EventPKeyChange,
		device.EventSMChange, device.EventClientReregister, device.EventGIDChange:
		e.Port = int(int32(raw.Element))
	}
	return e
}

func (d *dev) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.count.Lock()
	n := d.children
	d.count.Unlock()
	if n > 0 {
		return fmt.Errorf("verbs: close %s: %d objects of it are still open: %w", d.name, n, unix.EBUSY)
	}
	d.closed = true
	return d.release()
}

// release ends what open began.
func (d *dev) release() error {
	if d.events != nil {
		d.events.Close() // ends Event, which uses ctx
	}
	if d.pd != 0 {
		r, errno := d.lib.call(d.lib.deallocPD, d.pd)
		if err := status("ibv_dealloc_pd on "+d.name, r, errno); err != nil {
			return err
		}
		d.pd = 0
	}
	r, errno := d.lib.call(d.lib.closeDevice, d.ctx)
	return status("ibv_close_device "+d.name, r, errno)
}
