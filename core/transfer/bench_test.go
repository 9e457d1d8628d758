package transfer_test

import (
	"fmt"
	"testing"

	"github.com/mooncake-agent/mooncake/core/transfer"
)

// BenchmarkTransfer moves blocks between two engines of this process over loopback tcp.
func BenchmarkTransfer(b *testing.B) {
	for _, c := range []struct {
		block, batch int
		write        bool
	}{{4 << 10, 1, false}, {4 << 10, 1, true}, {4 << 10, 32, false}, {4 << 10, 32, true}, {64 << 10, 32, false}, {1 << 20, 1, false}, {1 << 20, 32, true}} {
		op := "read"
		if c.write {
			op = "write"
		}
		b.Run(fmt.Sprintf("%s/%dKiB/x%d", op, c.block>>10, c.batch), func(b *testing.B) {
			ini, tgt := startEngine(b), startEngine(b)
			_, addr := register(b, tgt, c.block*c.batch)
			local, _ := register(b, ini, c.block*c.batch)
			s := open(b, ini, tgt.Name())
			reqs := make([]transfer.Request, c.batch)
			for i := range reqs {
				reqs[i] = transfer.Request{Write: c.write, Local: local[i*c.block : (i+1)*c.block], Segment: s, Remote: addr + uint64(i*c.block)}
			}
			b.SetBytes(int64(c.block * c.batch))
			b.ReportAllocs()
			for b.Loop() {
				if err := ini.Transfer(b.Context(), reqs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSubmit is the engine's own cost: the transport answers at once.
func BenchmarkSubmit(b *testing.B) {
	for _, n := range []int{1, 32, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := newFake()
			e := startEngine(b, func(o *transfer.Options) { o.Transports = f.named() })
			local, _ := register(b, e, 4096)
			s := open(b, e, f.target(b))
			reqs := make([]transfer.Request, n)
			for i := range reqs {
				reqs[i] = transfer.Request{Local: local, Segment: s, Remote: 8}
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := e.Transfer(b.Context(), reqs); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/request")
		})
	}
}
