package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
)

const (
	// maxPacket is the size of a packet on the transfer socket.
	maxPacket = 64 << 10
	// packetOps is how many operations one packet carries: each takes at most 56 bytes.
	packetOps = 512
	// readLimit is how long a plugin may leave the transfer socket full.
	readLimit = 5 * time.Second
	// endGrace is how long a process may live after the end of its transfer socket.
	endGrace = time.Second
)

var errEnd = errors.New("the plugin has closed the transfer socket")

// batch is what the ops of one Submit share.
type batch struct {
	p     *Peer
	s     *session
	id    uint64
	ctx   context.Context
	done  transports.Completion
	watch transports.Watch
	left  int // guarded by session.mu
}

// pending is one operation that the plugin has, or is about to get.
type pending struct {
	b      *batch
	local  *region
	cookie uint64
	n      uint64
}

// submit sends ops to the plugin. An error means that nothing was accepted.
func (s *session) submit(ctx context.Context, p *Peer, peer uint64, ops []transports.Op, done transports.Completion) error {
	locals, err := s.locals(ops)
	if err != nil {
		p.wg.Done()
		return err
	}
	b := &batch{p: p, s: s, ctx: ctx, done: done}
	b.watch.F = b.cancel
	s.mu.Lock()
	s.lastJob++
	b.id = s.lastJob
	b.left = 1 // for this function
	s.mu.Unlock()
	b.watch.Start(ctx)
	defer s.leave(b)
	for first := true; len(ops) > 0; first = false {
		n := min(len(ops), packetOps)
		if err := s.sendOps(b, peer, ops[:n], locals[:n]); err != nil {
			for _, g := range locals {
				g.done()
			}
			if first {
				return err
			}
			for i := range ops { // some of this Submit are accepted, so all are
				done(ops[i].Cookie, 0, err)
			}
			return nil
		}
		ops, locals = ops[n:], locals[n:]
	}
	return nil
}

// locals finds and holds the regions of all ops.
func (s *session) locals(ops []transports.Op) ([]*region, error) {
	out := make([]*region, len(ops))
	for i := range ops {
		g, err := s.t.local(ops[i].Local)
		if err != nil {
			for _, g := range out[:i] {
				g.done()
			}
			return nil, err
		}
		out[i] = g
	}
	return out, nil
}

// sendOps sends one packet. After a nil error each op ends with a completion, whatever happens.
func (s *session) sendOps(b *batch, peer uint64, ops []transports.Op, locals []*region) error {
	n := int64(len(ops))
	if err := s.room.Acquire(b.ctx, n); err != nil {
		return err
	}
	req := &pluginv1.TransferRequest{BatchId: b.id, PeerId: peer, Operations: make([]*pluginv1.Operation, n)}
	list := make([]pluginv1.Operation, n)
	s.send.Lock()
	defer s.send.Unlock()
	s.mu.Lock()
	if err := b.ctx.Err(); err != nil || s.over { // a cancel that was sent before must not be missed
		s.mu.Unlock()
		s.room.Release(n)
		if err == nil {
			err = s.t.errorf("%w", errDead)
		}
		return err
	}
	for i := range ops {
		o := &ops[i]
		s.lastOp++
		s.pending[s.lastOp] = pending{b: b, local: locals[i], cookie: o.Cookie, n: o.Len}
		op := &list[i]
		op.OperationId, op.Write, op.RegionId, op.Offset, op.Length, op.RemoteAddress = s.lastOp, o.Write, locals[i].id, o.Offset, o.Len, o.Remote
		req.Operations[i] = op
	}
	b.left += len(ops)
	s.mu.Unlock()
	if err := s.write(req); err != nil {
		s.broken(err)
	}
	return nil
}

// write sends a packet. s.send is held.
func (s *session) write(req *pluginv1.TransferRequest) error {
	packet, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	s.c.SetWriteDeadline(time.Now().Add(readLimit))
	_, err = s.c.Write(packet)
	return err
}

// broken ends the process after a failure of the transfer socket; the rest follows from that. That the other end is
// closed is seen by read too, which takes what was said before.
func (s *session) broken(err error) {
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return
	}
	s.p.Fault(fmt.Errorf("transfer socket: %w", err))
}

