package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mooncake-agent/mooncake/metadata"
)

// classify tells whether err is an answer of the cluster that stands (definite), and if so which error of
// the contract it is (nil for success) and why. Everything else is worth another try elsewhere.
func classify(err error, req request) (definite bool, kind, cause error) {
	switch {
	case err == nil:
		return true, nil, nil
	case errors.Is(err, metadata.ErrNotFound), errors.Is(err, metadata.ErrConflict), errors.Is(err, metadata.ErrClosed):
		return true, err, nil
	}
	text := message(err)
	switch code(err) {
	case codes.ResourceExhausted:
		// grpc (either side): "trying to send message larger than max (a vs. b)", "received message larger
		// than max (a vs. b)".
		if _, numbers, ok := strings.Cut(text, "larger than max "); ok {
			return true, metadata.ErrTooLarge, fmt.Errorf("the request has %d bytes of values, its message and the limit are %s bytes; "+
				"etcd's flag --max-request-bytes raises the limit (up to %d here)", req.size, numbers, maxMessage)
		}
		if strings.Contains(text, "too many requests") {
			return false, nil, nil
		}
		return true, metadata.ErrRefused, errors.New(text) // database space exceeded
	case codes.InvalidArgument:
		if strings.Contains(text, "request is too large") {
			return true, metadata.ErrTooLarge, fmt.Errorf("the request has %d bytes of values, etcd takes up to its flag "+
				"--max-request-bytes (1572864 unless set)", req.size)
		}
		if strings.Contains(text, "too many operations") {
			return true, metadata.ErrTooLarge, fmt.Errorf("%s; etcd's flag --max-txn-ops raises the limit (128 unless set)", text)
		}
		if errors.Is(err, rpctypes.ErrAuthOldRevision) { // users are being changed
			return false, nil, nil
		}
		return true, metadata.ErrRefused, errors.New(text)
	case codes.NotFound:
		return true, metadata.ErrLeaseLost, errors.New(text) // requested lease not found
	case codes.Unauthenticated:
		if errors.Is(err, rpctypes.ErrInvalidAuthToken) { // a new connection logs in again
			return false, nil, nil
		}
		return true, metadata.ErrRefused, errors.New(text)
	case codes.PermissionDenied, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return true, metadata.ErrRefused, errors.New(text)
	}
	return false, nil, nil
}

// code works for etcd's own error type, which has no GRPCStatus, and for gRPC's.
func code(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	return status.Code(err)
}

func message(err error) string {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Error()
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// explain turns an error of the client into one line for people.
func explain(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || code(err) == codes.DeadlineExceeded {
		return errors.New("no answer in time")
	}
	text := message(err)
	// connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"
	if _, inner, ok := strings.Cut(text, `desc = "`); ok {
		text = strings.TrimPrefix(strings.TrimSuffix(inner, `"`), "transport: ")
	}
	return errors.New(text)
}

// mayBeApplied tells whether a write that failed with err could have reached the cluster.
func mayBeApplied(err error) bool {
	switch text := message(err); {
	case code(err) != codes.Unavailable:
		return true
	case strings.Contains(text, "Error while dialing"), strings.Contains(text, "authentication handshake failed"),
		strings.Contains(text, "no leader"), strings.Contains(text, "not capable"):
		return false
	}
	return true
}
