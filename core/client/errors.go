package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/core/transfer"
)

// Sentinels of this package; test with errors.Is. The master's own code is in the chain as well: see
// [Code].
var (
	// ErrNotFound: there is no such object (or task, or segment).
	ErrNotFound = errors.New("not found")
	// ErrNotReady: the object is being written, or none of its replicas can be read now.
	ErrNotReady = errors.New("not ready")
	// ErrExists: the object exists already; nothing was written.
	ErrExists = errors.New("exists already")
	// ErrNoSpace: no segment has room for the object now.
	ErrNoSpace = errors.New("no space")
	// ErrLeased: the object is being read, or was a moment ago, so it is not removed without Force.
	ErrLeased = errors.New("in use by readers")
	// ErrBusy: a copy, move or write of the object is under way.
	ErrBusy = errors.New("busy")
	// ErrLeaseExpired: the read took longer than its lease, which could not be renewed: what was read
	// may belong to another object and is not returned.
	ErrLeaseExpired = errors.New("lease expired during the read")
	// ErrChanged: the object was replaced between two parts of a read.
	ErrChanged = errors.New("object was replaced during the read")
	// ErrInvalid: an argument makes no sense, to this client or to the master.
	ErrInvalid = errors.New("invalid argument")
	// ErrTooSmall: the destination is smaller than the object.
	ErrTooSmall = errors.New("destination too small")
	// ErrTransfer: the data could not be moved from or to any replica.
	ErrTransfer = errors.New("transfer failed")
	// ErrChecksum: the bytes are not those that were put.
	ErrChecksum = errors.New("checksum mismatch")
	// ErrUnavailable: the master does not answer, or cannot serve now. Whether a call that changes
	// something took effect is unknown, except that an object is never visible half written.
	ErrUnavailable = errors.New("master unavailable")
	// ErrRefused: the master does not allow it (quota, foreign object, unknown tenant).
	ErrRefused = errors.New("refused")
	// ErrUnsupported: this client or this master cannot do that.
	ErrUnsupported = errors.New("not supported")
	// ErrAborted: nothing was wrong with this object of an all-or-nothing batch, but with another one.
	ErrAborted = errors.New("batch aborted")
	// ErrClosed: the client is closed.
	ErrClosed = errors.New("client closed")
)

// Error is what methods of [Client] return. It wraps a sentinel of this package and, where there is one,
// the master's code, the context's error and the error of the transfer.
type Error struct {
	Op  string // "get", "put", ...
	Key string // "" if it is about no single object
	// Kind is the sentinel.
	Kind error
	// Cause is what happened, nil if the kind says it all.
	Cause error
}

// Error is one line: "store: get "key": not found".
func (e *Error) Error() string {
	s := "store: " + e.Op
	if e.Key != "" {
		s += fmt.Sprintf(" %q", e.Key)
	}
	kind := e.Kind.Error()
	if e.Cause == nil {
		return s + ": " + kind
	}
	cause := e.Cause.Error()
	if !strings.HasPrefix(cause, kind+":") {
		s += ": " + kind
	}
	return s + ": " + cause
}

// Unwrap gives errors.Is and errors.As both chains.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// wireKinds are the sentinels of the master's codes.
var wireKinds = map[wire.ErrorCode]error{
	wire.ErrObjectNotFound:             ErrNotFound,
	wire.ErrSegmentNotFound:            ErrNotFound,
	wire.ErrTaskNotFound:               ErrNotFound,
	wire.ErrReplicaNotFound:            ErrNotFound,
	wire.ErrReplicaIsNotReady:          ErrNotReady,
	wire.ErrReplicaIsGone:              ErrNotReady,
	wire.ErrObjectAlreadyExists:        ErrExists,
	wire.ErrReplicaAlreadyExists:       ErrExists,
	wire.ErrSegmentAlreadyExists:       ErrExists,
	wire.ErrNoAvailableHandle:          ErrNoSpace,
	wire.ErrObjectHasLease:             ErrLeased,
	wire.ErrLeaseExpired:               ErrLeaseExpired,
	wire.ErrObjectHasReplicationTask:   ErrBusy,
	wire.ErrObjectReplicaBusy:          ErrBusy,
	wire.ErrTaskPendingLimitExceeded:   ErrBusy,
	wire.ErrInvalidParams:              ErrInvalid,
	wire.ErrInvalidKey:                 ErrInvalid,
	wire.ErrTransferFail:               ErrTransfer,
	wire.ErrChecksumMismatch:           ErrChecksum,
	wire.ErrIllegalClient:              ErrRefused,
	wire.ErrTenantQuotaExceeded:        ErrRefused,
	wire.ErrTenantNotRegistered:        ErrRefused,
	wire.ErrUnavailableInCurrentMode:   ErrUnavailable,
	wire.ErrNotSupported:               ErrUnsupported,
	wire.ErrReplicaNotInLocalMemory:    ErrUnsupported,
	wire.ErrUnavailableInCurrentStatus: ErrUnavailable,
}

