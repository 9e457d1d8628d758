package transport

import (
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
)

// maxPacket is the size of a packet on the transfer socket.
const maxPacket = 64 << 10

// batch is one batch of the node with operations that have not ended.
type batch struct {
	s      *Server
	id     uint64
	ctx    context.Context
	cancel context.CancelFunc
	left   int // guarded by Server.mu
}

// read takes packets until the node is gone or the server is closed.
func (s *Server) read(c *net.UnixConn) {
	buf := make([]byte, maxPacket)
	for {
		n, err := c.Read(buf)
		if n == 0 || err != nil {
			return
		}
		req := &pluginv1.TransferRequest{}
		if err := proto.Unmarshal(buf[:n], req); err != nil {
			return // it is the node that decides what comes of it: nothing more is read
		}
		s.take(req)
	}
}

// take begins what a packet asks for.
func (s *Server) take(req *pluginv1.TransferRequest) {
	s.mu.Lock()
	for _, id := range req.CancelBatchIds {
		if b := s.batches[id]; b != nil {
			b.cancel()
		}
	}
	if len(req.Operations) == 0 {
		s.mu.Unlock()
		return
	}
	p := s.peers[req.PeerId]
	b := s.batches[req.BatchId]
	if b == nil {
		b = &batch{s: s, id: req.BatchId}
		b.ctx, b.cancel = context.WithCancel(s.ctx)
		s.batches[b.id] = b
	}
	b.left += len(req.Operations)
	s.mu.Unlock()

	ops := make([]transports.Op, 0, len(req.Operations))
	for _, o := range req.Operations {
		r := s.memory.byID(o.RegionId)
		switch {
		case p == nil:
			b.done(o.OperationId, 0, fmt.Errorf("peer %d: %w", req.PeerId, transports.ErrClosed))
		case r == nil:
			b.done(o.OperationId, 0, fmt.Errorf("region %d: %w", o.RegionId, transports.ErrNotRegistered))
		default:
			ops = append(ops, transports.Op{Write: o.Write, Local: r, Offset: o.Offset, Remote: o.RemoteAddress, Len: o.Length, Cookie: o.OperationId})
		}
	}
	if len(ops) == 0 {
		return
	}
	s.wg.Go(func() { // Submit may wait for room, and the socket must be read all the same
		if err := p.Submit(b.ctx, ops, b.done); err != nil {
			for i := range ops {
				b.done(ops[i].Cookie, 0, err)
			}
		}
	})
}

// done is the transport's completion.
func (b *batch) done(cookie, _ uint64, err error) {
	c := &pluginv1.Completion{OperationId: cookie}
	if err != nil {
		// What is none of the contract is reported as a failure of this operation, not of the whole plugin.
		c.Error = encode(err, pluginv1.ErrorCode_ERROR_CODE_INTERRUPTED)
	}
	s := b.s
	s.mu.Lock()
	b.left--
	if b.left == 0 {
		delete(s.batches, b.id)
		b.cancel()
	}
	s.mu.Unlock()
	s.out.add(c)
}

// packetCompletions is how many completions, with the longest text, fit into a packet.
const packetCompletions = 128

// writer sends completions. Whoever has one when nobody writes does it, for those too that come meanwhile.
type writer struct {
	c *net.UnixConn

	mu   sync.Mutex
	busy bool
	list []*pluginv1.Completion
}

func (w *writer) add(c *pluginv1.Completion) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, c)
	if w.busy {
		return
	}
	w.busy = true
	for len(w.list) > 0 {
		n := min(len(w.list), packetCompletions)
		some := w.list[:n:n]
		if w.list = w.list[n:]; len(w.list) == 0 {
			w.list = nil
		}
		w.mu.Unlock()
		if packet, err := proto.Marshal(&pluginv1.TransferResponse{Completions: some}); err == nil {
			w.c.Write(packet) // an error means that the node is gone
		}
		w.mu.Lock()
	}
	w.busy = false
}
