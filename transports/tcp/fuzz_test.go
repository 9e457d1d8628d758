package tcp

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

// socketPair returns two connected stream sockets.
func socketPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var c [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		if c[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return c[0], c[1]
}

// FuzzServer feeds a served connection arbitrary bytes: it never panics, touches only registered memory,
// gives every region back and always ends.
func FuzzServer(f *testing.F) {
	const addr, size, guard = 0x10000, 32 << 10, 16 << 10
	tr := newTestTransport(f, func(c *Config) { c.DrainTimeout = 20 * time.Millisecond })
	n := transporttest.StartNode(f, transporttest.NewFabric(), tr)
	mem := transporttest.NewRegion(f, size+2*guard, transports.ReadWrite)
	n.Add(f, slice{placed{mem, addr - guard}, guard, size})
	ok := headerBytes(opWrite|flagV2, addr, 5)
	f.Add([]byte{})
	f.Add(ok[:7])
	f.Add(append(ok, "hello"...))
	f.Add(append(append(ok, "hello"...), headerBytes(opRead|flagV2, addr+1, 20_000)...))
	f.Add(append(headerBytes(opRead, addr, size), headerBytes(opRead|flagV2, addr+size-1, 2)...))
	f.Add(append(headerBytes(opWrite, addr+size-100, 100), bytes.Repeat([]byte{7}, 99)...))
	f.Add(bytes.Repeat(headerBytes(opRead|flagV2, addr, 1), 200))
	f.Add(append(headerBytes(opWrite|flagV2, addr, 20_000), bytes.Repeat([]byte{1}, 30_000)...))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		transporttest.Set(mem.Bytes()[:guard], 0xa5)
		transporttest.Set(mem.Bytes()[guard+size:], 0xa5)
		ours, theirs := socketPair(t)
		defer theirs.Close()
		tr.srv.admit(ours)
		theirs.SetDeadline(time.Now().Add(20 * time.Second))
		go func() {
			theirs.Write(in)
			theirs.(*net.UnixConn).CloseWrite()
		}()
		out, err := io.ReadAll(theirs)
		if e, isNet := err.(net.Error); isNet && e.Timeout() {
			t.Fatal("the connection did not end")
		}
		if len(in) < headerLen && len(out) > 0 {
			t.Fatalf("%d bytes in reply to less than a header", len(out))
		}
		transporttest.CheckAll(t, "memory before the region", mem.Bytes()[:guard], 0xa5)
		transporttest.CheckAll(t, "memory behind the region", mem.Bytes()[guard+size:], 0xa5)
		waitUntil(t, func() string {
			if r := n.Refs(); r != 0 {
				return fmt.Sprintf("%d Refs left", r)
			}
			return ""
		})
	})
}

// FuzzLane feeds the client's side of a connection arbitrary answers: every op completes once, only its
// own memory is written.
func FuzzLane(f *testing.F) {
	const size, guard = 3000, 4096
	f.Add([]byte{})
	f.Add(statusBytes(statusOK))
	f.Add(append(statusBytes(statusOK), make([]byte, size)...))
	f.Add(append(append(append(statusBytes(statusOK), make([]byte, size)...), statusBytes(statusOK)...), statusBytes(statusRejected)...))
	f.Add(statusBytes(statusRejected))
	f.Add(bytes.Repeat(statusBytes(statusOK), 600))
	tr := newTestTransport(f, func(c *Config) { c.LanesPerPeer, c.ReconnectPause = 1, time.Millisecond })
	n := transporttest.StartNode(f, transporttest.NewFabric(), tr)
	mem := n.Register(f, 3*guard+2*size, transports.ReadWrite)
	f.Fuzz(func(t *testing.T, in []byte) {
		transporttest.Set(mem.Bytes(), 0xa5)
		ft := newFakeTarget(t, 1, func(_, _ int, _ header, c net.Conn) bool {
			c.Write(in)
			c.(*fakeConn).Conn.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, c)
			return false
		})
		p := n.DialDescriptor(t, ft.descriptor(2))
		defer p.Close()
		var opList []transports.Op
		for i := range 4 {
			o := transports.Op{Write: i%2 == 1, Local: mem, Offset: guard, Remote: 1 << 40, Len: size, Cookie: uint64(i)}
			if i >= 2 {
				o.Offset = 2*guard + size
			}
			opList = append(opList, o)
		}
		r := transporttest.NewRecorder(t)
		if err := r.Submit(t.Context(), p, opList...); err != nil {
			t.Fatal(err)
		}
		r.Wait()
		for i, gap := range [][2]int{{0, guard}, {guard + size, 2*guard + size}, {2*guard + 2*size, 3*guard + 2*size}} {
			transporttest.CheckAll(t, fmt.Sprintf("memory around the ops, %d", i), mem.Bytes()[gap[0]:gap[1]], 0xa5)
		}
	})
}
