package testenv

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"
)

// Blackhole returns a 127.0.0.1 address that answers no connection attempt, neither with success
// nor with a refusal: a listener whose backlog is full, so that the kernel drops further SYNs. It
// stands in for a host that is gone.
func Blackhole(t testing.TB) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("blackhole: %v", err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatalf("blackhole: %v", err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatalf("blackhole: %v", err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatalf("blackhole: %v", err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", sa.(*syscall.SockaddrInet4).Port)
	for range 64 {
		c, err := net.DialTimeout("tcp", addr, 300*time.Millisecond)
		if err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				return addr
			}
			t.Fatalf("blackhole: %v", err)
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("blackhole: the backlog did not fill up")
	return ""
}