// cancel is called when a batch's context has ended.
func (b *batch) cancel() {
	s := b.s
	s.send.Lock()
	defer s.send.Unlock()
	s.mu.Lock()
	over := s.over || b.left == 0
	s.mu.Unlock()
	if over {
		return
	}
	if err := s.write(&pluginv1.TransferRequest{CancelBatchIds: []uint64{b.id}}); err != nil {
		s.broken(err)
	}
}

// run takes completions until the process is dead, and then ends what is left.
func (s *session) run() {
	s.t.wg.Go(func() { // a process that is dead may have left the socket open in a child
		<-s.p.Dead()
		s.c.CloseRead() // what it has said is still read
	})
	err := s.read()
	if errors.Is(err, errEnd) { // it may be about to end by itself, and how it ends says more
		limit := endGrace
		if s.t.isClosed() {
			limit = s.t.callTimeout
		}
		select {
		case <-s.p.Dead():
		case <-time.After(limit):
		}
	}
	select {
	case <-s.p.Dead(): // that is why
	default:
		s.p.Fault(err)
		<-s.p.Dead()
	}
	s.mu.Lock()
	s.over = true
	left := s.pending
	s.pending = nil
	s.mu.Unlock()
	for _, o := range left {
		s.end(o, interrupted(err))
	}
	s.c.Close()
}

// read takes completions until something is wrong or the process has ended, and says what.
func (s *session) read() error {
	buf := make([]byte, maxPacket+1)
	var resp pluginv1.TransferResponse
	for {
		n, err := s.c.Read(buf)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), n == 0 && err == nil:
			return errEnd
		case err != nil:
			return fmt.Errorf("transfer socket: %w", err)
		case n > maxPacket:
			return fmt.Errorf("a packet of more than %d bytes: %w", maxPacket, transports.ErrProtocol)
		}
		if err := s.take(buf[:n], &resp); err != nil {
			return err
		}
	}
}

// take takes one packet; resp is room for it.
func (s *session) take(packet []byte, resp *pluginv1.TransferResponse) error {
	if err := proto.Unmarshal(packet, resp); err != nil {
		return fmt.Errorf("a packet of %d bytes that is no TransferResponse: %w: %w", len(packet), transports.ErrProtocol, err)
	}
	for _, c := range resp.Completions {
		if err := s.completed(c); err != nil {
			return err
		}
	}
	return nil
}

// completed takes one completion.
func (s *session) completed(c *pluginv1.Completion) error {
	s.mu.Lock()
	o, ok := s.pending[c.OperationId]
	delete(s.pending, c.OperationId)
	s.mu.Unlock()
	if !ok {
		return fmt.Errorf("operation %d: %w: %w", c.OperationId, errUnknownEnd, transports.ErrProtocol)
	}
	if c.Error == nil {
		s.end(o, nil)
		return nil
	}
	err, known := fromProto(c.Error)
	s.end(o, err)
	if !known {
		return err
	}
	return nil
}

// end reports one operation that was taken out of pending.
func (s *session) end(o pending, err error) {
	n := o.n
	if err != nil {
		n = 0
		err = o.explain(err)
	}
	o.local.done()
	s.room.Release(1)
	o.b.done(o.cookie, n, err)
	s.leave(o.b)
}

// leave ends one use of b.
func (s *session) leave(b *batch) {
	s.mu.Lock()
	b.left--
	last := b.left == 0
	s.mu.Unlock()
	if last {
		b.watch.Stop()
		b.p.wg.Done()
	}
}

// explain gives an error the cause that the host knows better than the plugin. Without a cause of the host's, a plugin that
// cancels or closes has gone away under the operation.
func (o *pending) explain(err error) error {
	p := o.b.p
	lost := errors.Is(err, context.Canceled) || errors.Is(err, transports.ErrInterrupted)
	ctxErr := o.b.ctx.Err()
	switch {
	case !lost && !errors.Is(err, transports.ErrClosed):
		return p.errorf("%w", err)
	case p.isClosed() || p.t.isClosed():
		return p.errorf("%w", transports.ErrClosed)
	case lost && ctxErr != nil:
		return p.errorf("%w", ctxErr)
	case o.local.isGone():
		return p.errorf("the region at %#x is being unregistered: %w", o.local.of.Addr(), transports.ErrClosed)
	}
	return p.errorf("%w: %s", transports.ErrInterrupted, err)
}
