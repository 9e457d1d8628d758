// Command faulty is the mover as a plugin, for tests of the host: it works until it has begun as many operations as it is
// told to, and then does what it is told to.
package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/mooncake-agent/mooncake/plugins/examples/external-transport/mover"
	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/plugins/sdk/external"
	"github.com/mooncake-agent/mooncake/plugins/sdk/external/transport"
	"github.com/mooncake-agent/mooncake/transports"
)

// config says what goes wrong, and after how many operations of the first process.
type config struct {
	Fault string `json:"fault"`
	After int64  `json:"after"`
}

// plugin is the mover's server, watched.
type plugin struct {
	*transport.Server
	config
	channel int // a duplicate of the transfer socket
	begun   atomic.Int64
}

func main() {
	p := &plugin{Server: transport.NewServer(transport.Options{MustMatch: []string{"host"}})}
	err := external.Serve(external.Part{
		About: external.About{Name: "faulty", Version: "1"}, Kind: pluginv1.Kind_KIND_TRANSPORT,
		Register: func(g *grpc.Server) { pluginv1.RegisterTransportServiceServer(g, p) },
		Configure: func(_ context.Context, c external.Config) error {
			if err := c.Decode(&p.config); err != nil {
				return err
			}
			if c.Generation > 1 {
				p.Fault = ""
			}
			t, err := mover.New(mover.DefaultConfig())
			p.Serve(watched{t, p})
			return err
		},
		Shutdown: func(context.Context) error { return p.Close() },
		Side: func(req *pluginv1.SideRequest, fd int) error {
			if _, ok := req.What.(*pluginv1.SideRequest_Channel); ok {
				p.channel, _ = syscall.Dup(fd)
			}
			return p.Side(req, fd)
		},
	})
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// watched counts operations.
type watched struct {
	transports.Transport
	p *plugin
}

func (w watched) Dial(ctx context.Context, d *transports.Descriptor) (transports.Peer, error) {
	p, err := w.Transport.Dial(ctx, d)
	return watchedPeer{p, w.p}, err
}

type watchedPeer struct {
	transports.Peer
	p *plugin
}

func (w watchedPeer) Submit(ctx context.Context, ops []transports.Op, done transports.Completion) error {
	if n := w.p.begun.Add(int64(len(ops))); w.p.Fault != "" && n >= w.p.After && n-int64(len(ops)) < w.p.After {
		go w.p.fail()
	}
	return w.Peer.Submit(ctx, ops, done)
}

func (p *plugin) fail() {
	switch p.Fault {
	case "exit":
		os.Exit(7)
	case "kill":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "stop":
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case "garbage":
		syscall.Write(p.channel, []byte("this is no message of the protocol"))
	case "twice": // an operation that has ended long ago
		syscall.Write(p.channel, []byte{0x0a, 0x02, 0x08, 0x01})
	case "leak": // until the limit for private memory ends the process
		for all := [][]byte{}; ; time.Sleep(time.Millisecond) {
			b := make([]byte, 16<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			all = append(all, b)
		}
	case "flood":
		for line := fmt.Sprintf("%0200d\n", 0); ; {
			fmt.Fprint(os.Stderr, line)
		}
	default:
		fmt.Fprintf(os.Stderr, "fault %q is not known\n", p.Fault)
		os.Exit(8)
	}
}
