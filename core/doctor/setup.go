package doctor

import (
	"context"
	"time"

	"github.com/mooncake-agent/mooncake/core/bench"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/metadata"
)

// Setup is what the configuration comes to: what the node will ask of the machine and of others. The zero Setup asks
// for nothing.
type Setup struct {
	// File is the configuration that was read, "" for none. Problems are its errors, Warnings what else it says.
	File               string
	Problems, Warnings []string

	RDMA RDMA

	// Segment and Buffer are the bytes of memory that the node takes.
	Segment, Buffer units.Size
	// HugePages is segment.huge_pages: "off", "2MB" or "1GB". NUMANode is segment.numa_node, -1 for any.
	HugePages string
	NUMANode  int

	// Listen are the addresses that the node will listen on, and Ranges those port ranges it draws from.
	Listen []Listener
	Ranges []Range
	// SendBuffer and ReceiveBuffer are the socket buffers that the tcp transport asks for; 0 = the kernel's choice.
	SendBuffer, ReceiveBuffer units.Size

	// Metadata is the metadata service; nil for P2PHANDSHAKE.
	Metadata *Metadata
	Master   Master
	// Peers are handshake daemons, host:port or host, besides those that the metadata service knows.
	Peers []string

	Baseline *Baseline
}

// RDMA is what is wanted of RDMA.
type RDMA struct {
	// Wanted: the transport verbs is configured or the protocol asks for it. Required: the node must not start without.
	Wanted, Required bool
	// Unavailable is why this binary cannot use RDMA here although it knows it, "" if it can.
	Unavailable string
	// Devices are the names to use; empty = all.
	Devices []string
	Port    int // 1 unless configured
	GID     int // index; -1 = the best
	MTU     int // most bytes of a packet; 4096 unless configured
	// ActiveMTU asks a device for the MTU of a port in bytes; nil when this binary cannot.
	ActiveMTU func(device string, port int) (int, error)
}

// Listener is an address that the node will listen on.
type Listener struct{ Key, Addr string }

// Range is a range of ports from which listeners are drawn, and how many are needed at least.
type Range struct {
	Key   string
	Ports units.PortRange
	Need  int
}

// Metadata is a metadata service.
type Metadata struct {
	// Type is the backend's, Address what it is known by to people, without passwords.
	Type, Address string
	// Own: the node is the service itself.
	Own bool
	// Prefix begins all keys: "mooncake/".
	Prefix string
	// Open connects; nobody has dialled before.
	Open func(ctx context.Context) (metadata.Backend, error)
}

// Master is the Store's master.
type Master struct {
	// Addrs are host:port, empty without a Store.
	Addrs []string
	// Own: the node is the master itself, at Addrs.
	Own bool
	// Ready greets the master at an address: that it speaks the Store's protocol.
	Ready func(ctx context.Context, addr string) error
}

// Baseline asks for measurements against a running engine.
type Baseline struct {
	Peer       string   // segment name
	Transports []string // those to measure, in order
	// Expect are bytes per second by transport, where the user says so.
	Expect map[string]units.Size
	// Duration is that of one measurement; there are two for each transport.
	Duration time.Duration
	// Measure measures reads of the peer's memory.
	Measure func(ctx context.Context, transport string, o bench.Options) (*bench.Result, error)
}
