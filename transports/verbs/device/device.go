package device

import (
	"context"
	"errors"
)

var (
	// ErrNotAvailable: this machine or this binary has no verbs; the message says why (libibverbs.so.1 not found).
	ErrNotAvailable = errors.New("verbs not available")
	// ErrClosed: the object, or the device it belongs to, was closed.
	ErrClosed = errors.New("closed")
)

// Errors of the other calls wrap the errno of the C library (unix.EINVAL, unix.ENOMEM, ...) and name the call and the
// device; callers tell them apart by errors.Is.

// Provider finds the RDMA devices of a machine.
type Provider interface {
	// Devices lists the names of what is there now ("mlx5_0"), in the provider's order. None is no error.
	Devices() ([]string, error)
	// Open opens a device with one protection domain. A name that is not there wraps unix.ENODEV.
	Open(name string) (Device, error)
}

// Device is an open device (a NIC) with its protection domain.
type Device interface {
	Name() string
	// Limits are constant.
	Limits() Limits
	// Port asks the device for the state of a port now; ports count from 1.
	Port(port int) (Port, error)
	// GIDs lists the entries of the port's GID table that are not all zero, in order of their index.
	GIDs(port int) ([]GIDEntry, error)

	// RegisterMemory pins mem and makes it usable with the keys of the result. Work and peers address its first byte as
	// iova, which may differ from where it is mapped (ibv_reg_mr_iova2; a library without that answers an error when
	// it does). mem must be memory that does not move and stays mapped until the result was closed.
	RegisterMemory(mem []byte, iova uint64, a Access) (Memory, error)
	// NewCQ makes a completion queue with room for at least depth completions.
	NewCQ(depth int) (CQ, error)
	// NewQP makes a queue pair of type RC in state reset, whose work is always signalled.
	NewQP(o QPOptions) (QP, error)

	// Event waits for the next asynchronous event of the device, which is acknowledged before it is
	// returned. It ends with ctx's error, or ErrClosed. One goroutine calls it.
	Event(ctx context.Context) (Event, error)
	// Close closes the device. unix.EBUSY: something made by it is still open; nothing happened.
	Close() error
}

// Limits are a device's attributes that the transport keeps to.
type Limits struct {
	Ports            int    // physical ports
	MaxMRSize        uint64 // largest memory region, bytes; 0 = not told
	MaxMR            int    // memory regions
	MaxQP            int
	MaxQPWork        int // entries of one send queue
	MaxCQ            int
	MaxCQE           int // entries of one completion queue
	MaxSGE           int
	MaxReadOut       int  // RDMA READs that a QP may have outstanding as initiator (max_qp_init_rd_atom)
	MaxReadIn        int  // ... and as responder (max_qp_rd_atom)
	RelaxedOrdering  bool // AccessRelaxedOrdering may be asked for
	Firmware, Vendor string
}

// PortState is ibv_port_state.
type PortState uint8

// Port states that the transport tells apart: only PortActive carries traffic.
const (
	PortDown   PortState = 1
	PortInit   PortState = 2
	PortArmed  PortState = 3
	PortActive PortState = 4
)

// LinkLayer is a port's link layer.
type LinkLayer uint8

// Link layers, with the values of the C API.
const (
	LinkUnspecified LinkLayer = 0
	LinkInfiniBand  LinkLayer = 1
	LinkEthernet    LinkLayer = 2 // RoCE
)

// Port is the state of a port.
type Port struct {
	State     PortState
	LinkLayer LinkLayer
	MaxMTU    MTU
	ActiveMTU MTU
	LID       uint16 // 0 on Ethernet
	GIDs      int    // size of the GID table
	PKeys     int    // size of the P_Key table
	// SpeedGbps is the nominal data rate of all lanes, 0 when unknown.
	SpeedGbps float64
}

// MTU is ibv_mtu: 1 = 256 bytes, 2 = 512, ... 5 = 4096.
type MTU uint8

// Bytes is the MTU in bytes, 0 for a value that is none.
func (m MTU) Bytes() int {
	if m < 1 || m > 5 {
		return 0
	}
	return 128 << m
}

// MTUOf is the largest MTU that is not above n bytes, 0 when n is below 256.
func MTUOf(n int) MTU {
	m := MTU(0)
	for m < 5 && (m+1).Bytes() <= n {
		m++
	}
	return m
}

// Access says what a memory region or a queue pair allows. The values are those of the C API.
type Access uint32

// Access flags.
const (
	AccessLocalWrite      Access = 1 << 0
	AccessRemoteWrite     Access = 1 << 1
	AccessRemoteRead      Access = 1 << 2
	AccessRemoteAtomic    Access = 1 << 3
	AccessRelaxedOrdering Access = 1 << 20
)

