package shm

import (
	"fmt"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

// BenchmarkRegions moves 4 KiB to regions in turn, with so many of them registered; "first-µs" is what the first op to a
// region costs, which asks its owner.
func BenchmarkRegions(b *testing.B) {
	for _, n := range []int{1, 100, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := transporttest.NewFabric()
			server := transporttest.StartNode(b, f, newTestTransport(b, nil))
			client := transporttest.StartNode(b, f, newTestTransport(b, nil))
			whole := transporttest.NewRegion(b, n*4096, transports.ReadWrite)
			local := client.Register(b, 4096, transports.ReadWrite)
			for i := range n {
				server.Add(b, slice{whole, i * 4096, 4096})
			}
			p := client.Dial(b, server)
			move := func(i int) {
				if err := transporttest.Move(b, p, transports.Op{Write: true, Local: local, Remote: whole.Addr() + uint64(i%n)*4096, Len: 4096}); err != nil {
					b.Fatal(err)
				}
			}
			start := time.Now()
			for i := range n {
				move(i)
			}
			first := time.Since(start)
			b.ResetTimer()
			for i := range b.N {
				move(i * 7919)
			}
			b.StopTimer()
			b.ReportMetric(float64(first.Microseconds())/float64(n), "first-µs")
		})
	}
}