// fail makes the error of an operation. cause may be a wire.ErrorCode, an error of the rpc or transfer
// package, a context's error or a sentinel of this package, possibly wrapped.
func fail(op, key string, cause error) error {
	var done *Error
	if errors.As(cause, &done) {
		return cause
	}
	kind := kindOf(cause)
	if cause == kind {
		cause = nil
	}
	return &Error{Op: op, Key: key, Kind: kind, Cause: cause}
}

// failf is fail with a sentinel and words.
func failf(op, key string, kind error, format string, args ...any) error {
	return &Error{Op: op, Key: key, Kind: kind, Cause: fmt.Errorf(format, args...)}
}

// kinds are tested in this order for causes that are no bare code.
var kinds = []error{ErrClosed, ErrChecksum, ErrLeaseExpired, ErrChanged, ErrTooSmall, ErrUnsupported, ErrAborted, ErrNotFound, ErrNotReady,
	ErrExists, ErrNoSpace, ErrInvalid, ErrTransfer, ErrUnavailable, ErrRefused, ErrBusy, ErrLeased}

func kindOf(cause error) error {
	for _, k := range kinds {
		if errors.Is(cause, k) {
			return k
		}
	}
	var code wire.ErrorCode
	var remote *rpc.RemoteError
	switch {
	case errors.As(cause, &code):
		if k, ok := wireKinds[code]; ok {
			return k
		}
		return ErrRefused
	case errors.As(cause, &remote):
		if remote.Code == rpc.CodeUnknownFunction || remote.Code == rpc.CodeInvalidArguments {
			return ErrUnsupported // a master of another version
		}
		return ErrUnavailable
	case errors.Is(cause, rpc.ErrTooLarge):
		return ErrInvalid
	case errors.Is(cause, transfer.ErrInvalid), errors.Is(cause, transfer.ErrState), errors.Is(cause, transfer.ErrTimeout),
		errors.Is(cause, transfer.ErrCanceled), errors.Is(cause, transfer.ErrUnquiet), errors.Is(cause, transfer.ErrNoPath):
		return ErrTransfer
	}
	return ErrUnavailable
}

// Code is the number that upstream's client returns for an error: 0 for nil, -704 for a missing object, -900
// or -901 for a master that does not answer, -800 for a failed transfer.
func Code(err error) wire.ErrorCode {
	var code wire.ErrorCode
	switch {
	case err == nil:
		return wire.OK
	case errors.As(err, &code):
		return code
	case errors.Is(err, ErrNotFound):
		return wire.ErrObjectNotFound
	case errors.Is(err, ErrNotReady):
		return wire.ErrReplicaIsNotReady
	case errors.Is(err, ErrExists):
		return wire.ErrObjectAlreadyExists
	case errors.Is(err, ErrNoSpace):
		return wire.ErrNoAvailableHandle
	case errors.Is(err, ErrLeaseExpired), errors.Is(err, ErrChanged):
		return wire.ErrLeaseExpired
	case errors.Is(err, ErrInvalid), errors.Is(err, ErrTooSmall):
		return wire.ErrInvalidParams
	case errors.Is(err, ErrChecksum):
		return wire.ErrChecksumMismatch
	case errors.Is(err, ErrTransfer):
		return wire.ErrTransferFail
	case errors.Is(err, ErrUnsupported):
		return wire.ErrNotSupported
	case errors.Is(err, rpc.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return wire.ErrRPCTimeout
	}
	return wire.ErrRPCFail
}

// outcome is the metric label of an operation's end.
func outcome(err error) string {
	var e *Error
	if err == nil {
		return "ok"
	}
	if !errors.As(err, &e) {
		return "other"
	}
	for _, m := range []struct {
		kind  error
		label string
	}{
		{ErrNotFound, "not_found"}, {ErrNotReady, "not_ready"}, {ErrExists, "exists"}, {ErrNoSpace, "no_space"},
		{ErrLeased, "leased"}, {ErrBusy, "busy"}, {ErrLeaseExpired, "lease_expired"}, {ErrChanged, "changed"},
		{ErrInvalid, "invalid"}, {ErrTooSmall, "too_small"}, {ErrTransfer, "transfer"}, {ErrChecksum, "checksum"},
		{ErrUnavailable, "unavailable"}, {ErrRefused, "refused"}, {ErrUnsupported, "unsupported"}, {ErrAborted, "aborted"},
	} {
		if e.Kind == m.kind {
			return m.label
		}
	}
	return "other"
}
