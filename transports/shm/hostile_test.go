package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

const fakeInstance = "fake"

// fakeOwner is an owner that does what the test wants with each connection.
func fakeOwner(t *testing.T, serve func(c *net.UnixConn)) *transports.Descriptor {
	t.Helper()
	ln, err := listen("")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []*net.UnixConn
	wg.Go(func() {
		for {
			c, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(20 * time.Second))
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			wg.Go(func() {
				serve(c)
				for err := error(nil); err == nil; { // until the initiator has gone
					_, _, err = receive(c)
				}
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return fakeDescriptor(ln.Addr().String())
}

func fakeDescriptor(socket string) *transports.Descriptor {
	return &transports.Descriptor{Name: "fake", Agent: &transports.AgentExt{V: 1, Instance: fakeInstance,
		Paths: []transports.Path{{Type: pathType, Attr: map[string]string{attrSocket: socket, attrHost: "transporttest", attrNetNS: netNamespace()}}}}}
}

// welcome proves honestly.
func welcome(c *net.UnixConn) bool {
	if m, _, err := receive(c); err != nil || m.typ != msgHello || m.text != fakeInstance {
		return false
	}
	fd, mem, token, err := newControl()
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	defer unix.Munmap(mem)
	if send(c, &message{typ: msgOffer, version: 1}, fd) != nil {
		return false
	}
	if m, _, err := receive(c); err != nil || m.token != token {
		return false
	}
	answer := message{typ: msgWelcome}
	copy(answer.token[:], mem[tokenLen:])
	return send(c, &answer, -1) == nil
}

// tempMemfd makes a memfd of size bytes with the seals.
func tempMemfd(t testing.TB, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

// quick is a transport whose waits are short.
func quick(c *Config) {
	c.ConnectTimeout, c.AnswerTimeout, c.ReconnectPause = 300*time.Millisecond, 300*time.Millisecond, 80*time.Millisecond
}

// TestHostileMemory: whatever a peer hands over as its memory, ops take the next path and the node lives.
func TestHostileMemory(t *testing.T) {
	const addr, size = 0x10000, 1 << 20
	for name, c := range map[string]struct {
		fd   func(t *testing.T) int
		off  uint64
		read error // of a read; nil = it works
		want error // of a write
	}{
		"honest":               {fd: func(t *testing.T) int { return tempMemfd(t, size, unix.F_SEAL_SHRINK) }},
		"truncated":            {fd: func(t *testing.T) int { return tempMemfd(t, size-1, unix.F_SEAL_SHRINK) }, read: transports.ErrNotShareable, want: transports.ErrNotShareable},
		"truncated by offset":  {fd: func(t *testing.T) int { return tempMemfd(t, size, unix.F_SEAL_SHRINK) }, off: 1, read: transports.ErrNotShareable, want: transports.ErrNotShareable},
		"can shrink":           {fd: func(t *testing.T) int { return tempMemfd(t, size, unix.F_SEAL_GROW) }, read: transports.ErrNotShareable, want: transports.ErrNotShareable},
		"cannot be written":    {fd: func(t *testing.T) int { return tempMemfd(t, size, unix.F_SEAL_SHRINK|unix.F_SEAL_FUTURE_WRITE) }, read: transports.ErrNotShareable, want: transports.ErrNotShareable},
		"regular file":         {fd: func(t *testing.T) int { return tempFile(t, size) }, read: transports.ErrNotShareable, want: transports.ErrNotShareable},
		"pipe":                 {fd: func(t *testing.T) int { return pipe(t) }, read: transports.ErrNotShareable, want: transports.ErrNotShareable},
		"opened for reading":   {fd: func(t *testing.T) int { return readOnlyFD(t, size) }, want: transports.ErrNotShareable},
		"larger than anything": {fd: func(t *testing.T) int { return tempMemfd(t, 1<<62+1, unix.F_SEAL_SHRINK) }, read: transports.ErrNotShareable, want: transports.ErrNotShareable},
	} {
		t.Run(name, func(t *testing.T) {
			fd := c.fd(t)
			d := fakeOwner(t, func(conn *net.UnixConn) {
				if !welcome(conn) {
					return
				}
				q, _, err := receive(conn)
				if err == nil && q.typ == msgLookup {
					send(conn, &message{typ: msgRegion, seq: q.seq, id: 1, addr: addr, len: size, off: c.off, flags: byte(transports.ReadWrite)}, fd)
				}
			})
			tr := newTestTransport(t, quick)
			n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
			local := n.Register(t, size, transports.ReadWrite)
			p := n.DialDescriptor(t, d)
			for write, want := range map[bool]error{true: c.want, false: c.read} {
				err := transporttest.Move(t, p, transports.Op{Write: write, Local: local, Remote: addr, Len: size})
				if !errors.Is(err, want) {
					t.Errorf("write=%v: %v, want %v", write, err, want)
				}
			}
			if mapped := testutil.ToFloat64(tr.m.mapped) > 0; mapped != (c.read == nil) {
				t.Errorf("%v bytes are mapped", testutil.ToFloat64(tr.m.mapped))
			}
		})
	}
}

func tempFile(t *testing.T, size int64) int {
	fd, err := unix.Open(t.TempDir(), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	return fd
}

func pipe(t *testing.T) int {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	return p[0]
}

func readOnlyFD(t *testing.T, size int64) int {
	fd, err := reopenReadOnly(tempMemfd(t, size, unix.F_SEAL_SHRINK))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// TestMappedMemoryShrinks: if the impossible happens to memory that is mapped, or local memory is revoked, an op
// fails instead of the process.
func TestMappedMemoryShrinks(t *testing.T) {
	fd := tempMemfd(t, 8192, 0)
	data, err := unix.Mmap(fd, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(data)
	if err := unix.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	tr := newTestTransport(t, nil)
	l := &link{t: tr, regs: []*remote{{span: span{4096, 12288}, access: transports.ReadWrite, data: data, m: &mapping{key: mapKey{writable: true}}}}}
	for _, write := range []bool{true, false} {
		if err := l.move(make([]byte, 100), 4096, span{4096, 4196}, write, nil); !errors.Is(err, transports.ErrInterrupted) {
			t.Errorf("write=%v: %v, want ErrInterrupted", write, err)
		}
	}
	sealed := tempMemfd(t, 8192, unix.F_SEAL_SHRINK)
	if err := unix.Ftruncate(sealed, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("a sealed memfd was shrunk: %v", err)
	}
	f := transporttest.NewFabric()
	b, a := transporttest.StartNode(t, f, newTestTransport(t, nil)), transporttest.StartNode(t, f, newTestTransport(t, nil))
	far, near := b.Register(t, 4<<20, transports.ReadWrite), a.Register(t, 4<<20, transports.ReadWrite)
	bad := a.Register(t, 4<<20, transports.ReadWrite)
	bad.Revoke(t)
	p := a.Dial(t, b)
	for _, n := range []uint64{4096, 4 << 20} {
		if err := transporttest.Move(t, p, transports.Op{Write: true, Local: bad, Remote: far.Addr(), Len: n}); !errors.Is(err, transports.ErrInterrupted) {
			t.Errorf("%d bytes from revoked memory: %v, want ErrInterrupted", n, err)
		}
		if err := transporttest.Move(t, p, transports.Op{Write: true, Local: near, Remote: far.Addr(), Len: n}); err != nil {
			t.Errorf("%d bytes afterwards: %v", n, err)
		}
	}
}

// TestHostileHandshake: no path without proof.
func TestHostileHandshake(t *testing.T) {
	offer := func(c *net.UnixConn, fd int) {
		if _, _, err := receive(c); err == nil {
			send(c, &message{typ: msgOffer, version: 1}, fd)
		}
	}
	for name, serve := range map[string]func(t *testing.T, c *net.UnixConn){
		"silent":     func(*testing.T, *net.UnixConn) {},
		"hangs up":   func(_ *testing.T, c *net.UnixConn) { c.CloseWrite() },
		"refuses":    func(_ *testing.T, c *net.UnixConn) { send(c, &message{typ: msgRefuse, text: "no"}, -1) },
		"no memory":  func(_ *testing.T, c *net.UnixConn) { send(c, &message{typ: msgOffer, version: 1}, -1) },
		"nonsense":   func(_ *testing.T, c *net.UnixConn) { c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) },
		"too long":   func(_ *testing.T, c *net.UnixConn) { c.Write(bytes.Repeat([]byte{msgOffer}, 5000)) },
		"a file":     func(t *testing.T, c *net.UnixConn) { offer(c, tempFile(t, controlLen)) },
		"tiny memfd": func(t *testing.T, c *net.UnixConn) { offer(c, tempMemfd(t, 10, unix.F_SEAL_SHRINK)) },
		"can shrink": func(t *testing.T, c *net.UnixConn) { offer(c, tempMemfd(t, controlLen, 0)) },
		"other memory than it looks at": func(t *testing.T, c *net.UnixConn) {
			offer(c, tempMemfd(t, controlLen, unix.F_SEAL_SHRINK))
			if _, _, err := receive(c); err == nil {
				send(c, &message{typ: msgWelcome, token: [tokenLen]byte{1}}, -1)
			}
		},
		"old version": func(t *testing.T, c *net.UnixConn) {
			if _, _, err := receive(c); err == nil {
				send(c, &message{typ: msgOffer}, tempMemfd(t, controlLen, unix.F_SEAL_SHRINK))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := fakeOwner(t, func(c *net.UnixConn) { serve(t, c) })
			n := transporttest.StartNode(t, transporttest.NewFabric(), newTestTransport(t, quick))
			start := time.Now()
			p, err := n.T.Dial(context.Background(), d)
			if !errors.Is(err, transports.ErrUnreachable) {
				t.Fatalf("dial: %v, %v, want ErrUnreachable", p, err)
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// TestHostileInitiator: an owner gives nothing away before the proof, and drops who breaks the protocol.
func TestHostileInitiator(t *testing.T) {
	tr := newTestTransport(t, quick)
	n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
	n.Register(t, 4096, transports.ReadWrite)
	hello := &message{typ: msgHello, version: 1, text: n.Identity().Instance}
	for _, c := range []struct {
		name, reason string
		talk         func(c *net.UnixConn)
	}{
		{"another engine", "instance", func(c *net.UnixConn) { send(c, &message{typ: msgHello, version: 1, text: "x"}, -1) }},
		{"old version", "version", func(c *net.UnixConn) { send(c, &message{typ: msgHello}, -1) }},
		{"lookup without proof", "version", func(c *net.UnixConn) { send(c, &message{typ: msgLookup, addr: 1, len: 1}, -1) }},
		{"nonsense", "protocol", func(c *net.UnixConn) { c.Write([]byte("hello?")) }},
		{"says nothing", "protocol", func(*net.UnixConn) {}},
		{"guessed token", "token", func(c *net.UnixConn) {
			send(c, hello, -1)
			if _, fd, err := receive(c); err == nil {
				unix.Close(fd)
				send(c, &message{typ: msgProof}, -1)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := testutil.ToFloat64(tr.m.refused.WithLabelValues(c.reason))
			conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: tr.owner.name()})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(10 * time.Second))
			c.talk(conn)
			for {
				m, fd, err := receive(conn)
				if err != nil {
					break // hung up
				}
				if fd >= 0 {
					unix.Close(fd)
				}
				if m.typ == msgWelcome || m.typ == msgRegion {
					t.Fatalf("it was answered: %+v", m)
				}
			}
			eventually(t, func() error {
				if got := testutil.ToFloat64(tr.m.refused.WithLabelValues(c.reason)); got != before+1 {
					return fmt.Errorf("refused_total{%s} went from %v to %v", c.reason, before, got)
				}
				return nil
			})
		})
	}
}

func eventually(t testing.TB, cond func() error) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// TestUnexpectedMessages: an owner that breaks the protocol loses its initiator, whose ops end.
func TestUnexpectedMessages(t *testing.T) {
	fd := tempMemfd(t, 8192, unix.F_SEAL_SHRINK)
	for name, answer := range map[string]func(q message) (*message, int){
		"another seq": func(q message) (*message, int) {
			return &message{typ: msgNone, seq: q.seq + 1, addr: q.addr, len: q.len}, -1
		},
		"another range": func(q message) (*message, int) {
			return &message{typ: msgNone, seq: q.seq, addr: q.addr + 1, len: q.len}, -1
		},
		"smaller region": func(q message) (*message, int) {
			return &message{typ: msgRegion, seq: q.seq, addr: q.addr, len: q.len - 1}, fd
		},
		"a lookup": func(q message) (*message, int) { return &q, -1 },
		"never":    func(message) (*message, int) { return nil, -1 },
	} {
		t.Run(name, func(t *testing.T) {
			d := fakeOwner(t, func(c *net.UnixConn) {
				if !welcome(c) {
					return
				}
				if q, _, err := receive(c); err == nil {
					if m, fd := answer(q); m != nil {
						send(c, m, fd)
					}
				}
			})
			n := transporttest.StartNode(t, transporttest.NewFabric(), newTestTransport(t, quick))
			local := n.Register(t, 4096, transports.ReadWrite)
			p := n.DialDescriptor(t, d)
			if err := transporttest.Move(t, p, transports.Op{Write: true, Local: local, Remote: 4096, Len: 4096}); !errors.Is(err, transports.ErrUnreachable) {
				t.Errorf("got %v, want ErrUnreachable", err)
			}
		})
	}
}

// asUser runs f on a thread with another effective user id.
func asUser(t *testing.T, uid int, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can act as another user; the check itself is tested with a wrong expectation")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
			t.Errorf("setresuid: %v", e)
			return
		}
		f()
	}()
	<-done
}

// TestSquattedSocket: a socket under the published name that belongs to another user is not talked to.
func TestSquattedSocket(t *testing.T) {
	t.Run("another user's", func(t *testing.T) {
		var ln *net.UnixListener
		asUser(t, 65534, func() {
			var err error
			if ln, err = listen(""); err != nil {
				t.Error(err)
			}
		})
		if ln == nil {
			return
		}
		defer ln.Close()
		tr := newTestTransport(t, quick)
		n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
		if p, err := n.T.Dial(context.Background(), fakeDescriptor(ln.Addr().String())); !errors.Is(err, transports.ErrUnreachable) || !errors.Is(err, errForeignUser) {
			t.Errorf("dial: %v, %v", p, err)
		}
		if got := testutil.ToFloat64(tr.m.dialFailures.WithLabelValues("uid")); got != 1 {
			t.Errorf("connect_failures_total{uid} is %v", got)
		}
	})
	t.Run("by expectation", func(t *testing.T) {
		tr := newTestTransport(t, quick)
		tr.uid++
		n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
		d := fakeOwner(t, func(c *net.UnixConn) { welcome(c) })
		if p, err := n.T.Dial(context.Background(), d); !errors.Is(err, errForeignUser) {
			t.Errorf("dial: %v, %v", p, err)
		}
	})
	t.Run("another user calls", func(t *testing.T) {
		tr := newTestTransport(t, quick)
		n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
		asUser(t, 65534, func() {
			c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: tr.owner.name()})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(10 * time.Second))
			send(c, &message{typ: msgHello, version: 1, text: n.Identity().Instance}, -1)
			if m, fd, err := receive(c); err == nil && m.typ != msgRefuse || fd >= 0 {
				t.Errorf("it was let in: %+v, %v", m, err)
			}
		})
		eventually(t, func() error {
			if got := testutil.ToFloat64(tr.m.refused.WithLabelValues("uid")); got != 1 {
				return fmt.Errorf("refused_total{uid} is %v", got)
			}
			return nil
		})
	})
}
