package external

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

const (
	maxSidePacket = 64 << 10
	maxSideFDs    = 16
	// hostGone is the exit status when the host has ended without a word.
	hostGone = 3
)

// followHost reads the side socket for the life of the process, which ends when the host does.
func followHost(take func(*pluginv1.SideRequest, int) error) error {
	text, ok := os.LookupEnv(pluginv1.EnvSideFD)
	if !ok {
		return nil // not started by a node: go-plugin tells the user
	}
	fd, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("external: %s=%q is no number", pluginv1.EnvSideFD, text)
	}
	// What was inherited is for this program, not for those that it starts.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("external: inherited files: %w", err)
	}
	f := os.NewFile(uintptr(fd), "side")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return fmt.Errorf("external: side socket: %w", err)
	}
	side, ok := c.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("external: side socket: descriptor %d is a %s", fd, c.LocalAddr().Network())
	}
	go func() { // ends with the process
		for {
			if err := answer(side, take); err != nil {
				os.Exit(hostGone)
			}
		}
	}()
	return nil
}

// answer takes one request.
func answer(side *net.UnixConn, take func(*pluginv1.SideRequest, int) error) error {
	packet, rights := make([]byte, maxSidePacket), make([]byte, unix.CmsgSpace(4*maxSideFDs))
	n, rn, flags, _, err := side.ReadMsgUnix(packet, rights)
	if err != nil {
		return err
	}
	if n == 0 {
		return net.ErrClosed
	}
	fds, err := parseRights(rights[:rn])
	if err != nil {
		return err
	}
	resp := &pluginv1.SideResponse{}
	var req pluginv1.SideRequest
	switch err := proto.Unmarshal(packet[:n], &req); {
	case err != nil || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		resp.Error = &pluginv1.Error{Code: pluginv1.ErrorCode_ERROR_CODE_INTERNAL, Message: "the packet is no SideRequest"}
	case take == nil || req.What == nil || len(fds) > 1:
		resp.Error = &pluginv1.Error{Code: pluginv1.ErrorCode_ERROR_CODE_INTERNAL, Message: "not understood by this plugin"}
	default:
		fd := -1
		if len(fds) == 1 {
			fd, fds = fds[0], nil
		}
		if err := take(&req, fd); err != nil {
			resp.Error = &pluginv1.Error{Code: pluginv1.ErrorCode_ERROR_CODE_INTERNAL, Message: err.Error()}
		}
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	resp.Id = req.Id
	out, err := proto.Marshal(resp)
	if err != nil {
		return err
	}
	_, err = side.Write(out)
	return err
}

// parseRights returns the descriptors of a control message, closed on exec.
func parseRights(raw []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(raw)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		got, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, err
		}
		fds = append(fds, got...)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return fds, nil
}
