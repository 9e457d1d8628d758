package tcp

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

func newTestTransport(t testing.TB, change func(*Config)) *Transport {
	t.Helper()
	cfg := defaultConfig()
	if change != nil {
		change(&cfg)
	}
	tr, err := newTransport(module.Env{Name: "tcp", Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// counter counts completions of batches down without allocating.
type counter struct {
	left atomic.Int64
	errs atomic.Int64
	done chan struct{}
}

func (c *counter) complete(_, _ uint64, err error) {
	if err != nil {
		c.errs.Add(1)
	}
	if c.left.Add(-1) == 0 {
		c.done <- struct{}{}
	}
}

func BenchmarkTransfer(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		for _, batch := range []int{1, 32} {
			for _, write := range []bool{true, false} {
				b.Run(fmt.Sprintf("%s/%dKiB/batch=%d", opName(write), size>>10, batch), func(b *testing.B) {
					f := transporttest.NewFabric()
					server := transporttest.StartNode(b, f, newTestTransport(b, nil))
					client := transporttest.StartNode(b, f, newTestTransport(b, nil))
					span := min(size*batch, 64<<20)
					remote := server.Register(b, span, transports.ReadWrite)
					local := client.Register(b, span, transports.ReadWrite)
					transporttest.Fill(remote.Bytes(), 1)
					transporttest.Fill(local.Bytes(), 2)
					p := client.Dial(b, server)
					opList := make([]transports.Op, batch)
					for i := range opList {
						off := uint64(i*size) % uint64(span)
						opList[i] = transports.Op{Write: write, Local: local, Offset: off, Remote: remote.Addr() + off, Len: uint64(size), Cookie: uint64(i)}
					}
					c := &counter{done: make(chan struct{}, 1)}
					done := c.complete
					b.SetBytes(int64(size * batch))
					b.ReportAllocs()
					cpu := cpuTime()
					for b.Loop() {
						c.left.Store(int64(batch))
						if err := p.Submit(context.Background(), opList, done); err != nil {
							b.Fatal(err)
						}
						<-c.done
					}
					reportCPU(b, cpu, size*batch)
					if n := c.errs.Load(); n > 0 {
						b.Fatalf("%d ops failed", n)
					}
				})
			}
		}
	}
}

// BenchmarkCancellable is a small write under a context that can end.
func BenchmarkCancellable(b *testing.B) {
	_, remote, cl := pairOf(b, 4096, nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	opList := []transports.Op{cl.op(true, remote.Addr(), 4096, 1)}
	c := &counter{done: make(chan struct{}, 1)}
	done := c.complete
	b.ReportAllocs()
	for b.Loop() {
		c.left.Store(1)
		if err := cl.peer.Submit(ctx, opList, done); err != nil {
			b.Fatal(err)
		}
		<-c.done
	}
}

// cpuTime is what the process has used: on a busy machine a better measure than the clock.
func cpuTime() time.Duration {
	var ru syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func reportCPU(b *testing.B, before time.Duration, bytesPerOp int) {
	b.ReportMetric((cpuTime()-before).Seconds()*1e9/float64(b.N)/float64(bytesPerOp), "cpu_s/GB")
}

// BenchmarkSocket is the yardstick: blocks of 1 MiB streamed one way through a plain socket, out of and
// into a working set of the given size.
func BenchmarkSocket(b *testing.B) {
	for _, span := range []int{1 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("1024KiB/span=%dMiB", span>>20), func(b *testing.B) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer ln.Close()
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				for buf, off := make([]byte, span), 0; ; off = (off + 1<<20) % span {
					if _, err := io.ReadFull(c, buf[off:off+1<<20]); err != nil {
						return
					}
				}
			})
			c, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			mem, off := make([]byte, span), 0
			b.SetBytes(1 << 20)
			b.ReportAllocs()
			cpu := cpuTime()
			for b.Loop() {
				if _, err := c.Write(mem[off : off+1<<20]); err != nil {
					b.Fatal(err)
				}
				off = (off + 1<<20) % span
			}
			reportCPU(b, cpu, 1<<20)
		})
	}
}
