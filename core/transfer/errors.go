package transfer

import (
	"context"
	"errors"

	"github.com/mooncake-agent/mooncake/core/guard"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/transports"
)

// Sentinels of this package. What transports and metadata backends report stays in the chain: their
// sentinels can be tested for too.
var (
	// ErrInvalid: an argument makes no sense (empty name, a region without memory, no segment).
	ErrInvalid = errors.New("invalid argument")
	// ErrOverlap: the region shares bytes with a registered one. The same value as segment.ErrOverlap.
	ErrOverlap = segment.ErrOverlap
	// ErrNotRegistered: no region starts at that address. The same value as transports.ErrNotRegistered.
	ErrNotRegistered = transports.ErrNotRegistered
	// ErrNoSegment: nobody publishes a segment of that name.
	ErrNoSegment = errors.New("no such segment")
	// ErrNoRPCMeta: the metadata service has no entry that says where the daemon of that segment is.
	ErrNoRPCMeta = errors.New("no rpc_meta entry")
	// ErrNoPath: none of this engine's transports reaches the segment.
	ErrNoPath = errors.New("no transport reaches the segment")
	// ErrNameTaken: a living engine already publishes this name.
	ErrNameTaken = errors.New("segment name is taken")
	// ErrTimeout: the total deadline of the batch passed.
	ErrTimeout = errors.New("transfer deadline passed")
	// ErrCanceled: Batch.Cancel, the end of the batch's context, or Close ended the transfer.
	ErrCanceled = errors.New("transfer canceled")
	// ErrUnquiet: a transport could not promise that it will leave the local memory alone. The range must not
	// be used for anything else until Batch.Quiet, or Unregister of its region, has returned nil. The same
	// value as transports.ErrUnquiet.
	ErrUnquiet = transports.ErrUnquiet
	// ErrNotify: the data was moved, but the notification that was to follow it could not be delivered.
	ErrNotify = errors.New("notification not delivered")
	// ErrState: the call is not legal in this state of the engine.
	ErrState = errors.New("engine is not running")
)

// Code maps an error of this package to the code that upstream's engine returns in the same situation
// (mooncake-transfer-engine/include/error.h), 0 for nil.
func Code(err error) int {
	if err == nil {
		return 0
	}
	for _, m := range []struct {
		target error
		code   int
	}{
		{ErrOverlap, -7},
		{handshake.ErrResolve, -101},
		{handshake.ErrMalformed, -103},
		{handshake.ErrConnect, -102},
		{handshake.ErrNoReply, -102},
		{handshake.ErrRefused, -104},
		{ErrNoRPCMeta, -200},
		{ErrNameTaken, -200},
		{metadata.ErrNotFound, -200},
		{metadata.ErrConflict, -200},
		{metadata.ErrUnavailable, -200},
		{metadata.ErrTooLarge, -200},
		{metadata.ErrRefused, -200},
		{metadata.ErrLeaseLost, -200},
		{metadata.ErrClosed, -200},
		{ErrNotRegistered, -3},
		{ErrNoPath, -6},
	} {
		if errors.Is(err, m.target) {
			return m.code
		}
	}
	return -1
}

// reason is the metric label of a failure.
func reason(err error) string {
	for _, m := range []struct {
		target error
		label  string
	}{
		{ErrUnquiet, "unquiet"},
		{ErrTimeout, "deadline"},
		{ErrCanceled, "canceled"},
		{context.Canceled, "canceled"},
		{context.DeadlineExceeded, "deadline"},
		{ErrNoPath, "no_path"},
		{transports.ErrRejected, "rejected"},
		{transports.ErrTimeout, "no_progress"},
		{transports.ErrUnreachable, "unreachable"},
		{transports.ErrInterrupted, "interrupted"},
		{transports.ErrProtocol, "protocol"},
		{transports.ErrNotShareable, "not_shareable"},
		{transports.ErrNotRegistered, "not_registered"},
		{guard.ErrFault, "fault"},
		{transports.ErrClosed, "closed"},
	} {
		if errors.Is(err, m.target) {
			return m.label
		}
	}
	return "other"
}
