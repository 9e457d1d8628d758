package faults

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/transports"

	_ "github.com/mooncake-agent/mooncake/metadata/memory"
)

// S5: a peer whose host is gone, whether at the handshake or at the data port, costs its own
// transfers a connect deadline and others nothing.
func TestPeerIsGone(t *testing.T) {
	backend, err := metadata.Kind.Build(t.Context(), "memory", module.Env{}, module.NoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { backend.Close() }) // after the engine
	put := func(key, value string) {
		if err := backend.Put(t.Context(), key, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	v := startVictim(t, nil)
	put("mooncake/ram/healthy", fmt.Sprintf(`{"name":"healthy","protocol":"tcp","tcp_data_host":"127.0.0.1","tcp_data_port":%d,"tcp_proto_version":2,"buffers":[{"name":"healthy","addr":%d,"length":%d}]}`+"\n",
		v.desc.TCPDataPort, v.base(), v.size()))
	host, port, err := net.SplitHostPort(testenv.Blackhole(t))
	if err != nil {
		t.Fatal(err)
	}
	put("mooncake/ram/gone", fmt.Sprintf(`{"name":"gone","protocol":"tcp","tcp_data_host":%q,"tcp_data_port":%s,"tcp_proto_version":2,"buffers":[{"name":"gone","addr":4096,"length":65536}]}`+"\n", host, port))
	put("mooncake/rpc_meta/gone", fmt.Sprintf(`{"ip_or_host_name":%q,"rpc_port":%s}`+"\n", host, port))

	e := startEngine(t, backend)
	local := memory(t, 1<<20)
	gone, err := e.Open(t.Context(), "gone")
	if err != nil {
		t.Fatal(err)
	}
	healthy, err := e.Open(t.Context(), "healthy")
	if err != nil {
		t.Fatal(err)
	}
	var reqs []transfer.Request
	for range 100 {
		reqs = append(reqs, transfer.Request{Write: true, Local: local[:100], Segment: gone, Remote: 4096})
	}
	begin := time.Now()
	b, err := e.Submit(t.Context(), reqs)
	if err != nil {
		t.Fatal(err)
	}
	probed := make(chan error, 1)
	go func() { probed <- e.Probe(t.Context(), "gone") }()

	worst, n := time.Duration(0), 0
	for done := false; !done; n++ {
		one := time.Now()
		if err := e.Write(t.Context(), healthy, local[4096:8192], v.base()); err != nil {
			t.Fatalf("transfer with the healthy peer: %v", err)
		}
		worst = max(worst, time.Since(one))
		select {
		case <-b.Done():
			done = true
		default:
		}
	}
	if worst > impatient || n < 100 {
		t.Errorf("%d transfers with the healthy peer meanwhile, the slowest took %v", n, worst)
	}
	if err := b.Err(); !errors.Is(err, transports.ErrUnreachable) {
		t.Errorf("transfer: %v, want ErrUnreachable", err)
	}
	if took := time.Since(begin); took > 6*impatient {
		t.Errorf("transfers took %v to fail", took)
	}
	if err := <-probed; !errors.Is(err, handshake.ErrConnect) {
		t.Errorf("probe: %v, want ErrConnect", err)
	}
}

// S6: a peer that is stopped in the middle of a read and goes on later. The read ends in time with a
// final state, and then no late byte lands in the memory, which is in other use by now.
func TestStoppedPeerWritesNothingLate(t *testing.T) {
	v := startVictim(t, testenv.Config{"global_segment_size": "64MB"})
	e := startEngine(t, nil)
	local := memory(t, 64<<20)
	s, err := e.Open(t.Context(), v.Segment)
	if err != nil {
		t.Fatal(err)
	}
	const n = 8 << 20
	reqs := make([]transfer.Request, 200)
	for i := range reqs {
		off := i % 8 * n
		reqs[i] = transfer.Request{Local: local[off : off+n], Segment: s, Remote: v.base() + uint64(off)}
	}
	b, err := e.Submit(t.Context(), reqs)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, soon, testenv.True("first read done", func() bool {
		for i := range reqs {
			if b.Status(i).State == transfer.Completed {
				return true
			}
		}
		return false
	}))
	v.Signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := b.Wait(ctx); !errors.Is(err, transports.ErrTimeout) {
		t.Errorf("got %v, want ErrTimeout", err)
	}
	for i := range reqs {
		if st := b.Status(i); st.State == transfer.Waiting {
			t.Errorf("request %d has no final state", i)
		}
	}
	if err := b.Quiet(ctx); err != nil {
		t.Fatal(err)
	}
	marker := pattern("reused", len(local))
	copy(local, marker)
	v.Signal(syscall.SIGCONT)
	testenv.Eventually(t, soon, v.tryServe)
	own := make([]byte, 4096)
	testenv.Eventually(t, soon, func() error { return e.Read(t.Context(), s, own, v.base()) })
	if !bytes.Equal(local, marker) {
		t.Error("memory that was in other use changed")
	}
}

// A route swallows everything in the middle of a transfer, in namespaces of the test's own. The
// engine gives up after its progress deadline and finds its peer again when the route is back.
func TestRouteIsSwallowed(t *testing.T) {
	ns := testenv.NetNS(t)
	path := testenv.WriteConfig(t, testenv.Config{"local_hostname": ns.B.Addr, "bind_address": ns.B.Addr})
	node := testenv.NodeCommand(t, path)
	inB := ns.B.Command(node.Args...)
	inB.Env = node.Env
	n := testenv.StartNodeCmd(t, inB, path)

	inA := ns.A.Command(os.Args[0])
	inA.Env = append(testenv.CleanEnv(), helperVar+"=writer", "WRITER_HOST="+ns.A.Addr, "WRITER_TARGET="+n.Segment)
	w := testenv.StartCmd(t, inA)
	ask := func(command string) string {
		t.Helper()
		w.Send("%s", command)
		return w.Line(soon)
	}
	if got := ask("hammer"); got != "ok" {
		t.Fatalf("first write: %s", got)
	}
	ns.Blackhole()
	if got := w.Line(soon); got != "no progress" {
		t.Errorf("in the middle of a write: %s", got)
	}
	if got := ask("once"); got != "unreachable" {
		t.Errorf("while the route is swallowed: %s", got)
	}
	ns.Heal()
	testenv.Eventually(t, soon, func() error {
		if got := ask("once"); got != "ok" {
			return errors.New(got)
		}
		return nil
	})
	w.Stop(soon)
	n.Stop(soon, syscall.SIGTERM)
}

// writer is the helper of TestRouteIsSwallowed. It writes once, or ("hammer") until that fails, and
// says how it went: "ok" after the first success, and the reason of a failure.
func writer() error {
	ctx := context.Background()
	e, err := newEngine(ctx, os.Getenv("WRITER_HOST"), nil)
	if err != nil {
		return err
	}
	defer e.Close(ctx)
	local, err := mapMemory(4 << 20)
	if err != nil {
		return err
	}
	s, err := e.Open(ctx, os.Getenv("WRITER_TARGET"))
	if err != nil {
		return err
	}
	addr := s.Descriptor().Buffers[0].Addr
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		err := e.Write(ctx, s, local, addr)
		if err == nil {
			fmt.Println("ok")
			if in.Text() == "once" {
				continue
			}
			for err == nil {
				err = e.Write(ctx, s, local, addr)
			}
		}
		switch {
		case errors.Is(err, transports.ErrTimeout):
			fmt.Println("no progress")
		case errors.Is(err, transports.ErrUnreachable):
			fmt.Println("unreachable")
		default:
			fmt.Println(err)
		}
	}
	return nil
}
