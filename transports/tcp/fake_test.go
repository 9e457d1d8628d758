package tcp

import (
	"encoding/hex"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

// fakeTarget is an independent server of the data protocol: straightforward, one request at a time, with
// a hook to misbehave. Its memory is virtual: addresses from base on.
type fakeTarget struct {
	t    testing.TB
	ln   net.Listener
	base uint64
	// hook sees each request before its payload is read; it returns false to end the connection, and
	// does nothing but return true to let the request be answered as usual.
	hook func(conn, request int, h header, c net.Conn) bool

	mu       sync.Mutex
	mem      []byte
	conns    []*fakeConn
	requests int
	wg       sync.WaitGroup
}

type fakeConn struct {
	net.Conn
	got []byte // everything received
}

func (c *fakeConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.got = append(c.got, b[:n]...)
	return n, err
}

func newFakeTarget(t testing.TB, size int, hook func(conn, request int, h header, c net.Conn) bool) *fakeTarget {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeTarget{t: t, ln: ln, base: fakeBase, mem: make([]byte, size), hook: hook}
	f.serve(ln)
	t.Cleanup(f.close)
	return f
}

func (f *fakeTarget) serve(ln net.Listener) {
	f.ln = ln
	f.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			fc := &fakeConn{Conn: c}
			f.mu.Lock()
			n := len(f.conns)
			f.conns = append(f.conns, fc)
			f.mu.Unlock()
			f.wg.Go(func() { f.one(n, fc) })
		}
	})
}

// close stops listening and ends all connections. restart begins again on the same port.
func (f *fakeTarget) close() {
	f.ln.Close()
	f.mu.Lock()
	for _, c := range f.conns {
		c.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

func (f *fakeTarget) restart() {
	f.t.Helper()
	f.close()
	var ln net.Listener
	waitUntil(f.t, func() string {
		var err error
		if ln, err = net.Listen("tcp", f.ln.Addr().String()); err != nil {
			return err.Error()
		}
		return ""
	})
	f.serve(ln)
}

func (f *fakeTarget) one(n int, c *fakeConn) {
	defer c.Close()
	for request := 0; ; request++ {
		var hb [headerLen]byte
		if _, err := io.ReadFull(c, hb[:]); err != nil {
			return
		}
		h := parseHeader(hb[:])
		f.mu.Lock()
		f.requests++
		f.mu.Unlock()
		if f.hook != nil && !f.hook(n, request, h, c) {
			return
		}
		if h.size == 0 || h.wraps() || h.addr < f.base || h.addr+h.size > f.base+uint64(len(f.mem)) {
			if h.v2() {
				var st [statusLen]byte
				putStatus(st[:], statusRejected)
				c.Write(st[:])
			}
			return // with the payload unread, as upstream does: a reset
		}
		var ok [statusLen]byte
		putStatus(ok[:], statusOK)
		off := h.addr - f.base
		if h.write() {
			p := make([]byte, h.size)
			if _, err := io.ReadFull(c, p); err != nil {
				return
			}
			f.mu.Lock()
			copy(f.mem[off:], p)
			f.mu.Unlock()
			if h.v2() {
				c.Write(ok[:])
			}
			continue
		}
		f.mu.Lock()
		p := append([]byte(nil), f.mem[off:off+h.size]...)
		f.mu.Unlock()
		if h.v2() {
			c.Write(ok[:])
		}
		if _, err := c.Write(p); err != nil {
			return
		}
	}
}

func (f *fakeTarget) peek(off, n int) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]byte(nil), f.mem[off:off+n]...)
}

func (f *fakeTarget) counts() (conns, requests int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns), f.requests
}

func (f *fakeTarget) descriptor(proto int) *transports.Descriptor {
	return &transports.Descriptor{Name: "fake", Protocol: "tcp", TCPDataHost: "127.0.0.1",
		TCPDataPort: f.ln.Addr().(*net.TCPAddr).Port, TCPProtoVersion: proto}
}

// client is a started transport with one local region and a peer.
type client struct {
	*transporttest.Node
	tr    *Transport
	local *transporttest.Region
	peer  transports.Peer
}

func newClient(t testing.TB, to *transports.Descriptor, change func(*Config)) *client {
	t.Helper()
	tr := newTestTransport(t, change)
	n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
	c := &client{Node: n, tr: tr, local: n.Register(t, 8<<20, transports.ReadWrite)}
	c.peer = n.DialDescriptor(t, to)
	return c
}

func (c *client) op(write bool, remote uint64, n int, cookie uint64) transports.Op {
	return transports.Op{Write: write, Local: c.local, Remote: remote, Len: uint64(n), Cookie: cookie}
}

func (c *client) write(t testing.TB, remote uint64, n int) error {
	t.Helper()
	return transporttest.Move(t, c.peer, c.op(true, remote, n, 1))
}

func (c *client) read(t testing.TB, remote uint64, n int) error {
	t.Helper()
	return transporttest.Move(t, c.peer, c.op(false, remote, n, 1))
}

func waitUntil(t testing.TB, cond func() (why string)) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for {
		why := cond()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(why)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// placed is a region published at another address.
type placed struct {
	*transporttest.Region
	addr uint64
}

func (p placed) Addr() uint64 { return p.addr }
