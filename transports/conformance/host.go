package conformance

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/transports"
)

// Fabric connects the hosts of one test, so that Signal reaches the handler that OnSignal installed.
type Fabric struct {
	mu    sync.Mutex
	hosts map[string]*Host
}

// NewFabric returns an empty fabric.
func NewFabric() *Fabric { return &Fabric{hosts: map[string]*Host{}} }

var hostSeq atomic.Int64

// Host is an in-memory [transports.Host]: an interval lookup over registered regions and a listener on
// 127.0.0.1.
type Host struct {
	fabric *Fabric
	id     transports.Identity

	mu      sync.Mutex
	regions []*held // sorted by address
	signals map[byte]transports.SignalFunc
}

// held is a region with the number of Refs on it.
type held struct {
	r    transports.Region
	refs atomic.Int64
}

// ReleaseRef implements the owner of a transports.Ref.
func (h *held) ReleaseRef() { h.refs.Add(-1) }

// NewHost adds a host to the fabric.
func (f *Fabric) NewHost() *Host {
	n := hostSeq.Add(1)
	h := &Host{fabric: f, signals: map[byte]transports.SignalFunc{}, id: transports.Identity{
		Segment: fmt.Sprintf("127.0.0.1:%d", 20000+n%20000), Host: "127.0.0.1",
		Instance: uuid.NewString(), HostID: "transporttest",
	}}
	f.mu.Lock()
	f.hosts[h.id.Segment] = h
	f.mu.Unlock()
	return h
}

func (h *Host) search(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(h.regions, addr, func(r *held, a uint64) int {
		if r.r.Addr() < a {
			return -1
		} else if r.r.Addr() > a {
			return 1
		}
		return 0
	})
}

// Add makes a region findable.
func (h *Host) Add(r transports.Region) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := h.search(r.Addr())
	h.regions = slices.Insert(h.regions, i, &held{r: r})
}

// Remove makes it unfindable and waits until all Refs on it are released.
func (h *Host) Remove(t T, r transports.Region) {
	t.Helper()
	h.mu.Lock()
	i, ok := h.search(r.Addr())
	if !ok {
		h.mu.Unlock()
		t.Fatalf("region at %#x is not registered", r.Addr())
	}
	reg := h.regions[i]
	h.regions = slices.Delete(h.regions, i, i+1)
	h.mu.Unlock()
	waitFor(t, 30*time.Second, func() string {
		if n := reg.refs.Load(); n != 0 {
			return fmt.Sprintf("%d Refs on a removed region were not released", n)
		}
		return ""
	})
}

// Buffers lists the regions as a descriptor does.
func (h *Host) Buffers() (all []transports.Buffer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.regions {
		all = append(all, transports.Buffer{Name: h.id.Segment, Addr: r.r.Addr(), Length: r.r.Len()})
	}
	return all
}

// Refs is the number of Refs that are not released.
func (h *Host) Refs() (n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.regions {
		n += r.refs.Load()
	}
	return n
}

// Find implements transports.Host.
func (h *Host) Find(addr, n uint64) (transports.Ref, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, ok := h.search(addr)
	if !ok {
		i--
	}
	if i < 0 || n == 0 {
		return transports.Ref{}, transports.ErrNotRegistered
	}
	r := h.regions[i]
	off, size := addr-r.r.Addr(), r.r.Len()
	if off >= size || n > size-off {
		return transports.Ref{}, transports.ErrNotRegistered
	}
	r.refs.Add(1)
	return transports.Ref{Data: r.r.Bytes()[off : off+n : off+n], Access: r.r.Access(), Owner: r}, nil
}

// Signal implements transports.Host.
func (h *Host) Signal(ctx context.Context, peer string, typ byte, req []byte) ([]byte, error) {
	h.fabric.mu.Lock()
	to := h.fabric.hosts[peer]
	h.fabric.mu.Unlock()
	if to == nil {
		return nil, fmt.Errorf("no host %q: %w", peer, transports.ErrUnreachable)
	}
	to.mu.Lock()
	f := to.signals[typ]
	to.mu.Unlock()
	if f == nil {
		return nil, fmt.Errorf("host %q has no handler for message %d: %w", peer, typ, transports.ErrUnreachable)
	}
	answer := f(ctx, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, req)
	if answer == nil {
		return nil, fmt.Errorf("host %q closed without an answer: %w", peer, transports.ErrUnreachable)
	}
	return answer, nil
}

// OnSignal implements transports.Host.
func (h *Host) OnSignal(typ byte, f transports.SignalFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.signals[typ] = f
}

// Identity implements transports.Host.
func (h *Host) Identity() transports.Identity { return h.id }

// Listen implements transports.Host.
func (h *Host) Listen(ctx context.Context, _ units.PortRange) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", "127.0.0.1:0")
}
