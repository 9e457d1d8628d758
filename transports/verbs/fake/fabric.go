package fake

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

// RetryTime is after how long work towards a peer that does not answer ends (real ones: 0.5 to 4 s).
const RetryTime = 5 * time.Millisecond

// Fabric connects devices.
type Fabric struct {
	mu      sync.Mutex
	qps     map[uint32]*QP // all of the fabric: a number is used once
	lastQP  uint32
	lastKey uint32
}

// New returns an empty network.
func New() *Fabric { return &Fabric{qps: map[uint32]*QP{}, lastQP: 16, lastKey: 0x1000} }

// Spec describes a device.
type Spec struct {
	Name   string
	Limits device.Limits
	Port   device.Port
	GIDs   []device.GIDEntry
}

// RoCE is a Spec of a healthy RoCE device with one port and the usual four GIDs of the address 10.0.host.nic.
func RoCE(name string, host, nic byte) Spec {
	link := device.GID{0: 0xfe, 1: 0x80, 13: host, 14: nic, 15: 1}
	v4 := device.GID{10: 0xff, 11: 0xff, 12: 10, 14: host, 15: nic}
	s := Spec{Name: name,
		Limits: device.Limits{Ports: 1, MaxMRSize: 1 << 40, MaxMR: 1 << 16, MaxQP: 1 << 16, MaxQPWork: 4096, MaxCQ: 1 << 10,
			MaxCQE: 1 << 16, MaxSGE: 16, MaxReadOut: 16, MaxReadIn: 16, RelaxedOrdering: true},
		Port: device.Port{State: device.PortActive, LinkLayer: device.LinkEthernet, MaxMTU: 5, ActiveMTU: 5, GIDs: 16, PKeys: 1, SpeedGbps: 100},
	}
	for i, g := range []device.GID{link, link, v4, v4} {
		s.GIDs = append(s.GIDs, device.GIDEntry{Index: i, GID: g, Type: device.GIDRoCEv1 + device.GIDType(i%2), NetDev: "eth" + name})
	}
	return s
}

// Machine is one machine's devices.
type Machine struct {
	f  *Fabric
	mu sync.Mutex
	// specs in order, and the device opened last under each name.
	specs []Spec
	open  map[string]*Device
	dead  map[string]bool

	violations atomic.Int64
}

// Violations is how often a region was closed while posted work could still touch it.
func (m *Machine) Violations() int64 { return m.violations.Load() }

var _ device.Provider = (*Machine)(nil)

// Machine adds a machine to the network.
func (f *Fabric) Machine(specs ...Spec) *Machine {
	return &Machine{f: f, specs: specs, open: map[string]*Device{}, dead: map[string]bool{}}
}

// Devices implements device.Provider.
func (m *Machine) Devices() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, s := range m.specs {
		out = append(out, s.Name)
	}
	return out, nil
}

// Open implements device.Provider.
func (m *Machine) Open(name string) (device.Device, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.specs, func(s Spec) bool { return s.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("fake: open %s: %w", name, unix.ENODEV)
	}
	if m.dead[name] {
		return nil, fmt.Errorf("fake: open %s: %w", name, unix.EIO)
	}
	s := m.specs[i]
	s.GIDs = slices.Clone(s.GIDs)
	d := &Device{m: m, f: m.f, spec: s, mrs: map[uint32]*memory{}, qps: map[uint32]*QP{}, cqs: map[*CQ]bool{},
		events: make(chan device.Event, 64), closed: make(chan struct{})}
	m.open[name] = d
	return d, nil
}

// Device returns the device opened last under a name, nil if none was.
func (m *Machine) Device(name string) *Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open[name]
}

// Revive lets a device that died be opened again.
func (m *Machine) Revive(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.dead, name)
}

// Counts are open objects.
type Counts struct{ Devices, Memory, CQs, QPs int }

// Counts sums up the open objects of the machine's devices.
func (m *Machine) Counts() (c Counts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.open {
		n := d.Counts()
		c.Devices += n.Devices
		c.Memory += n.Memory
		c.CQs += n.CQs
		c.QPs += n.QPs
	}
	return c
}

// Device is an open fake device.
type Device struct {
	m    *Machine
	f    *Fabric
	mu   sync.Mutex
	spec Spec
	mrs  map[uint32]*memory // by key
	qps  map[uint32]*QP
	cqs  map[*CQ]bool
	dead bool
	hook func(device.Work) device.Status

	events chan device.Event
	once   sync.Once
	closed chan struct{}
}

