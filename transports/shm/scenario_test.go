package shm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

const (
	childEnv  = "MOONCAKE_SHM_TEST_CHILD"
	childSize = 64 << 20
)

// TestChild is the other process of the tests below.
func TestChild(t *testing.T) {
	doc := os.Getenv(childEnv)
	if doc == "" {
		t.Skip("this is the second process of other tests")
	}
	n := transporttest.StartNode(t, transporttest.NewFabric(), newTestTransport(t, nil))
	mem := n.Register(t, childSize, transports.ReadWrite)
	out, err := json.Marshal(n.Descriptor())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\n@%s\n", out)
	if doc != "owner" { // an initiator that writes until it is killed
		var d transports.Descriptor
		if err := json.Unmarshal([]byte(doc), &d); err != nil {
			t.Fatal(err)
		}
		p := n.DialDescriptor(t, &d)
		for i := 0; ; i++ {
			if err := transporttest.Move(t, p, transports.Op{Write: true, Local: mem, Remote: d.Buffers[0].Addr, Len: childSize, Cookie: uint64(i)}); err != nil {
				fmt.Printf("\n@%q\n", err.Error())
				break
			}
			if i == 0 {
				fmt.Printf("\n@%q\n", "wrote")
			}
		}
	}
	bufio.NewReader(os.Stdin).ReadByte() // until the parent has gone
}

// child is a running second process.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startChild(t *testing.T, role string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.timeout=120s")}
	c.cmd.Env = append(os.Environ(), childEnv+"="+role)
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		c.kill()
	})
	c.lines = bufio.NewScanner(out)
	c.lines.Buffer(nil, 1<<20)
	return c
}

func (c *child) kill() {
	c.cmd.Process.Signal(syscall.SIGKILL)
	c.cmd.Wait()
}

// next reads the child's next message.
func (c *child) next(v any) {
	c.t.Helper()
	for c.lines.Scan() {
		if l := c.lines.Text(); strings.HasPrefix(l, "@") {
			if err := json.Unmarshal([]byte(l[1:]), v); err != nil {
				c.t.Fatal(err)
			}
			return
		}
	}
	c.t.Fatal("the child has ended")
}

