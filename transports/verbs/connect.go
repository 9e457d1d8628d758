package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

// The parameters of queue pairs are upstream's (rdma_endpoint.cpp).
const (
	hopLimit    = 16
	minRNRTimer = 12
	ackTimeout  = 14 // 4.096 µs × 2^14 = 67 ms
	retryCount  = 7
	rnrRetry    = 7
	readAtomics = 16
)

const (
	// typeConnection is the handshake message that connects queue pairs, typeMetadata the one that asks for a document.
	typeConnection = 0
	typeMetadata   = 1
	// connectTimeout bounds one exchange with a peer's daemon.
	connectTimeout = 10 * time.Second
	// qpMismatch is upstream's text.
	qpMismatch = "QP count mismatch in peer and local endpoints, check MC_MAX_EP_PER_CTX"
)

var (
	errGID      = errors.New("verbs: another GID is tried")
	errReplaced = fmt.Errorf("verbs: the peer has connected anew: %w", transports.ErrInterrupted)
	errPeerDown = fmt.Errorf("verbs: the peer's daemon does not answer: %w", transports.ErrUnreachable)
)

// refusal is the reason of a refusal in upstream's words.
type refusal string

func (r refusal) Error() string { return string(r) }

// connectError is a connection that could not be made.
type connectError struct{ err error }

