package transport

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/plugins/examples/external-transport/mover"
	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

const benchRegion = 64 << 20

// pair is an initiator with a peer and memory on both sides.
type pair struct {
	a             *transporttest.Node
	peer          transports.Peer
	local, remote *transporttest.Region
	ended         chan error
}

func newPair(b testing.TB, build func() transports.Transport) *pair {
	f := transporttest.NewFabric()
	to := transporttest.StartNode(b, f, build())
	p := &pair{a: transporttest.StartNode(b, f, build()), ended: make(chan error, 1024)}
	p.remote, p.local = to.Register(b, benchRegion, transports.ReadWrite), p.a.Register(b, benchRegion, transports.ReadWrite)
	transporttest.Fill(p.remote.Bytes(), 1)
	transporttest.Fill(p.local.Bytes(), 2)
	p.peer = p.a.Dial(b, to)
	return p
}

func inProcess(b testing.TB) *pair {
	return newPair(b, func() transports.Transport {
		t, err := mover.New(mover.DefaultConfig())
		if err != nil {
			b.Fatal(err)
		}
		return t
	})
}

func outOfProcess(b testing.TB) *pair {
	return newPair(b, func() transports.Transport { return outside(b, section(b, moverProgram, nil)) })
}

// move moves n ranges of size bytes, of which deep are in flight.
func (p *pair) move(b testing.TB, n, deep, size int, write bool) {
	done := func(_, _ uint64, err error) { p.ended <- err }
	slots := benchRegion / size
	for begun, ended := 0, 0; ended < n; {
		if begun < n && begun-ended < deep {
			off := uint64(begun % slots * size)
			op := transports.Op{Write: write, Local: p.local, Offset: off, Remote: p.remote.Addr() + off, Len: uint64(size), Cookie: uint64(begun)}
			if err := p.peer.Submit(context.Background(), []transports.Op{op}, done); err != nil {
				b.Fatal(err)
			}
			begun++
			continue
		}
		if err := <-p.ended; err != nil {
			b.Fatal(err)
		}
		ended++
	}
}

// BenchmarkMove moves through the plugin what it also moves in process, in turns, and reports the ratio.
func BenchmarkMove(b *testing.B) {
	in, out := inProcess(b), outOfProcess(b)
	for _, c := range []struct {
		size, deep int
		write      bool
	}{{1 << 20, 1, true}, {1 << 20, 1, false}, {1 << 20, 8, true}, {1 << 20, 8, false}, {64 << 10, 1, true}, {64 << 10, 8, true}} {
		op := "read"
		if c.write {
			op = "write"
		}
		b.Run(fmt.Sprintf("%dKiB/%s/%d in flight", c.size>>10, op, c.deep), func(b *testing.B) {
			const turn = 32
			var ratios, mbps []float64
			for _, p := range []*pair{in, out} { // touch every page first
				p.move(b, benchRegion/c.size, c.deep, c.size, c.write)
			}
			for b.Loop() {
				var took [2]time.Duration
				for i, p := range []*pair{in, out} {
					begin := time.Now()
					p.move(b, turn, c.deep, c.size, c.write)
					took[i] = time.Since(begin)
				}
				ratios = append(ratios, took[0].Seconds()/took[1].Seconds())
				mbps = append(mbps, turn*float64(c.size)/took[1].Seconds()/1e6)
			}
			slices.Sort(ratios)
			slices.Sort(mbps)
			b.ReportMetric(ratios[len(ratios)/2], "ratio")
			b.ReportMetric(mbps[len(mbps)/2], "MB/s")
		})
	}
}

// BenchmarkCall is one control call to a plugin.
func BenchmarkCall(b *testing.B) {
	p := outOfProcess(b)
	s, err := p.a.T.(*Transport).session()
	if err != nil {
		b.Fatal(err)
	}
	measure(b, func() error {
		return s.call(context.Background(), "Unregister", time.Second, func(ctx context.Context) (*pluginv1.Error, error) {
			resp, err := s.client.Unregister(ctx, &pluginv1.UnregisterRequest{RegionId: 1 << 40}) // unknown: nothing to do
			return resp.GetError(), err
		})
	})
}

// BenchmarkOperation is 64 bytes over the transfer socket and the mover.
func BenchmarkOperation(b *testing.B) {
	for name, build := range map[string]func(testing.TB) *pair{"in process": inProcess, "plugin": outOfProcess} {
		b.Run(name, func(b *testing.B) {
			p := build(b)
			measure(b, func() error {
				p.move(b, 1, 1, 64, true)
				return nil
			})
		})
	}
}

// measure reports percentiles of f's time.
func measure(b *testing.B, f func() error) {
	var all []time.Duration
	for b.Loop() {
		begin := time.Now()
		if err := f(); err != nil {
			b.Fatal(err)
		}
		all = append(all, time.Since(begin))
	}
	slices.Sort(all)
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50-us", 0.5}, {"p99-us", 0.99}} {
		b.ReportMetric(float64(all[int(q.at*float64(len(all)-1))].Nanoseconds())/1e3, q.name)
	}
}