var _ device.Device = (*Device)(nil)

// Hang is a status of OnWork: the work neither ends nor touches memory until its queue pair fails or is destroyed.
const Hang device.Status = 255

// OnWork calls f before each piece of work that is posted on this device; what it returns other than StatusOK is how the
// work ends, without a byte moved.
func (d *Device) OnWork(f func(device.Work) device.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = f
}

// SetPort changes the state of the port, and says so with an event.
func (d *Device) SetPort(up bool) {
	d.mu.Lock()
	kind := device.EventPortError
	d.spec.Port.State = device.PortDown
	if up {
		kind, d.spec.Port.State = device.EventPortActive, device.PortActive
	}
	d.mu.Unlock()
	d.emit(device.Event{Kind: kind, Port: 1})
}

// SetGIDs replaces the GID table, with an event.
func (d *Device) SetGIDs(g []device.GIDEntry) {
	d.mu.Lock()
	d.spec.GIDs = slices.Clone(g)
	d.mu.Unlock()
	d.emit(device.Event{Kind: device.EventGIDChange, Port: 1})
}

// Emit delivers an event.
func (d *Device) Emit(e device.Event) { d.emit(e) }

func (d *Device) emit(e device.Event) {
	select {
	case d.events <- e:
	case <-d.closed:
	}
}

// Die is a fatal error: every queue pair fails, every later call ends with EIO, and the device cannot be opened again
// before Machine.Revive.
func (d *Device) Die() {
	d.m.mu.Lock()
	d.m.dead[d.spec.Name] = true
	d.m.mu.Unlock()
	d.mu.Lock()
	d.dead = true
	qps := make([]*QP, 0, len(d.qps))
	for _, q := range d.qps {
		qps = append(qps, q)
	}
	d.mu.Unlock()
	for _, q := range qps {
		q.toError()
	}
	d.emit(device.Event{Kind: device.EventDeviceFatal})
}

// Counts are the device's open objects.
func (d *Device) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := Counts{Memory: len(d.mrs), CQs: len(d.cqs), QPs: len(d.qps)}
	select {
	case <-d.closed:
	default:
		c.Devices = 1
	}
	return c
}

// Name implements device.Device.
func (d *Device) Name() string { return d.spec.Name }

// Limits implements device.Device.
func (d *Device) Limits() device.Limits { return d.spec.Limits }

func (d *Device) errorf(errno unix.Errno, format string, args ...any) error {
	return fmt.Errorf("fake: %s: %s: %w", d.spec.Name, fmt.Sprintf(format, args...), errno)
}

// usable is an error when the device is closed or dead. d.mu is held.
func (d *Device) usable() error {
	select {
	case <-d.closed:
		return fmt.Errorf("fake: %s: %w", d.spec.Name, device.ErrClosed)
	default:
	}
	if d.dead {
		return d.errorf(unix.EIO, "device is dead")
	}
	return nil
}

// Port implements device.Device.
func (d *Device) Port(port int) (device.Port, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return device.Port{}, err
	}
	if port < 1 || port > d.spec.Limits.Ports {
		return device.Port{}, d.errorf(unix.EINVAL, "port %d", port)
	}
	return d.spec.Port, nil
}

// GIDs implements device.Device.
func (d *Device) GIDs(port int) ([]device.GIDEntry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return nil, err
	}
	if port < 1 || port > d.spec.Limits.Ports {
		return nil, d.errorf(unix.EINVAL, "port %d", port)
	}
	return slices.Clone(d.spec.GIDs), nil
}

// Event implements device.Device.
func (d *Device) Event(ctx context.Context) (device.Event, error) {
	select {
	case e := <-d.events:
		return e, nil
	case <-ctx.Done():
		return device.Event{}, ctx.Err()
	case <-d.closed:
		return device.Event{}, fmt.Errorf("fake: %s: %w", d.spec.Name, device.ErrClosed)
	}
}

// Close implements device.Device.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.qps) + len(d.cqs) + len(d.mrs); n > 0 {
		return d.errorf(unix.EBUSY, "close: %d queue pairs, %d completion queues, %d regions are open", len(d.qps), len(d.cqs), len(d.mrs))
	}
	d.once.Do(func() { close(d.closed) })
	return nil
}
