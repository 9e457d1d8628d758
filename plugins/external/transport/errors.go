package transport

import (
	"context"
	"errors"
	"fmt"

	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
)

// sentinels are the errors of the contract for the codes of the protocol.
var sentinels = map[pluginv1.ErrorCode]error{
	pluginv1.ErrorCode_ERROR_CODE_UNAVAILABLE:    transports.ErrUnreachable,
	pluginv1.ErrorCode_ERROR_CODE_CLOSED:         transports.ErrClosed,
	pluginv1.ErrorCode_ERROR_CODE_CANCELLED:      context.Canceled,
	pluginv1.ErrorCode_ERROR_CODE_UNREACHABLE:    transports.ErrUnreachable,
	pluginv1.ErrorCode_ERROR_CODE_REJECTED:       transports.ErrRejected,
	pluginv1.ErrorCode_ERROR_CODE_INTERRUPTED:    transports.ErrInterrupted,
	pluginv1.ErrorCode_ERROR_CODE_TIMEOUT:        transports.ErrTimeout,
	pluginv1.ErrorCode_ERROR_CODE_PROTOCOL:       transports.ErrProtocol,
	pluginv1.ErrorCode_ERROR_CODE_NOT_SHAREABLE:  transports.ErrNotShareable,
	pluginv1.ErrorCode_ERROR_CODE_NOT_REGISTERED: transports.ErrNotRegistered,
	pluginv1.ErrorCode_ERROR_CODE_UNQUIET:        transports.ErrUnquiet,
}

// maxMessage is what is kept of a plugin's text.
const maxMessage = 1000

// fromProto turns a plugin's error into one of the contract. known is false for codes that a transport must not answer.
func fromProto(e *pluginv1.Error) (err error, known bool) {
	text := e.Message
	if len(text) > maxMessage {
		text = text[:maxMessage]
	}
	s := sentinels[e.Code]
	if s == nil {
		return fmt.Errorf("error code %v: %q: %w", e.Code, text, transports.ErrProtocol), false
	}
	return fmt.Errorf("%q: %w", text, s), true
}

// unlessOurs is for calls: a plugin that is closed although the host has not closed it is on its way out.
func unlessOurs(err error) error {
	if errors.Is(err, transports.ErrClosed) {
		return fmt.Errorf("%w: %s", transports.ErrUnreachable, err)
	}
	return err
}

// interrupted is the error of operations whose process has ended.
func interrupted(why error) error {
	return fmt.Errorf("%w: the plugin's process has ended: %w", transports.ErrInterrupted, why)
}

var errUnknownEnd = errors.New("the end of an operation that is not in flight")
