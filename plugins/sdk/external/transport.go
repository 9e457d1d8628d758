package external

import (
	"context"

	"google.golang.org/grpc"

	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/plugins/sdk/external/transport"
	"github.com/mooncake-agent/mooncake/transports"
)

// TransportOptions are what the Go contract of transports does not say.
type TransportOptions = transport.Options

// ServeTransport serves a transport until the host ends the process. open returns it, not started, like the constructor
// of a transport that is linked into the node. It gets the node's regions as memory of this process, and describes exactly
// one path; signals of the handshake daemon are not offered.
func ServeTransport(a About, o TransportOptions, open func(Config) (transports.Transport, error)) error {
	s := transport.NewServer(o)
	return Serve(Part{
		About: a, Kind: pluginv1.Kind_KIND_TRANSPORT, Features: s.Features(),
		Register: func(g *grpc.Server) { pluginv1.RegisterTransportServiceServer(g, s) },
		Configure: func(_ context.Context, c Config) error {
			t, err := open(c)
			if err == nil {
				s.Serve(t)
			}
			return err
		},
		Shutdown: func(context.Context) error { return s.Close() },
		Side:     s.Side,
	})
}
