// Package transports is the contract of transports: the parts that move bytes between registered
// local memory and the segments of other engines.
//
// A transport implements [Transport] and registers itself in [Kind]. It never chooses peers, retries
// or times out a whole transfer: that is core/transfer's work. It moves the bytes of one [Op] exactly as asked and
// reports exactly once.
//
// States: constructed (no side effects) → Start → serving → Close. Register may be called in any
// state before Close; regions registered before Start are served from Start on. Dial, Reach and
// Describe are legal only while serving. All methods may be called concurrently.
package transports

import (
	"context"
	"errors"
	"net"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/units"
)

// Kind is the registry of transports.
var Kind = module.NewKind[Transport]("transport")

var (
	// ErrUnreachable: this transport has no path to that descriptor (wrong protocol, other host), or
	// the connection could not be made. Nothing was moved.
	ErrUnreachable = errors.New("peer unreachable")
	// ErrRejected: the peer refused the remote range (not registered there). Nothing of this op was
	// moved; the descriptor may be stale.
	ErrRejected = errors.New("remote range rejected")
	// ErrInterrupted: the connection failed in the middle; an unknown part of the op was moved.
	ErrInterrupted = errors.New("transfer interrupted")
	// ErrTimeout: no progress within the transport's progress deadline.
	ErrTimeout = errors.New("no transfer progress")
	// ErrProtocol: the peer sent bytes that the protocol does not allow. The connection was dropped.
	ErrProtocol = errors.New("protocol violation")
	// ErrNotShareable: the region cannot be used by this transport (shm and external transports need
	// memory with a file descriptor). The engine skips that path.
	ErrNotShareable = errors.New("region not shareable")
	// ErrNotRegistered: no registered region contains the whole range.
	ErrNotRegistered = errors.New("range not inside one registered region")
	// ErrUnquiet: the transport can no longer promise that it will not touch local memory. The engine
	// quarantines the region until Registration.Close returns.
	ErrUnquiet = errors.New("transport not quiet")
	// ErrClosed: the transport, peer or registration was closed.
	ErrClosed = errors.New("closed")
)

// Transport moves bytes between registered local memory and remote segments.
type Transport interface {
	// Start opens devices and listeners through h and begins to serve. ctx bounds the start only.
	Start(ctx context.Context, h Host) error
	// Register makes r usable for local and remote access by this transport. It is called before the
	// region is published. ErrNotShareable = this region only, not a failure of the transport.
	Register(ctx context.Context, r Region) (Registration, error)
	// Describe adds the transport's own keys (ports, per-buffer keys, a Path) to d before each publish.
	// d.Buffers already lists the registered regions.
	Describe(d *Descriptor)
	// Reach tells without I/O whether d offers a path to this transport: nil or ErrUnreachable with
	// the reason.
	Reach(d *Descriptor) error
	// Dial returns a handle for the peer behind d. It may connect lazily. The handle is cheap to keep
	// and owns all connections to that peer. d is not kept after Dial returns.
	Dial(ctx context.Context, d *Descriptor) (Peer, error)
	// Close stops serving, fails everything in flight (each op still gets its completion) and waits for
	// the transport's goroutines.
	Close() error
}

// Peer is the sending side of one remote segment over one transport.
type Peer interface {
	// Submit starts the ops. A returned error means that nothing was accepted and done is never
	// called. It may block for room until ctx ends. Otherwise done is called exactly once for every op,
	// from any goroutine, perhaps before Submit returns. After done(cookie) the transport never
	// touches the op's local memory again. When ctx ends, ops not yet started complete with ctx's
	// error; ops on the wire are aborted by dropping their connection, then complete. The ops slice is
	// not kept. Ops of one Submit may be executed in any order and in parallel.
	Submit(ctx context.Context, ops []Op, done Completion) error
	// Close aborts what is in flight (completing it with ErrClosed) and drops the connections.
	Close() error
}

// Poller is a Peer that can look for answers in the goroutine of a caller who has nothing else to do, which is faster
// than being woken for them.
type Poller interface {
	// Poll takes what has arrived and reports the ops that it completes. It does not wait, and is false when nothing was
	// there. It must not be called from a Completion.
	Poll() bool
}

