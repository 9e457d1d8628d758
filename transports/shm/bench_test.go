package shm

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/guard"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

// BenchmarkTransfer moves blocks between two nodes. In turn with each block it copies the same number of bytes
// between the two mappings with one call of copy; "of-memcpy" is the ratio of the medians, which other load on the
// machine changes least.
func BenchmarkTransfer(b *testing.B) {
	const span = 256 << 20 // more than the caches hold
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		for _, write := range []bool{true, false} {
			b.Run(fmt.Sprintf("write=%v/%dKiB", write, size>>10), func(b *testing.B) {
				f := transporttest.NewFabric()
				server := transporttest.StartNode(b, f, newTestTransport(b, nil))
				client := transporttest.StartNode(b, f, newTestTransport(b, nil))
				remote := server.Register(b, span, transports.ReadWrite)
				local := client.Register(b, span, transports.ReadWrite)
				transporttest.Fill(remote.Bytes(), 1)
				transporttest.Fill(local.Bytes(), 2)
				p := client.Dial(b, server)
				done := make(chan error, 1)
				complete := func(_, _ uint64, err error) { done <- err }
				ops := make([]transports.Op, 1)
				move := func(i int) {
					off := uint64(i) * uint64(size) % span
					ops[0] = transports.Op{Write: write, Local: local, Offset: off, Remote: remote.Addr() + off, Len: uint64(size)}
					if err := p.Submit(context.Background(), ops, complete); err != nil {
						b.Fatal(err)
					}
					if err := <-done; err != nil {
						b.Fatal(err)
					}
				}
				to, from := remote.Bytes(), local.Bytes()
				if !write {
					to, from = from, to
				}
				memcpy := func(i int) {
					off := i * size % span
					if err := guard.Copy(to[off:off+size], from[off:off+size]); err != nil {
						b.Fatal(err)
					}
				}
				for i := range span / size { // maps the pages on both sides
					move(i)
				}
				moves, copies := make([]time.Duration, 0, 1<<20), make([]time.Duration, 0, 1<<20)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					start := time.Now()
					move(2 * i)
					took := time.Since(start)
					b.StopTimer()
					start = time.Now()
					memcpy(2*i + 1)
					if len(moves) < cap(moves) {
						moves, copies = append(moves, took), append(copies, time.Since(start))
					}
					b.StartTimer()
				}
				b.StopTimer()
				slices.Sort(moves)
				slices.Sort(copies)
				p50 := moves[len(moves)/2]
				b.ReportMetric(float64(p50)/1e3, "p50-µs")
				b.ReportMetric(float64(copies[len(copies)/2])/float64(p50), "of-memcpy")
			})
		}
	}
}

// BenchmarkBatch keeps a batch of small blocks in flight.
func BenchmarkBatch(b *testing.B) {
	const size, batch = 64 << 10, 32
	f := transporttest.NewFabric()
	server := transporttest.StartNode(b, f, newTestTransport(b, nil))
	client := transporttest.StartNode(b, f, newTestTransport(b, nil))
	remote := server.Register(b, size*batch, transports.ReadWrite)
	local := client.Register(b, size*batch, transports.ReadWrite)
	p := client.Dial(b, server)
	ops := make([]transports.Op, batch)
	for i := range ops {
		off := uint64(i * size)
		ops[i] = transports.Op{Write: true, Local: local, Offset: off, Remote: remote.Addr() + off, Len: size}
	}
	var left atomic.Int64
	done := make(chan struct{}, 1)
	complete := func(_, _ uint64, err error) {
		if err != nil {
			b.Error(err)
		}
		if left.Add(-1) == 0 {
			done <- struct{}{}
		}
	}
	b.SetBytes(size * batch)
	b.ReportAllocs()
	for b.Loop() {
		left.Store(batch)
		if err := p.Submit(context.Background(), ops, complete); err != nil {
			b.Fatal(err)
		}
		<-done
	}
}
