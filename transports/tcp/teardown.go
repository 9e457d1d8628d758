package tcp

import (
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
)

type causeKind uint8

const (
	causeNone    causeKind = iota // the reader finds out: end of file, reset, rejection, protocol
	causeCancel                   // a context ended
	causeRegion                   // a local region is being unregistered
	causeFault                    // local memory of the call seq cannot be read
	causeTimeout                  // no progress
	causeIdle                     // not needed any more
	causeStale                    // closed by the peer while idle, or no longer trusted
	causeClosed                   // Peer.Close
)

// cause says why a lane was dropped.
type cause struct {
	kind  causeKind
	seq   uint64
	reg   *registration
	after time.Duration
}

// protocolError is what a peer did that the protocol does not allow.
type protocolError string

func (e protocolError) Error() string { return string(e) }

// rejection is a status frame other than OK.
type rejection struct{ code uint32 }

func (e *rejection) Error() string { return fmt.Sprintf("status %d", e.code) }

// teardown ends the lane in its reader: every call is completed, or queued again if sending it again is
// allowed. Queued again are calls that another call's failure or cancellation took along, and once
// those that a re-used connection lost before any byte of their answer: its server had gone or closed
// it. All requests may be repeated, they only store or fetch bytes. p.mu is held; released while the
// writer stops.
func (l *lane) teardown(err error, fin *finishedList) {
	p := l.p
	l.drop(cause{})
	for l.writing {
		p.wait()
	}
	close(l.wake)
	l.Close() // nobody is in a system call any more
	if !p.to.v2 && !p.multi && l.cause.kind == causeNone && l.uses == 1 && l.got == 0 && p.t.now()-l.idleSince < v1Proof {
		p.single = true // it closed after its first request
	}
	for l.tail > l.head {
		l.tail--
		c := l.at(l.tail)
		reason, verdict := l.verdict(l.tail, c, err)
		if verdict != nil {
			p.end(c, fmt.Errorf("tcp: %s of %d bytes at %#x of %s: %w", opName(c.write), len(c.data), c.remote, p.to.addr, verdict), reason, fin)
			continue
		}
		p.t.m.retries.WithLabelValues(reason).Inc()
		p.queue.pushFront(c) // the last goes first, so that the order stays
		c.b.queued++
	}
	l.head, l.sent, l.unsent, l.bytes = 0, 0, 0, 0
	l.tail = 0
	p.signal()
}

// verdict is the error of the call at seq, or nil when it is to be sent again. reason labels the metric.
func (l *lane) verdict(seq uint64, c *call, err error) (reason string, verdict error) {
	head := seq == l.head
	var rej *rejection
	var proto protocolError
	switch cerr := c.b.ctx.Err(); {
	case cerr != nil:
		return "cancelled", fmt.Errorf("while it was on the wire: %w", cerr)
	case l.p.closed:
		return "closed", transports.ErrClosed
	}
	switch l.cause.kind {
	case causeTimeout:
		return "timeout", fmt.Errorf("%w for %v", transports.ErrTimeout, l.cause.after)
	case causeRegion:
		if c.reg == l.cause.reg {
			return "cancelled", fmt.Errorf("local region is being unregistered: %w", transports.ErrClosed)
		}
		return "bystander", nil
	case causeFault:
		if seq == l.cause.seq {
			return "fault", fmt.Errorf("local %w: %w", errFault, transports.ErrInterrupted)
		}
		return "bystander", nil
	case causeNone:
	default:
		return "bystander", nil
	}
	switch {
	case errors.As(err, &rej):
		if head {
			return "rejected", fmt.Errorf("%w by the peer (%w)", transports.ErrRejected, err)
		}
		return "bystander", nil
	case errors.As(err, &proto):
		return "protocol", fmt.Errorf("%w: the peer sent %w", transports.ErrProtocol, err)
	case err == errFault && head:
		return "fault", fmt.Errorf("local %w: %w", errFault, transports.ErrInterrupted)
	case err == errFault:
		return "bystander", nil
	case head && l.got > 0, !c.reused, c.retried:
		return "interrupted", fmt.Errorf("%w: %w", transports.ErrInterrupted, err)
	}
	c.retried, c.minGen = true, l.p.gen
	return "stale", nil
}
