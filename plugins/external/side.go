package external

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

const maxSidePacket = 64 << 10

// sideSocket is the host's end of the side socket of one process.
type sideSocket struct {
	turn chan struct{} // holds a token while a request is on the way
	c    *net.UnixConn
	last uint64
}

// newSideSocket returns both ends. The caller closes far once the process has started.
func newSideSocket() (near *sideSocket, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("side socket: %w", err)
	}
	own, far := os.NewFile(uintptr(fds[0]), "side"), os.NewFile(uintptr(fds[1]), "side")
	defer own.Close() // FileConn duplicates it
	c, err := net.FileConn(own)
	if err != nil {
		far.Close()
		return nil, nil, fmt.Errorf("side socket: %w", err)
	}
	return &sideSocket{c: c.(*net.UnixConn), turn: make(chan struct{}, 1)}, far, nil
}

func (s *sideSocket) close() { s.c.Close() }

// give sends a request with a descriptor, if fd is not negative, and waits for the answer. fault is true if the plugin
// did not keep to the protocol, or did not answer in time: then the socket is of no more use.
func (s *sideSocket) give(ctx context.Context, req *pluginv1.SideRequest, fd int) (fault bool, err error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	defer func() { <-s.turn }()
	s.last++
	req.Id = s.last
	packet, err := proto.Marshal(req)
	if err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.c.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			fault, err = true, context.Cause(ctx) // the deadline stays in the past
		}
	}()
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	if _, _, err := s.c.WriteMsgUnix(packet, rights, nil); err != nil {
		return true, s.why(ctx, err)
	}
	buf := make([]byte, maxSidePacket)
	n, _, flags, _, err := s.c.ReadMsgUnix(buf, nil)
	if err != nil {
		return true, s.why(ctx, err)
	}
	var resp pluginv1.SideResponse
	if flags&unix.MSG_TRUNC != 0 || n == 0 || proto.Unmarshal(buf[:n], &resp) != nil || resp.Id != req.Id {
		return true, fmt.Errorf("%d bytes that are no answer to request %d", n, req.Id)
	}
	if e := resp.Error; e != nil {
		return false, fmt.Errorf("%s: %s", codeName(e.Code), clean(e.Message, 1000))
	}
	return false, nil
}

func (s *sideSocket) why(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return context.Cause(ctx)
	}
	return err
}