func (e *connectError) Error() string { return e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

func nicPath(server, name string) string { return server + "@" + name }

// splitPath undoes nicPath; names of devices have no '@'.
func splitPath(path string) (server, name string, ok bool) {
	i := strings.LastIndexByte(path, '@')
	if i <= 0 || i == len(path)-1 {
		return "", "", false
	}
	return path[:i], path[i+1:], true
}

// message describes our side of the connection. mu is held.
func (e *endpoint) message(ack bool) *transports.Connection {
	n := e.n
	n.mu.RLock()
	lid := n.port.LID
	n.mu.RUnlock()
	m := &transports.Connection{LocalNICPath: n.path, PeerNICPath: e.path, LocalGID: e.gid.GID.String(), LocalLID: uint32(lid),
		HasReadyAck: true, ReadyAck: ack, PathMTU: uint32(n.pathMTU().Bytes())}
	for _, p := range e.qps {
		m.QPNum = append(m.QPNum, p.qp.Num())
	}
	return m
}

// pathMTU is the largest path MTU of this side.
func (n *nic) pathMTU() device.MTU {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return min(n.port.ActiveMTU, device.MTUOf(n.t.cfg.MTU))
}

// makeQPs makes the queue pairs, up to state init. mu is held. Errors that wrap ENOMEM: the device has no more.
func (e *endpoint) makeQPs() (err error) {
	n := e.n
	n.mu.RLock()
	dev, limits, down := n.dev, n.limits, n.down
	if len(n.queues) > 0 {
		e.q = n.queues[int(n.nextQP.Load())%len(n.queues)]
	}
	e.gid = n.gid
	n.mu.RUnlock()
	if down != nil || dev == nil {
		return fmt.Errorf("verbs: device %s: %w: %w", n.name, down, transports.ErrUnreachable)
	}
	atMost := func(v, limit int) int {
		if limit > 0 {
			return min(v, limit)
		}
		return v
	}
	o := device.QPOptions{CQ: e.q.cq, MaxWork: atMost(n.t.cfg.MaxWork, limits.MaxQPWork), MaxSGE: atMost(n.t.cfg.MaxSGE, limits.MaxSGE), MaxInline: n.t.cfg.MaxInline}
	var made []*qpair
	defer func() {
		if err != nil {
			for _, p := range made {
				err = errors.Join(err, p.qp.Destroy())
			}
		}
	}()
	for range n.t.cfg.QPs {
		qp, err := dev.NewQP(o)
		if err != nil {
			return fmt.Errorf("verbs: device %s: queue pair (it has %d): %w", n.name, limits.MaxQP, err)
		}
		p := &qpair{e: e, qp: qp, id: n.nextQP.Add(1), slots: make([]*slice, o.MaxWork)}
		made = append(made, p)
		access := device.AccessLocalWrite | device.AccessRemoteRead | device.AccessRemoteWrite | device.AccessRemoteAtomic
		if err := qp.Init(device.InitAttr{Port: n.t.cfg.Port, PKey: uint16(n.t.cfg.PKeyIndex), Access: access}); err != nil {
			return fmt.Errorf("verbs: device %s: queue pair to state init (port %d, pkey_index %d): %w", n.name, n.t.cfg.Port, n.t.cfg.PKeyIndex, err)
		}
	}
	e.q.mu.Lock()
	for _, p := range made {
		e.q.qps[p.id] = p
	}
	e.q.mu.Unlock()
	e.qps = made
	return nil
}

// prepare makes the queue pairs if there are none yet, closing an idle connection for them when need be. mu is held, and
// given up for a moment; then the state may be another.
func (e *endpoint) prepare() error {
	for try := 0; len(e.qps) == 0; try++ {
		err := e.makeQPs()
		if err == nil {
			return nil
		}
		if try > 0 || !errors.Is(err, unix.ENOMEM) {
			return fmt.Errorf("%w: %w", err, transports.ErrUnreachable)
		}
		e.mu.Unlock()
		found := e.n.store.makeRoom(e)
		e.mu.Lock()
		if e.state >= epDraining {
			return e.cause
		}
		if !found {
			return fmt.Errorf("%w: %w", err, transports.ErrUnreachable)
		}
	}
	return nil
}

// establish connects the queue pairs with the peer's, index by index. mu is held.
func (e *endpoint) establish(c *transports.Connection) error {
	n := e.n
	gid, err := device.ParseGID(c.LocalGID)
	if err != nil {
		return fmt.Errorf("verbs: the address of %s: %w: %w", e.path, err, transports.ErrProtocol)
	}
	mtu := n.pathMTU()
	switch theirs := device.MTUOf(int(min(c.PathMTU, 1<<20))); {
	case c.PathMTU == 0 && !e.loop:
		if k, ok := n.t.logs.Allow("mtu " + e.path); ok {
			n.t.log.Warn("peer does not tell its MTU; ours is used, and must be the same there (mtu, MC_MTU)", "device", n.name, "peer", e.path, "mtu", mtu.Bytes(), "not_shown_before", k)
		}
	case theirs == 0 && !e.loop:
		return fmt.Errorf("verbs: path MTU %d of %s: %w", c.PathMTU, e.path, transports.ErrProtocol)
	case theirs != 0:
		mtu = min(mtu, theirs)
	}
	n.mu.RLock()
	limits := n.limits
	n.mu.RUnlock()
	reads := func(limit int) uint8 {
		if limit <= 0 || limit > readAtomics {
			limit = readAtomics
		}
		return uint8(limit)
	}
	sl := max(n.t.cfg.ServiceLevel, 0)
	path := device.Path{Global: true, DGID: gid, SGIDIndex: uint8(e.gid.Index), HopLimit: hopLimit,
		TrafficClass: uint8(max(n.t.cfg.TrafficClass, 0)), DLID: uint16(c.LocalLID), SL: uint8(sl), Port: n.t.cfg.Port}
	for i, p := range e.qps {
		err := p.qp.ReceiveReady(device.ReceiveAttr{MTU: mtu, DestQP: c.QPNum[i], MaxReadIn: reads(limits.MaxReadIn), MinRNRTimer: minRNRTimer, Path: path})
		if err != nil {
			if errors.Is(err, unix.EINVAL) && n.regretGID(e.gid) {
				return fmt.Errorf("%w: %w", errGID, err)
			}
			return fmt.Errorf("verbs: device %s: queue pair to state ready to receive (gid_index %d, peer %s %v, mtu %d): %w: %w",
				n.name, e.gid.Index, e.path, gid, mtu.Bytes(), err, transports.ErrUnreachable)
		}
		err = p.qp.SendReady(device.SendAttr{Timeout: ackTimeout, RetryCount: retryCount, RNRRetry: rnrRetry, MaxReadOut: reads(limits.MaxReadOut)})
		if err != nil {
			return fmt.Errorf("verbs: device %s: queue pair to state ready to send: %w: %w", n.name, err, transports.ErrUnreachable)
		}
	}
	e.up, e.peerQPs = true, slices.Clone(c.QPNum)
	e.lastUse.Store(int64(n.t.now()))
	return nil
}

// connect is the active side; it has a goroutine of its own.
func (e *endpoint) connect() {
	ctx, cancel := context.WithTimeout(e.n.t.ctx, connectTimeout)
	defer cancel()
	err := e.dial(ctx)
	result := "ok"
	if err != nil {
		result = "failed"
		e.failRail(&connectError{err})
	}
	e.n.t.m.connects.WithLabelValues("active", result).Inc()
	e.kick()
}

func (e *endpoint) dial(ctx context.Context) error {
	e.mu.Lock()
	err := e.prepare()
	if err != nil || e.state != epConnecting {
		e.mu.Unlock()
		return err
	}
	m := e.message(false)
	if e.loop {
		if err = e.establish(m); err == nil {
			e.state = epReady
		}
		e.mu.Unlock()
		return err
	}
	e.mu.Unlock()
	c, err := e.exchange(ctx, m)
	if err != nil {
		return e.unanswered(err)
	}
	e.mu.Lock()
	switch {
	case e.state >= epDraining:
		e.mu.Unlock()
		return nil
	case !e.up:
		err = e.establish(c)
	case !slices.Equal(e.peerQPs, c.QPNum):
		err = fmt.Errorf("verbs: %s has answered with other queue pairs than it has connected with: %w", e.path, transports.ErrUnreachable)
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if c.HasReadyAck {
		m.ReadyAck = true
		if err := e.acknowledge(ctx, m); err != nil {
			return e.unanswered(err)
		}
	}
	e.mu.Lock()
	if e.state == epConnecting {
		e.state = epReady
	}
	e.mu.Unlock()
	return nil
}

// unanswered deals with an exchange that failed. When the peer has connected from its side meanwhile, the connection is
// as good as any, once the peer says so.
func (e *endpoint) unanswered(err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != epConnecting {
		return nil
	}
	if !e.up {
		return err
	}
	e.state, e.since = epWaiting, e.n.t.now()
	if e.acked {
		e.state = epReady
	}
	return nil
}

// exchange sends our description and returns the peer's.
func (e *endpoint) exchange(ctx context.Context, m *transports.Connection) (*transports.Connection, error) {
	c, err := e.signal(ctx, m)
	if err != nil {
		return nil, err
	}
	switch {
	case c.LocalNICPath == "" && len(c.QPNum) == 0:
		err = errors.New("it has no RDMA")
	case c.LocalNICPath != e.path || c.PeerNICPath != e.n.path:
		err = fmt.Errorf("it answered for %q to %q", c.LocalNICPath, c.PeerNICPath)
	case len(c.QPNum) != len(m.QPNum):
		err = fmt.Errorf("it has %d queue pairs for each connection, this engine has %d; set qps_per_endpoint (MC_NUM_QP_PER_EP) to the same", len(c.QPNum), len(m.QPNum))
	}
	if err != nil {
		return nil, fmt.Errorf("verbs: connect %s to %s: %w: %w", e.n.path, e.path, err, transports.ErrUnreachable)
	}
	return c, nil
}

// acknowledge says that this side is ready.
func (e *endpoint) acknowledge(ctx context.Context, m *transports.Connection) error {
	_, err := e.signal(ctx, m)
	return err
}

// signal sends a message to the peer's daemon and reads the answer. A peer that cannot be asked is left alone for a
// moment by all devices.
func (e *endpoint) signal(ctx context.Context, m *transports.Connection) (*transports.Connection, error) {
	reply, err := e.n.t.host.Signal(ctx, e.server, typeConnection, m.Encode())
	if err != nil {
		err = fmt.Errorf("verbs: connect %s to %s: %w: %w", e.n.path, e.path, errPeerDown, err)
		e.n.t.servers.failed(e.server, err)
		return nil, err
	}
	e.n.t.servers.answered(e.server)
	c, err := transports.ParseConnection(reply)
	if err == nil && c.ReplyMsg != "" {
		err = fmt.Errorf("it refused: %.200q", c.ReplyMsg)
	}
	if err != nil {
		return nil, fmt.Errorf("verbs: connect %s to %s: %w: %w", e.n.path, e.path, err, transports.ErrUnreachable)
	}
	return c, nil
}

// onConnection is the passive side: it answers a peer's message.
func (t *Transport) onConnection(ctx context.Context, req []byte) []byte {
	c, err := transports.ParseConnection(req)
	if err != nil {
		return nil
	}
	reply, err := t.accept(ctx, c)
	result := "ok"
	if err != nil {
		result = "refused"
		reply = &transports.Connection{ReplyMsg: err.Error()}
		if n, ok := t.logs.Allow("refused"); ok {
			t.log.Warn("connection refused", "peer", c.LocalNICPath, "to", c.PeerNICPath, "err", err, "not_shown_before", n)
		}
	}
	t.m.connects.WithLabelValues("passive", result).Inc()
	return reply.Encode()
}

// accept connects with the peer, or takes note that it is ready.
func (t *Transport) accept(ctx context.Context, c *transports.Connection) (*transports.Connection, error) {
	const maxNotifyDepth = 65535
	if c.NotifyDepth > maxNotifyDepth {
		return nil, refusal("Invalid handshake notify_rq_depth")
	}
	server, name, ok := splitPath(c.LocalNICPath)
	if !ok {
		return nil, fmt.Errorf("%.200q is not of the form server@device", c.LocalNICPath)
	}
	n := t.byPath(c.PeerNICPath)
	if n == nil {
		return nil, fmt.Errorf("there is no device %.200q here", c.PeerNICPath)
	}
	if t.ctx.Err() != nil {
		return nil, errors.New("the transport is closed")
	}
	if err := n.usable(); err != nil {
		return nil, err
	}
	t.servers.answered(server)
	if c.ReadyAck {
		return n.ready(c)
	}
	if len(c.QPNum) != t.cfg.QPs {
		return nil, refusal(qpMismatch)
	}
	if c.LocalGID == "" {
		if c, err := t.lookUpGID(ctx, c, server, name); err != nil {
			return nil, err
		} else {
			return n.answer(c, server, name)
		}
	}
	return n.answer(c, server, name)
}

// answer finds or makes the endpoint for a peer that connects.
func (n *nic) answer(c *transports.Connection, server, name string) (*transports.Connection, error) {
	for range 4 {
		e, err := n.store.get(server, name)
		if err != nil {
			return nil, err
		}
		reply, again, err := e.accept(c)
		if err != nil {
			e.fail(err)
			return nil, err
		}
		if !again {
			if r := n.rails.find(e.path); r != nil {
				r.worked() // it is alive
			}
			return reply, nil
		}
		e.fail(errReplaced)
	}
	return nil, errors.New("the connection keeps being replaced")
}

// accept connects the endpoint with the peer that asks. again: the endpoint belongs to a former run of the peer or has
// failed, and another one is needed.
func (e *endpoint) accept(c *transports.Connection) (reply *transports.Connection, again bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state >= epDraining {
		return nil, true, nil
	}
	if e.up {
		if !slices.Equal(e.peerQPs, c.QPNum) {
			return nil, true, nil
		}
		return e.message(false), false, nil
	}
	if e.state == epNew {
		e.state = epWaiting // no other goroutine connects it now
	}
	if err := e.prepare(); err != nil {
		return nil, false, err
	}
	if e.state >= epDraining {
		return nil, true, nil
	}
	if !e.up {
		if err := e.establish(c); err != nil {
			return nil, false, err
		}
	}
	e.since = e.n.t.now()
	if !c.HasReadyAck {
		e.acked = true
		if e.state == epWaiting {
			e.state = epReady
			defer e.n.t.spawn(e.kick)
		}
	}
	m := e.message(false)
	m.HasReadyAck = c.HasReadyAck
	return m, false, nil
}

// ready is the peer's word that its side is connected.
func (n *nic) ready(c *transports.Connection) (*transports.Connection, error) {
	e := n.store.find(c.LocalNICPath)
	if e == nil {
		return nil, errors.New("there is no such connection")
	}
	e.mu.Lock()
	if !e.up || e.state >= epDraining || !slices.Equal(e.peerQPs, c.QPNum) {
		e.mu.Unlock()
		return nil, errors.New("the connection has other queue pairs")
	}
	e.acked = true
	if e.state == epWaiting {
		e.state = epReady
	}
	e.mu.Unlock()
	e.kick()
	return &transports.Connection{}, nil
}

// lookUpGID completes the message of an engine before 0.3.11, which does not tell its address, from its document.
func (t *Transport) lookUpGID(ctx context.Context, c *transports.Connection, server, name string) (*transports.Connection, error) {
	doc, err := t.host.Signal(ctx, server, typeMetadata, []byte("{}"))
	if err != nil {
		return nil, fmt.Errorf("the message has no local_gid, and the document of %.200q cannot be read: %w", server, err)
	}
	d, err := transports.ParseDescriptor(doc)
	if err != nil {
		return nil, fmt.Errorf("the message has no local_gid, and the document of %.200q is of no use: %w", server, err)
	}
	for _, v := range d.Devices {
		if v.Name == name {
			full := *c
			full.LocalGID, full.LocalLID = v.GID, uint32(v.LID)
			return &full, nil
		}
	}
	return nil, fmt.Errorf("the message has no local_gid, and the document of %.200q has no device %.100q", server, name)
}
