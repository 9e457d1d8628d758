package shm

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports"
)

// maxSocketDir leaves room for the socket's own name in the 107 bytes of an address.
const maxSocketDir = 107 - len("/mooncake-0123456789abcdef.sock")

// listen opens the owner's socket: abstract, or in dir. The name is random, so that nobody can be there
// first.
func listen(dir string) (*net.UnixListener, error) {
	var b [8]byte
	rand.Read(b[:])
	name := "mooncake-" + hex.EncodeToString(b[:])
	if dir == "" {
		return net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: "@" + name})
	}
	if err := ownDir(dir); err != nil {
		return nil, fmt.Errorf("socket_dir: %w", err)
	}
	return net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(dir, name+".sock")})
}

// ownDir makes sure that dir is a folder of this user that no other one may enter.
func ownDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !st.IsDir() || st.Mode().Perm()&0o077 != 0 || int(st.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return fmt.Errorf("%s must be a folder of uid %d with mode 0700, it has mode %v: run chmod 700, or choose another folder", dir, os.Geteuid(), st.Mode())
	}
	return nil
}

// netNamespace identifies the network namespace, which is the scope of abstract names; "" = unknown.
func netNamespace() string {
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/net", &st) != nil {
		return ""
	}
	return strconv.FormatUint(st.Ino, 10)
}

// checkPeer refuses a peer of another user. For a connecting socket the kernel tells who listens.
func checkPeer(c *net.UnixConn, uid int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if credErr != nil {
		return fmt.Errorf("SO_PEERCRED: %w", credErr)
	}
	if int(cred.Uid) != uid {
		return fmt.Errorf("the socket belongs to process %d of uid %d, this process has uid %d: %w", cred.Pid, cred.Uid, uid, errForeignUser)
	}
	return nil
}

var errForeignUser = errors.New("another user")

// send writes one message, with a file descriptor if fd is not negative.
func send(c *net.UnixConn, m *message, fd int) error {
	var room [maxMessage]byte
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	_, _, err := c.WriteMsgUnix(m.append(room[:0]), oob, nil)
	return err
}

// receive reads one message. fd is -1, or a descriptor that the caller closes. Only region and offer
// messages come with one.
func receive(c *net.UnixConn) (m message, fd int, err error) {
	var buf [maxMessage + 1]byte
	var oob [64]byte // room for several, so that more than one is noticed and closed
	n, oobn, flags, _, err := c.ReadMsgUnix(buf[:], oob[:])
	fds := rights(oob[:oobn])
	fail := func(err error) (message, int, error) {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return message{}, -1, err
	}
	if err != nil {
		return fail(err)
	}
	if n == 0 { // of some kernels and Go versions: the end
		return fail(io.EOF)
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return fail(fmt.Errorf("shm: oversized message: %w", transports.ErrProtocol))
	}
	if m, err = parseMessage(buf[:n]); err != nil {
		return fail(err)
	}
	want := 0
	if m.typ == msgRegion || m.typ == msgOffer {
		want = 1
	}
	if len(fds) != want {
		return fail(fmt.Errorf("shm: message of type %d with %d descriptors: %w", m.typ, len(fds), transports.ErrProtocol))
	}
	if want == 0 {
		return m, -1, nil
	}
	return m, fds[0], nil
}

func rights(oob []byte) (fds []int) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range msgs {
		if got, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

// memfd is what is known about a descriptor that may be mapped.
type memfd struct {
	dev, ino uint64
	size     uint64
	writable bool // opened for writing
}

// inspect accepts sealed memfds only: a file that can shrink would take the process down by SIGBUS, or
// fail copies in the middle.
func inspect(fd int) (memfd, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return memfd{}, fmt.Errorf("not a memfd (%w)", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return memfd{}, errors.New("a memfd without the seal against shrinking")
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return memfd{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return memfd{}, err
	}
	return memfd{dev: st.Dev, ino: st.Ino, size: uint64(st.Size), writable: flags&unix.O_ACCMODE == unix.O_RDWR}, nil
}

// reopenReadOnly gives a descriptor of the same memfd over which nothing can be written.
func reopenReadOnly(fd int) (int, error) {
	return unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// controlLen is the size of the memfd that carries the tokens: the owner's, then the initiator's.
const controlLen = 4096

// newControl makes the control memfd of one connection, mapped, with a fresh token.
func newControl() (fd int, mem []byte, token [tokenLen]byte, err error) {
	rand.Read(token[:])
	if fd, err = unix.MemfdCreate("mooncake-shm-control", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return -1, nil, token, err
	}
	err = unix.Ftruncate(fd, controlLen)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		mem, err = unix.Mmap(fd, 0, controlLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		unix.Close(fd)
		return -1, nil, token, err
	}
	copy(mem, token[:])
	return fd, mem, token, nil
}

// deadline of a send: a peer that does not read for so long has a full socket buffer and is stuck.
const sendTimeout = time.Second