// TestOwnerDies: the owner's process is killed while its memory is read and written.
func TestOwnerDies(t *testing.T) {
	tr := newTestTransport(t, nil)
	n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
	local := n.Register(t, childSize, transports.ReadWrite)
	for round := range 3 {
		c := startChild(t, "owner")
		var d transports.Descriptor
		c.next(&d)
		p := n.DialDescriptor(t, &d)
		var moved atomic.Int64
		first := make(chan struct{}, 1)
		ended := make(chan error, 1)
		go func() {
			for i := 0; ; i++ {
				err := transporttest.Move(t, p, transports.Op{Write: i%2 == 0, Local: local, Remote: d.Buffers[0].Addr, Len: childSize, Cookie: uint64(i)})
				if err != nil {
					ended <- err
					return
				}
				if moved.Add(1) == 1 {
					first <- struct{}{}
				}
			}
		}()
		<-first
		c.kill()
		select {
		case err := <-ended:
			if !errors.Is(err, transports.ErrInterrupted) && !errors.Is(err, transports.ErrUnreachable) {
				t.Errorf("round %d: %v, want ErrInterrupted or ErrUnreachable", round, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the ops go on without their owner")
		}
		eventually(t, func() error {
			if got := testutil.ToFloat64(tr.m.mapped); got != 0 {
				return fmt.Errorf("%v bytes of a dead process are mapped", got)
			}
			return nil
		})
		if err := transporttest.Move(t, p, transports.Op{Local: local, Remote: d.Buffers[0].Addr, Len: 8}); !errors.Is(err, transports.ErrUnreachable) {
			t.Errorf("round %d, afterwards: %v, want ErrUnreachable", round, err)
		}
	}
}

// TestInitiatorDiesOrHangs: a region can be unregistered when its user was killed; while one is stopped it cannot, and
// that is said.
func TestInitiatorDiesOrHangs(t *testing.T) {
	for _, kill := range []bool{true, false} {
		t.Run(map[bool]string{true: "killed", false: "stopped"}[kill], func(t *testing.T) {
			n := transporttest.StartNode(t, transporttest.NewFabric(), newTestTransport(t, nil))
			r := n.Register(t, childSize, transports.ReadWrite)
			doc, err := json.Marshal(n.Descriptor())
			if err != nil {
				t.Fatal(err)
			}
			c := startChild(t, string(doc))
			var its transports.Descriptor
			var said string
			c.next(&its)
			if c.next(&said); said != "wrote" {
				t.Fatal(said)
			}
			if kill {
				c.kill()
				n.Unregister(t, r)
				return
			}
			testenv.Freeze(t, c.cmd.Process.Pid)
			n.Host.Remove(t, r)
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			if err := n.Registration(r).Close(ctx); !errors.Is(err, transports.ErrUnquiet) || !strings.Contains(err.Error(), fmt.Sprint(c.cmd.Process.Pid)) {
				t.Errorf("while the peer is stopped: %v, want ErrUnquiet and its process id", err)
			}
			if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			ctx, cancel = context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := n.Registration(r).Close(ctx); err != nil {
				t.Errorf("when it runs again: %v", err)
			}
			transporttest.Set(r.Bytes(), 0x55)
			if c.next(&said); !strings.Contains(said, "not registered") && !strings.Contains(said, "unregistered") {
				t.Errorf("the peer's op ended with %q", said)
			}
			transporttest.CheckAll(t, "memory that was unregistered", r.Bytes(), 0x55)
		})
	}
}

// TestStoppedInitiatorAtClose: the end of the transport names a peer that does not let go, within drain_timeout.
func TestStoppedInitiatorAtClose(t *testing.T) {
	tr := newTestTransport(t, func(c *Config) { c.DrainTimeout = 200 * time.Millisecond })
	f := transporttest.NewFabric()
	h := f.NewHost()
	if err := tr.Start(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	r := transporttest.NewRegion(t, childSize, transports.ReadWrite)
	if _, err := tr.Register(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	h.Add(r)
	d := &transports.Descriptor{Buffers: h.Buffers()}
	tr.Describe(d)
	doc, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	c := startChild(t, string(doc))
	var its transports.Descriptor
	var said string
	c.next(&its)
	c.next(&said)
	testenv.Freeze(t, c.cmd.Process.Pid)
	if err := tr.Close(); !errors.Is(err, transports.ErrUnquiet) {
		t.Errorf("close: %v, want ErrUnquiet", err)
	}
	c.kill()
}

// TestReadOnly: neither side of a read-only pair maps for writing, and the owner's descriptor does not allow it.
func TestReadOnly(t *testing.T) {
	for name, c := range map[string]struct{ owner, initiator string }{
		"owner": {readOnly, readWrite}, "initiator": {readWrite, readOnly}, "both": {readOnly, readOnly},
	} {
		t.Run(name, func(t *testing.T) {
			f := transporttest.NewFabric()
			b := transporttest.StartNode(t, f, newTestTransport(t, func(cfg *Config) { cfg.Mode = c.owner }))
			a := transporttest.StartNode(t, f, newTestTransport(t, func(cfg *Config) { cfg.Mode = c.initiator }))
			far, near := b.Register(t, 4096, transports.ReadWrite), a.Register(t, 4096, transports.ReadWrite)
			transporttest.Set(far.Bytes(), 7)
			p := a.Dial(t, b)
			if err := transporttest.Move(t, p, transports.Op{Local: near, Remote: far.Addr(), Len: 4096}); err != nil {
				t.Fatalf("read: %v", err)
			}
			transporttest.CheckAll(t, "what was read", near.Bytes(), 7)
			transporttest.Set(near.Bytes(), 9)
			if err := transporttest.Move(t, p, transports.Op{Write: true, Local: near, Remote: far.Addr(), Len: 4096}); !errors.Is(err, transports.ErrNotShareable) {
				t.Errorf("write: %v, want ErrNotShareable", err)
			}
			transporttest.CheckAll(t, "the owner's memory", far.Bytes(), 7)
		})
	}
	fd := readOnlyFD(t, 4096)
	if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EACCES) {
		t.Errorf("a read-only descriptor was mapped for writing: %v", err)
	}
}

// noFD hides a region's descriptor.
type noFD struct{ *transporttest.Region }

func (noFD) FD() (int, int64, bool) { return -1, 0, false }

// TestNotShareable: memory without a descriptor is refused for that path only, and not asked for at each op.
func TestNotShareable(t *testing.T) {
	f := transporttest.NewFabric()
	tb := newTestTransport(t, nil)
	b, a := transporttest.StartNode(t, f, tb), transporttest.StartNode(t, f, newTestTransport(t, nil))
	near := a.Register(t, 8192, transports.ReadWrite)
	plain := noFD{transporttest.NewRegion(t, 8192, transports.ReadWrite)}
	if _, err := tb.Register(t.Context(), plain); !errors.Is(err, transports.ErrNotShareable) {
		t.Fatalf("register: %v, want ErrNotShareable", err)
	}
	b.Host.Add(plain)
	defer b.Host.Remove(t, plain)
	p := a.Dial(t, b)
	for off := uint64(0); off < 8192; off += 1024 {
		if err := transporttest.Move(t, p, transports.Op{Local: near, Remote: plain.Addr() + off, Len: 1024}); !errors.Is(err, transports.ErrNotShareable) {
			t.Fatalf("at %d: %v, want ErrNotShareable", off, err)
		}
	}
	if err := transporttest.Move(t, p, transports.Op{Local: near, Remote: plain.Addr() + 8191, Len: 2}); !errors.Is(err, transports.ErrRejected) {
		t.Errorf("past the end: %v, want ErrRejected", err)
	}
	l := p.(*Peer).link
	if l.use.RLock(); len(l.shunned) != 1 || l.shunned[0].span != (span{plain.Addr(), plain.Addr() + 8192}) {
		t.Errorf("remembered: %+v, want the whole region once", l.shunned)
	}
	l.use.RUnlock()
	unsealed := unsealedRegion{plain.Region, tempMemfd(t, 8192, 0)}
	if _, err := tb.Register(t.Context(), unsealed); !errors.Is(err, transports.ErrNotShareable) {
		t.Errorf("register memory that can shrink: %v, want ErrNotShareable", err)
	}
}

type unsealedRegion struct {
	*transporttest.Region
	fd int
}

func (r unsealedRegion) FD() (int, int64, bool) { return r.fd, 0, true }

// TestReconnect: a lost connection is made again, and Submit does not wait for that.
func TestReconnect(t *testing.T) {
	f := transporttest.NewFabric()
	tb := newTestTransport(t, nil)
	b, a := transporttest.StartNode(t, f, tb), transporttest.StartNode(t, f, newTestTransport(t, quick))
	far, near := b.Register(t, 4096, transports.ReadWrite), a.Register(t, 4096, transports.ReadWrite)
	p := a.Dial(t, b)
	op := transports.Op{Write: true, Local: near, Remote: far.Addr(), Len: 4096}
	for range 3 {
		for _, s := range tb.served() {
			s.shut()
		}
		eventually(t, func() error {
			if n := len(tb.served()); n != 0 {
				return fmt.Errorf("%d peers left", n)
			}
			return nil
		})
		lost := 0
		eventually(t, func() error {
			err := transporttest.Move(t, p, op)
			if err != nil {
				lost++
				if !errors.Is(err, transports.ErrUnreachable) {
					t.Fatalf("while it is lost: %v, want ErrUnreachable", err)
				}
			}
			return err
		})
		if lost == 0 {
			t.Error("the connection was not lost")
		}
	}
}

// TestManyRegions: regions of one memfd share a mapping, which goes with the last of them.
func TestManyRegions(t *testing.T) {
	const n, size = 200, 4096
	f := transporttest.NewFabric()
	b := transporttest.StartNode(t, f, newTestTransport(t, nil))
	ta := newTestTransport(t, nil)
	a := transporttest.StartNode(t, f, ta)
	whole := transporttest.NewRegion(t, n*size, transports.ReadWrite)
	near := a.Register(t, n*size, transports.ReadWrite)
	transporttest.Fill(near.Bytes(), 3)
	var parts []slice
	for i := range n {
		parts = append(parts, slice{whole, i * size, size})
		b.Add(t, parts[i])
	}
	p := a.Dial(t, b)
	var ops []transports.Op
	for i, r := range parts {
		ops = append(ops, transports.Op{Write: true, Local: near, Offset: uint64(i * size), Remote: r.Addr(), Len: size, Cookie: uint64(i)})
	}
	if err := transporttest.Move(t, p, ops...); err != nil {
		t.Fatal(err)
	}
	transporttest.CheckFill(t, "regions", whole.Bytes(), 3)
	if got := testutil.ToFloat64(ta.m.mapped); got != n*size {
		t.Errorf("%v bytes are mapped, want %d once", got, n*size)
	}
	for _, r := range parts {
		b.Unregister(t, r)
	}
	if got := testutil.ToFloat64(ta.m.mapped); got != 0 {
		t.Errorf("%v bytes are mapped after the last region has gone", got)
	}
}

// slice is a piece of a region.
type slice struct {
	*transporttest.Region
	off, n int
}

func (s slice) Addr() uint64           { return s.Region.Addr() + uint64(s.off) }
func (s slice) Len() uint64            { return uint64(s.n) }
func (s slice) Bytes() []byte          { return s.Region.Bytes()[s.off : s.off+s.n] }
func (s slice) FD() (int, int64, bool) { fd, _, ok := s.Region.FD(); return fd, int64(s.off), ok }

// TestReach: what a descriptor must say before a connection is tried.
func TestReach(t *testing.T) {
	tr := newTestTransport(t, nil)
	n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
	for name, c := range map[string]struct {
		change func(a map[string]string)
		want   string
	}{
		"as published":                    {func(map[string]string) {}, ""},
		"another host":                    {func(a map[string]string) { a[attrHost] = "other" }, "another host"},
		"no host":                         {func(a map[string]string) { delete(a, attrHost) }, "another host"},
		"no socket":                       {func(a map[string]string) { delete(a, attrSocket) }, "no socket"},
		"another network":                 {func(a map[string]string) { a[attrNetNS] = "1" }, "network namespace"},
		"a path, network does not matter": {func(a map[string]string) { a[attrSocket] = "/run/x.sock"; delete(a, attrNetNS) }, ""},
	} {
		d := n.Descriptor()
		c.change(d.Agent.Paths[0].Attr)
		err := tr.Reach(d)
		if (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, transports.ErrUnreachable) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	d := n.Descriptor()
	d.Agent.Instance = "restarted"
	if p, err := tr.Dial(t.Context(), d); !errors.Is(err, transports.ErrUnreachable) || !strings.Contains(err.Error(), "not here any more") {
		t.Errorf("dial of another instance: %v, %v", p, err)
	}
}

// TestMaxPeers: beyond the limit peers are refused with the reason, and take another path.
func TestMaxPeers(t *testing.T) {
	f := transporttest.NewFabric()
	b := transporttest.StartNode(t, f, newTestTransport(t, func(c *Config) { c.MaxPeers = 1 }))
	a := transporttest.StartNode(t, f, newTestTransport(t, nil))
	p := a.Dial(t, b)
	if q, err := a.T.Dial(t.Context(), b.Descriptor()); !errors.Is(err, transports.ErrUnreachable) {
		t.Errorf("the second peer: %v, %v", q, err)
	}
	p.Close()
	eventually(t, func() error {
		q, err := a.T.Dial(t.Context(), b.Descriptor())
		if err == nil {
			err = q.Close()
		}
		return err
	})
}

func TestSocketDir(t *testing.T) {
	open := t.TempDir() + "/open"
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := newTestTransport(t, func(c *Config) { c.SocketDir = open }).Start(t.Context(), transporttest.NewFabric().NewHost()); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("a folder that others may enter: %v", err)
	}
	dir := t.TempDir() + "/new"
	tr := newTestTransport(t, func(c *Config) { c.SocketDir = dir })
	if err := tr.Start(t.Context(), transporttest.NewFabric().NewHost()); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("folder: %v, %v", st, err)
	}
	if _, err := net.ResolveUnixAddr("unixpacket", tr.owner.name()); err != nil || !strings.HasPrefix(tr.owner.name(), dir) {
		t.Errorf("socket %q: %v", tr.owner.name(), err)
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	if l, err := os.ReadDir(dir); err != nil || len(l) != 0 {
		t.Errorf("left behind: %v, %v", l, err)
	}
}

func TestConfig(t *testing.T) {
	c := defaultConfig()
	if err := c.Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	bad := Config{Mode: "rw", SocketDir: strings.Repeat("x", 100), Copiers: -1}
	err := bad.Validate()
	for _, key := range []string{"mode", "socket_dir", "connect_timeout", "answer_timeout", "drain_timeout", "reconnect_pause", "copiers", "max_peers"} {
		if err == nil || !strings.Contains(err.Error(), key+": ") {
			t.Errorf("%s is not in %v", key, err)
		}
	}
}