// Memory is a registered memory region.
type Memory interface {
	LKey() uint32
	RKey() uint32
	// Close ends all access to the memory through it.
	Close() error
}

// CQ is a completion queue with a completion channel of its own.
type CQ interface {
	// Poll fills at most len(dst) completions, oldest first, and returns how many. It does not wait.
	// An error means that the queue is lost (overrun, device gone).
	Poll(dst []Completion) (int, error)
	// Arm asks for one event for the next completion that arrives. The order that loses nothing: Arm, Poll, and
	// only when that found nothing, Wait.
	Arm() error
	// Wait waits for the event asked for by Arm; it may also return nil without one. It ends with ctx's error, or
	// ErrClosed.
	Wait(ctx context.Context) error
	Close() error
}

// Completion is the end of one piece of work.
type Completion struct {
	ID     uint64 // Work.ID
	Status Status
	QP     uint32 // number of the queue pair
	Vendor uint32 // the vendor's error code
}

// QPOptions are what a queue pair is made with. Send and receive completions go to CQ.
type QPOptions struct {
	CQ        CQ
	MaxWork   int // entries of the send queue and of the (unused) receive queue
	MaxSGE    int
	MaxInline int
}

// QP is a reliable connected queue pair. It goes reset → Init → ReceiveReady → SendReady; Fail is legal in each state.
type QP interface {
	// Num is the number that peers address, 24 bits.
	Num() uint32
	Init(InitAttr) error
	ReceiveReady(ReceiveAttr) error
	SendReady(SendAttr) error
	// Fail moves the queue pair into the error state: everything posted completes, in the end with
	// StatusFlushed, and so does everything posted from then on.
	Fail() error
	// Post starts work in order, as one chain. It returns how many were accepted: the first n, all unless err is not
	// nil. unix.ENOMEM: the send queue is full.
	Post(work []Work) (n int, err error)
	// Destroy ends the queue pair. Completions of work that it cut off may still be polled afterwards, or never.
	Destroy() error
}

// InitAttr are the attributes of reset → init.
type InitAttr struct {
	Port   int
	PKey   uint16 // index
	Access Access // of peers through this queue pair
}

// ReceiveAttr are the attributes of init → ready to receive.
type ReceiveAttr struct {
	MTU         MTU
	DestQP      uint32
	RecvPSN     uint32
	MaxReadIn   uint8 // max_dest_rd_atomic
	MinRNRTimer uint8
	Path        Path
}

// Path is an address vector.
type Path struct {
	Global       bool // with a GRH; always on RoCE
	DGID         GID
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	FlowLabel    uint32
	DLID         uint16
	SL           uint8
	SrcPathBits  uint8
	Port         int
}

// SendAttr are the attributes of ready to receive → ready to send.
type SendAttr struct {
	Timeout    uint8 // 4.096 µs × 2^Timeout
	RetryCount uint8
	RNRRetry   uint8
	SendPSN    uint32
	MaxReadOut uint8 // max_rd_atomic
}

// Work is one RDMA READ or WRITE with one piece of local memory.
type Work struct {
	ID     uint64 // comes back in Completion.ID
	Write  bool   // RDMA WRITE, else RDMA READ
	Len    uint32 // 0 = no memory is touched, keys and addresses do not count: asks only whether the peer is there
	LKey   uint32
	RKey   uint32
	Local  uint64 // address, by the region's iova
	Remote uint64 // address, by the peer's iova
}

// EventKind is ibv_event_type.
type EventKind uint32

// Events, with the values of the C API.
const (
	EventCQError          EventKind = 0
	EventQPFatal          EventKind = 1
	EventQPRequestError   EventKind = 2
	EventQPAccessError    EventKind = 3
	EventCommEstablished  EventKind = 4
	EventSQDrained        EventKind = 5
	EventPathMigrated     EventKind = 6
	EventPathMigrationErr EventKind = 7
	EventDeviceFatal      EventKind = 8
	EventPortActive       EventKind = 9
	EventPortError        EventKind = 10
	EventLIDChange        EventKind = 11
	EventPKeyChange       EventKind = 12
	EventSMChange         EventKind = 13
	EventSRQError         EventKind = 14
	EventSRQLimit         EventKind = 15
	EventQPLastWQE        EventKind = 16
	EventClientReregister EventKind = 17
	EventGIDChange        EventKind = 18
	EventWQFatal          EventKind = 19
)

// Event is an asynchronous event.
type Event struct {
	Kind EventKind
	Port int    // of port events
	QP   uint32 // number, of queue pair events
}
