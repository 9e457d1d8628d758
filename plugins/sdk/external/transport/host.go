package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
)

// host is what the transport sees of the node.
type host struct {
	s       *Server
	id      transports.Identity
	signals bool // OnSignal was called
}

var _ transports.Host = (*host)(nil)

// Find implements transports.Host.
func (h *host) Find(addr, n uint64) (transports.Ref, error) { return h.s.memory.find(addr, n) }

// Identity implements transports.Host.
func (h *host) Identity() transports.Identity { return h.id }

// Signal implements transports.Host.
func (h *host) Signal(_ context.Context, peer string, _ byte, _ []byte) ([]byte, error) {
	return nil, fmt.Errorf("signal to %q: plugins have no access to the handshake daemon: %w", peer, transports.ErrUnreachable)
}

// OnSignal implements transports.Host. Start fails after it.
func (h *host) OnSignal(byte, transports.SignalFunc) { h.signals = true }

// Listen implements transports.Host. The node has chosen the port.
func (h *host) Listen(context.Context, units.PortRange) (net.Listener, error) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	ln := h.s.listener
	h.s.listener = nil // the transport closes it
	if ln == nil {
		return nil, errors.New("listen: the node gave no listener, or it was taken already; set Options.Listen")
	}
	return ln, nil
}

// codes are the errors of the contract in the order in which they are looked for.
var codes = []struct {
	err  error
	code pluginv1.ErrorCode
}{
	{transports.ErrUnquiet, pluginv1.ErrorCode_ERROR_CODE_UNQUIET},
	{context.Canceled, pluginv1.ErrorCode_ERROR_CODE_CANCELLED},
	{context.DeadlineExceeded, pluginv1.ErrorCode_ERROR_CODE_CANCELLED},
	{transports.ErrClosed, pluginv1.ErrorCode_ERROR_CODE_CLOSED},
	{transports.ErrNotShareable, pluginv1.ErrorCode_ERROR_CODE_NOT_SHAREABLE},
	{transports.ErrNotRegistered, pluginv1.ErrorCode_ERROR_CODE_NOT_REGISTERED},
	{transports.ErrRejected, pluginv1.ErrorCode_ERROR_CODE_REJECTED},
	{transports.ErrTimeout, pluginv1.ErrorCode_ERROR_CODE_TIMEOUT},
	{transports.ErrProtocol, pluginv1.ErrorCode_ERROR_CODE_PROTOCOL},
	{transports.ErrInterrupted, pluginv1.ErrorCode_ERROR_CODE_INTERRUPTED},
	{transports.ErrUnreachable, pluginv1.ErrorCode_ERROR_CODE_UNREACHABLE},
}

// maxMessage is what is sent of an error's text.
const maxMessage = 300

// toProto is for the answer of a call. An error that is none of the contract is a bug of the transport.
func toProto(err error) *pluginv1.Error { return encode(err, pluginv1.ErrorCode_ERROR_CODE_INTERNAL) }

// encode gives an error that is none of the contract the code other.
func encode(err error, other pluginv1.ErrorCode) *pluginv1.Error {
	text := err.Error()
	if len(text) > maxMessage {
		text = text[:maxMessage]
	}
	e := &pluginv1.Error{Code: other, Message: strings.ToValidUTF8(text, "?")}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			e.Code = c.code
			break
		}
	}
	return e
}
