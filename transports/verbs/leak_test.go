package verbs

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
	"github.com/mooncake-agent/mooncake/transports/verbs/device"
	"github.com/mooncake-agent/mooncake/transports/verbs/fake"
)

// TestDeadPeersGo: connections of peers that went without a word are found by asking, and everything of a thousand
// failing peers is given back.
func TestDeadPeersGo(t *testing.T) {
	hosts, f := transporttest.NewFabric(), fake.New()
	b := newSite(t, hosts, f, 1, nil, func(c *Config) { c.ProbeInterval = 50 * time.Millisecond })
	remote := b.Register(t, 4096, transports.ReadWrite)
	d := b.Descriptor()
	local := transporttest.NewRegion(t, 4096, transports.ReadWrite)
	before := b.m.Counts()
	files := openFiles(t)
	peers := 1000
	if testing.Short() {
		peers = 50
	}
	for i := range peers {
		func() {
			m := newMachine(f, 1, nil)
			tr := newOn(t, m, func(c *Config) { c.RailPause = time.Minute })
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := tr.Start(ctx, hosts.NewHost()); err != nil {
				t.Fatal(err)
			}
			reg, err := tr.Register(ctx, local)
			if err != nil {
				t.Fatal(err)
			}
			p, err := tr.Dial(ctx, d)
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				m.Device("mlx5_0").OnWork(func(device.Work) device.Status { return device.Status(1 + i%(device.Statuses-1)) })
			}
			rec := transporttest.NewRecorder(t)
			op := transports.Op{Write: i%3 == 0, Local: local, Remote: remote.Addr(), Len: 4096}
			if err := rec.Submit(ctx, p, op); err != nil {
				t.Fatal(err)
			}
			if i%5 > 0 {
				rec.Wait()
			}
			if i%7 == 0 {
				m.Device("mlx5_0").Die()
			}
			if err := tr.Close(); err != nil {
				t.Fatalf("peer %d: %v", i, err)
			}
			rec.Wait()
			if err := reg.Close(ctx); err != nil {
				t.Fatal(err)
			}
			if c := m.Counts(); c != (fake.Counts{}) {
				t.Fatalf("peer %d left %+v", i, c)
			}
		}()
	}
	eventually(t, "the target to be as before", func() bool { return b.m.Counts() == before })
	eventually(t, "no more open files than before", func() bool { return openFiles(t) <= files })
	if n := b.tr.nics[0].queues[0].used.Load(); n != 0 {
		t.Errorf("%d entries of the completion queue are not given back", n)
	}
}

// openFiles is how many files and sockets this process has open.
func openFiles(t testing.TB) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(l)
}
