package rpc

import (
	"errors"
	"fmt"
)

// Errors of the client and the server. They are wrapped with what happened and where; test with
// [errors.Is] and [errors.As].
var (
	// ErrClosed means that this client or server was closed.
	ErrClosed = errors.New("closed")
	// ErrDial means that no connection could be made; nothing was sent.
	ErrDial = errors.New("cannot connect")
	// ErrConnectionLost means that the connection broke while the call was outstanding: the server may
	// or may not have served it.
	ErrConnectionLost = errors.New("connection lost")
	// ErrTimeout means that no answer came in time: the server may or may not have served the call.
	ErrTimeout = errors.New("timed out")
	// ErrBusy means that no connection had room for another call in time; nothing was sent.
	ErrBusy = errors.New("too many calls in flight")
	// ErrTooLarge means that the request exceeds max_body; nothing was sent.
	ErrTooLarge = errors.New("message too large")
	// ErrBadAnswer means that the answer could not be decoded.
	ErrBadAnswer = errors.New("undecodable answer")
)

// RemoteError is an error answer of the peer's RPC layer, not of its application.
type RemoteError struct {
	Code    Code
	Message string
}

// Error returns code and message.
func (e *RemoteError) Error() string {
	return fmt.Sprintf("%s (code %d): %s", e.Code, uint16(e.Code), e.Message)
}
