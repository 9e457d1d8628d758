package verbs

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"sort"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

// remote is what a peer's document says about its memory and devices, in the form that the data path needs.
type remote struct {
	segment, server string
	identity        string
	devices         []transports.Device
	buffers         []buffer // sorted by address
	matrix          matrix
}

// buffer is a registered piece of the peer's memory.
type buffer struct {
	addr, end uint64
	keys      []uint32 // by the peer's device
	location  string
	refused   [2][]atomic.Int64 // by opIndex and device: until when (Transport.now) the key is known to be refused
}

// refusedFor is how long a refused key is not tried again.
const refusedFor = time.Second

func isRDMA(d *transports.Descriptor) bool {
	return d.Protocol == "rdma" || slices.Contains(d.Protocols, "rdma")
}

// newRemote keeps what is needed of d.
func newRemote(d *transports.Descriptor) (*remote, error) {
	r := &remote{segment: d.Name, server: d.RDMAServerName, devices: slices.Clone(d.Devices)}
	if r.server == "" {
		r.server = d.Name
	}
	m, err := parseMatrix(d.PriorityMatrix)
	if err != nil { // as upstream: every device is as good as another
		m = nil
	}
	var names []string
	for _, v := range d.Devices {
		names = append(names, v.Name)
	}
	r.matrix = m.keep(names)
	h := fnv.New64a()
	if d.Agent != nil {
		fmt.Fprint(h, d.Agent.Instance)
	} else {
		for i := range d.Buffers {
			fmt.Fprint(h, d.Buffers[i].Addr, d.Buffers[i].RKey)
		}
	}
	for _, v := range d.Devices {
		fmt.Fprint(h, v.Name, v.GID, v.LID)
	}
	r.identity = fmt.Sprintf("%016x", h.Sum64())
	sorted := slices.Clone(d.Buffers)
	slices.SortFunc(sorted, func(a, b transports.Buffer) int { return cmp.Compare(a.Addr, b.Addr) })
	r.buffers = make([]buffer, len(sorted))
	for i := range sorted {
		b := &sorted[i]
		if b.Addr+b.Length < b.Addr {
			return nil, fmt.Errorf("verbs: segment %q: buffer at %#x wraps around: %w", d.Name, b.Addr, transports.ErrProtocol)
		}
		if n := len(b.RKey); n > 0 && n != len(d.Devices) {
			return nil, fmt.Errorf("verbs: segment %q: buffer at %#x has %d keys for %d devices: %w", d.Name, b.Addr, n, len(d.Devices), transports.ErrProtocol)
		}
		o := &r.buffers[i]
		o.addr, o.end, o.keys, o.location = b.Addr, b.Addr+b.Length, slices.Clone(b.RKey), b.Name
		for k := range o.refused {
			o.refused[k] = make([]atomic.Int64, len(d.Devices))
		}
	}
	return r, nil
}

// find returns the index of the buffer that holds addr and has keys, or -1.
func (r *remote) find(addr uint64) int {
	i := sort.Search(len(r.buffers), func(i int) bool { return r.buffers[i].addr > addr }) - 1
	if i < 0 || addr >= r.buffers[i].end || len(r.buffers[i].keys) == 0 {
		return -1
	}
	return i
}

// covers tells whether buffers without a gap hold the whole range. Pieces of one region are such buffers.
func (r *remote) covers(addr, n uint64) bool {
	end := addr + n
	if end < addr {
		return false
	}
	for addr < end {
		i := r.find(addr)
		if i < 0 {
			return false
		}
		addr = r.buffers[i].end
	}
	return true
}

// tiers lists the peer's devices for a buffer's location: the near ones, and the others.
func (r *remote) tiers(location string) (near, far []int) {
	if d, ok := r.matrix[location]; ok && location != anywhere {
		return r.indexes(d.preferred), r.indexes(d.others)
	}
	for i := range r.devices { // "*", one of several nodes, or one that the matrix does not know
		near = append(near, i)
	}
	return near, nil
}

func (r *remote) indexes(names []string) (out []int) {
	for _, n := range names {
		if i := slices.IndexFunc(r.devices, func(d transports.Device) bool { return d.Name == n }); i >= 0 && !slices.Contains(out, i) {
			out = append(out, i)
		}
	}
	return out
}
