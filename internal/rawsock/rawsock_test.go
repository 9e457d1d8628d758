package rawsock

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// The calls on a socket that would block: none of them waits.
func TestNothingWaits(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := pair[0], pair[1]
	defer unix.Close(a)
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ep)
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, a, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(a)}); err != nil {
		t.Fatal(err)
	}
	events := make([]unix.EpollEvent, 4)
	if n, err := Poll(ep, events); n != 0 || err != nil {
		t.Errorf("poll without data: %d, %v", n, err)
	}
	buf := make([]byte, 64)
	if n, err := Recv(a, buf); n != 0 || !errors.Is(err, unix.EAGAIN) {
		t.Errorf("recv without data: %d, %v", n, err)
	}
	if n, err := Send(b, []byte("hello")); n != 5 || err != nil {
		t.Errorf("send: %d, %v", n, err)
	}
	if n, err := Poll(ep, events); n != 1 || err != nil || events[0].Fd != int32(a) {
		t.Errorf("poll: %d, %v, %+v", n, err, events[0])
	}
	if n, err := Recv(a, buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("recv: %q, %v", buf[:n], err)
	}
	full := bytes.Repeat([]byte("x"), 1<<20)
	for err == nil {
		_, err = Send(b, full)
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Errorf("send into a full socket: %v", err)
	}
	unix.Close(b)
	if _, err := Send(a, full); !errors.Is(err, unix.EPIPE) {
		t.Errorf("send to nobody: %v", err)
	}
	var left int
	for {
		n, err := Recv(a, buf)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		left += n
	}
	if left == 0 {
		t.Error("the end came before the data")
	}
	if n, err := Recv(a, nil); n != 0 || err != nil {
		t.Errorf("recv into nothing: %d, %v", n, err)
	}
}
