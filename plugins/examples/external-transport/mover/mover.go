// Package mover is a whole transport in a few hundred lines: it moves bytes between two processes of one host and user over
// a Unix socket. It shows all that the contract of package transports asks for; copy it to begin one of your own.
//
// The same [Transport] works inside a node and, served by plugins/sdk/external, in a process of its own.
//
// # Wire
//
// The initiator sends what it wants, 17 bytes: 'r' or 'w', address and length little-endian; a write's bytes follow.
// The target answers one byte, and a read's bytes follow. A connection carries one request at a time, so a request is
// stopped by closing its connection, and nobody else notices.
//
// # Memory
//
// Only the process itself, and only by system calls, touches the memory that it was given: when it is dead, the memory
// is quiet. Who hands memory on to other processes (transports/shm does) must make sure of that itself.
package mover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports"
)

// Name is the path type in segment documents.
const Name = "mover"

// The attributes of our path.
const (
	attrSocket = "socket" // abstract name
	attrHost   = "host"   // boot id
)

// Config is what a user may set.
type Config struct {
	// Connections to one peer at once, at least 1.
	Connections int
	// Stall is how long a peer may move nothing before its connection is dropped.
	Stall time.Duration
}

// DefaultConfig is what an empty config means.
func DefaultConfig() Config { return Config{Connections: 2, Stall: 5 * time.Second} }

// Transport implements [transports.Transport].
type Transport struct {
	cfg     Config
	regions regions

	mu      sync.Mutex
	id      transports.Identity
	ln      *net.UnixListener // nil before Start
	closed  bool
	serving map[*line]struct{}
	peers   map[*Peer]struct{}
	wg      sync.WaitGroup
}

var _ transports.Transport = (*Transport)(nil)

// New returns a transport that is not started; it has no side effects.
func New(cfg Config) (*Transport, error) {
	if cfg.Connections < 1 || cfg.Stall <= 0 {
		return nil, fmt.Errorf("mover: connections: %d, stall: %v: both must be positive", cfg.Connections, cfg.Stall)
	}
	return &Transport{cfg: cfg, serving: map[*line]struct{}{}, peers: map[*Peer]struct{}{}}, nil
}

// Start listens on an abstract socket. Its name is that of the engine, so that peers find it again when the transport
// runs in a process of its own and that was started again. Who listens there instead must be of the same user.
func (t *Transport) Start(_ context.Context, h transports.Host) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return fmt.Errorf("mover: start: %w", transports.ErrClosed)
	case t.ln != nil:
		return errors.New("mover: started twice")
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@mooncake-mover-" + h.Identity().Instance})
	if err != nil {
		return fmt.Errorf("mover: %w; there can be one for each node", err)
	}
	t.ln, t.id = ln, h.Identity()
	t.wg.Go(func() { t.accept(ln) })
	return nil
}

// Register implements transports.Transport. Any memory will do.
func (t *Transport) Register(_ context.Context, r transports.Region) (transports.Registration, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("mover: register: %w", transports.ErrClosed)
	}
	return t.regions.add(r), nil
}

// Describe implements transports.Transport.
func (t *Transport) Describe(d *transports.Descriptor) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ln == nil {
		return
	}
	if d.Agent == nil {
		d.Agent = &transports.AgentExt{V: 1, Instance: t.id.Instance}
	}
	p := transports.Path{Type: Name, Attr: map[string]string{attrSocket: t.ln.Addr().String(), attrHost: t.id.HostID}}
	if i := slices.IndexFunc(d.Agent.Paths, ours); i >= 0 {
		d.Agent.Paths[i] = p
	} else {
		d.Agent.Paths = append(d.Agent.Paths, p)
	}
}

func ours(p transports.Path) bool { return p.Type == Name }

// Reach implements transports.Transport.
func (t *Transport) Reach(d *transports.Descriptor) error {
	_, err := t.target(d)
	return err
}

// target finds the socket of a peer on this host.
func (t *Transport) target(d *transports.Descriptor) (socket string, err error) {
	t.mu.Lock()
	host := t.id.HostID
	t.mu.Unlock()
	why := "it offers no such path"
	if d.Agent != nil {
		if i := slices.IndexFunc(d.Agent.Paths, ours); i >= 0 {
			attr := d.Agent.Paths[i].Attr
			if host != "" && attr[attrHost] == host && attr[attrSocket] != "" {
				return attr[attrSocket], nil
			}
			why = "it is on another host"
		}
	}
	return "", fmt.Errorf("mover: segment %q: %s: %w", d.Name, why, transports.ErrUnreachable)
}

// Dial implements transports.Transport. The first request connects.
func (t *Transport) Dial(_ context.Context, d *transports.Descriptor) (transports.Peer, error) {
	t.mu.Lock()
	ready := t.ln != nil && !t.closed
	t.mu.Unlock()
	if !ready {
		return nil, fmt.Errorf("mover: dial segment %q: %w", d.Name, transports.ErrClosed)
	}
	socket, err := t.target(d)
	if err != nil {
		return nil, err
	}
	p := &Peer{t: t, socket: socket, segment: d.Name, busy: map[*job]*line{}}
	t.mu.Lock()
	t.peers[p] = struct{}{}
	t.mu.Unlock()
	return p, nil
}

// Close implements transports.Transport.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	ln := t.ln
	var peers []*Peer
	for p := range t.peers {
		peers = append(peers, p)
	}
	for l := range t.serving {
		l.abort(transports.ErrClosed)
	}
	t.mu.Unlock()
	if ln != nil {
		ln.Close()
	}
	for _, p := range peers {
		p.Close()
	}
	t.wg.Wait()
	return nil
}

// checkUser refuses processes of other users, on both ends of a connection.
func checkUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		return e
	}
	if err == nil && int(cred.Uid) != unix.Geteuid() {
		err = fmt.Errorf("the process behind the socket runs as uid %d, this one as %d", cred.Uid, unix.Geteuid())
	}
	return err
}