// Registration ties a region to one transport.
type Registration interface {
	// Close ends access. It waits until nothing in flight touches the region, or until ctx ends, and
	// then reports that the region is still in use (ErrUnquiet). New access is refused at once.
	Close(ctx context.Context) error
}

// Completion reports the end of one op: n bytes known to be moved and nil, or an error that wraps one
// of the sentinels. It must be quick and must not call back into Submit.
type Completion func(cookie, n uint64, err error)

// Op is one contiguous move. Addresses are bytes.
type Op struct {
	Write  bool   // true: local → remote, false: remote → local
	Local  Region // see Host.Find; tcp also takes regions that were never registered
	Offset uint64 // of the local range inside Local
	Remote uint64 // absolute address in the peer's address space
	Len    uint64 // 0 completes at once without touching the wire
	Cookie uint64 // given back to Completion
}

// LocalBytes is the op's local memory.
func (o *Op) LocalBytes() []byte { return o.Local.Bytes()[o.Offset : o.Offset+o.Len] }

// Access is the set of things peers may do with a region.
type Access uint8

const (
	// RemoteRead allows peers to read the region.
	RemoteRead Access = 1 << iota
	// RemoteWrite allows peers to write the region.
	RemoteWrite
	// ReadWrite is the usual access (upstream knows no other).
	ReadWrite = RemoteRead | RemoteWrite
)

// Region is a piece of local memory outside the Go heap. The registrant owns the memory and keeps it
// mapped until the region was unregistered. The methods return constants.
type Region interface {
	// Addr is the published address: what peers put into their requests. Never 0.
	Addr() uint64
	// Len is the size in bytes, never 0; Addr+Len does not overflow.
	Len() uint64
	// Location is upstream's memory location: "cpu:0", or "*" for unknown.
	Location() string
	Access() Access
	// Bytes is the memory itself. Every access must be a system call (which answers EFAULT) or run
	// under debug.SetPanicOnFault, because the memory may have been unmapped by a careless owner.
	Bytes() []byte
	// FD is the memfd behind the region and the region's offset in it; ok is false for memory that
	// has none.
	FD() (fd int, offset int64, ok bool)
}

// Ref is a range of registered memory that stays valid until Release.
type Ref struct {
	// Data is the range.
	Data []byte
	// Access is what peers may do with it.
	Access Access
	// Owner is told by Release; nil for a zero Ref.
	Owner interface{ ReleaseRef() }
}

// Release gives the range back. Call it exactly once.
func (r *Ref) Release() {
	if r.Owner != nil {
		r.Owner.ReleaseRef()
		r.Owner = nil
	}
}

// SignalFunc answers one handshake message of a peer. req and the answer are JSON documents.
// A nil answer closes the connection without reply.
type SignalFunc func(ctx context.Context, from net.Addr, req []byte) []byte

// Host is what the engine offers a transport.
type Host interface {
	// Find returns the registered range [addr, addr+n), which must lie inside one region (adjacent
	// regions are not merged, as upstream), or ErrNotRegistered. It takes O(log regions), does not
	// allocate and holds the region until Ref.Release.
	Find(addr, n uint64) (Ref, error)
	// Signal sends one message to the handshake daemon of peer (a segment name) and returns the reply.
	Signal(ctx context.Context, peer string, typ byte, req []byte) ([]byte, error)
	// OnSignal installs the handler for a message type. Only during Start.
	OnSignal(typ byte, f SignalFunc)
	// Identity tells who this engine is.
	Identity() Identity
	// Listen opens a listener on the configured bind address, on a free port of the range; the zero
	// range means the engine's.
	Listen(ctx context.Context, ports units.PortRange) (net.Listener, error)
}

// Republisher is a Host that publishes the segment's document again when a transport says that Describe would answer
// differently now: a device came or went, an address changed.
type Republisher interface{ Republish() }

// Identity names this engine to its peers.
type Identity struct {
	// Segment is the name peers open: host:port in P2P mode, local_hostname in storage mode.
	Segment string
	// Host is the address peers connect to, without port or brackets.
	Host string
	// Instance is a fresh UUID of this process's engine.
	Instance string
	// HostID is equal for two processes exactly when they run on the same booted host.
	HostID string
}
