package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/internal/procstat"
)

// How the cost of our master grows with keys and with clients.

// growthOps are measured at every size, with growthConnections.
var growthOps = []string{"exist", "get", "putstart-end"}

const growthConnections = 8

// keyGrowth is our master with a number of keys.
type keyGrowth struct {
	keys    uint64
	samples []sample // of growthOps
	rss     uint64   // with the keys there
	empty   uint64
	fill    float64 // keys a second
	pause   string
}

// clientGrowth is our master with a number of clients that own a segment each.
type clientGrowth struct {
	clients int
	join    time.Duration // of all
	joinCPU time.Duration // of the master, for one
	pingCPU time.Duration // for one
	samples []sample      // of growthOps, with plan.keys
}

func (p *plan) growth(ctx context.Context, t *table, stderr io.Writer) error {
	for _, n := range p.growthKeys {
		fmt.Fprintf(stderr, "growth, %d keys\n", n)
		g, err := p.withKeys(ctx, n)
		if err != nil {
			return fmt.Errorf("growth, %d keys: %w", n, err)
		}
		t.keyGrowth = append(t.keyGrowth, g)
	}
	for _, n := range p.growthClients {
		fmt.Fprintf(stderr, "growth, %d clients\n", n)
		g, err := p.withClients(ctx, int(n))
		if err != nil {
			return fmt.Errorf("growth, %d clients: %w", n, err)
		}
		t.clientGrowth = append(t.clientGrowth, g)
	}
	return nil
}

func (p *plan) withKeys(ctx context.Context, n uint64) (g keyGrowth, err error) {
	m, err := p.startMaster(ctx, ours)
	if err != nil {
		return g, err
	}
	defer m.Stop()
	g.keys = n
	f, err := p.fill(ctx, m, n)
	if err != nil {
		return g, err
	}
	g.empty, g.rss, g.fill, g.pause = f.empty, f.filled, f.keysPerSecond, f.pause
	for _, op := range growthOps {
		s, err := p.quiet(func() (sample, error) { return p.bench(ctx, m, point{op, growthConnections}, n, 0, 64) })
		if err != nil {
			return g, fmt.Errorf("%s: %w", op, err)
		}
		g.samples = append(g.samples, s)
	}
	g.pause = longestPause(ctx, m.admin)
	return g, nil
}

const (
	joinWorkers = 20
	pingRounds  = 20
	joinSegment = 16 << 20
	joinBase    = 0x7000_0000_0000
)

func (p *plan) withClients(ctx context.Context, n int) (g clientGrowth, err error) {
	m, err := p.startMaster(ctx, ours)
	if err != nil {
		return g, err
	}
	defer m.Stop()
	client, err := rpc.NewClient(m.addr, rpc.DefaultClientConfig(), rpc.ClientOptions{})
	if err != nil {
		return g, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	g.clients = n
	id := func(i int) wire.UUID { return wire.UUID{uint64(i + 1), 0x6a6f696e} }
	before, err := procstat.Read(m.PID())
	if err != nil {
		return g, err
	}
	begin := time.Now()
	err = each(n, func(i int) error {
		name := fmt.Sprintf("10.%d.%d.%d:1", 1+i>>16, i>>8&255, i&255)
		seg := wire.Segment{ID: wire.UUID{uint64(i + 1), 0x736567}, Name: name, Base: joinBase + uint64(i)*joinSegment, Size: joinSegment, TEEndpoint: name, Protocol: "tcp"}
		r, err := wire.Invoke(ctx, client, wire.ReMountSegment, wire.Newest, &wire.ReMountSegmentRequest{Segments: []wire.Segment{seg}, Client: id(i)})
		if err == nil {
			_, err = wire.Unwrap(r)
		}
		return err
	})
	g.join = time.Since(begin)
	if err != nil {
		return g, fmt.Errorf("join: %w", err)
	}
	joined, err := procstat.Read(m.PID())
	if err != nil {
		return g, err
	}
	for range pingRounds {
		if err = each(n, func(i int) error { return ping(ctx, client, id(i)) }); err != nil {
			return g, err
		}
	}
	pinged, err := procstat.Read(m.PID())
	if err != nil {
		return g, err
	}
	g.joinCPU = (joined.CPU - before.CPU) / time.Duration(n)
	g.pingCPU = (pinged.CPU - joined.CPU) / time.Duration(n*pingRounds)
	// The clients stay, as wheels do: they ping once a second.
	alive, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var lost error
	wg.Go(func() {
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-alive.Done():
				tick.Stop()
				return
			case <-tick.C:
				if err := each(n, func(i int) error { return ping(ctx, client, id(i)) }); err != nil {
					lost = err
					return
				}
			}
		}
	})
	defer func() {
		stop()
		wg.Wait()
		err = errors.Join(err, lost)
	}()
	for _, op := range growthOps {
		s, err := p.quiet(func() (sample, error) { return p.bench(ctx, m, point{op, growthConnections}, p.keys, 0, 64) })
		if err != nil {
			return g, fmt.Errorf("%s: %w", op, err)
		}
		g.samples = append(g.samples, s)
	}
	return g, nil
}

func ping(ctx context.Context, c *rpc.Client, id wire.UUID) error {
	r, err := wire.Invoke(ctx, c, wire.Ping, wire.Newest, &wire.ClientRequest{Client: id})
	if err == nil && r.Value.Status != wire.ClientOK {
		err = errors.New("ping: the master has forgotten a client")
	}
	return err
}

// each calls f for 0..n-1 from some goroutines and returns their errors.
func each(n int, f func(i int) error) error {
	errs := make([]error, joinWorkers)
	var wg sync.WaitGroup
	for w := range joinWorkers {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil; i += joinWorkers {
				errs[w] = f(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (t *table) growthTables(b *strings.Builder) {
	cells := func(ss []sample) {
		for _, s := range ss {
			fmt.Fprintf(b, " %.1f | %.1f |", s.ops/1000, s.cpu)
		}
	}
	head := func(first string) {
		b.WriteString(first)
		for _, op := range growthOps {
			fmt.Fprintf(b, " %s k/s | CPU us/op |", op)
		}
	}
	if len(t.keyGrowth) > 0 {
		fmt.Fprintf(b, "\nOur master with more and more keys, %d connections:\n\n", growthConnections)
		head("| keys | filled at keys/s |")
		b.WriteString(" bytes a key | longest GC pause |\n|---|---|" + strings.Repeat("---|---|", len(growthOps)) + "---|---|\n")
		for _, g := range t.keyGrowth {
			fmt.Fprintf(b, "| %d | %.0f |", g.keys, g.fill)
			cells(g.samples)
			fmt.Fprintf(b, " %.0f | %s |\n", float64(int64(g.rss)-int64(g.empty))/float64(g.keys), g.pause)
		}
	}
	if len(t.clientGrowth) > 0 {
		fmt.Fprintf(b, "\nOur master with clients that own a segment each, join at once and then ping every second; %d keys:\n\n", t.p.keys)
		head("| clients | joined in | CPU us a join | CPU us a ping |")
		b.WriteString("\n|---|---|---|---|" + strings.Repeat("---|---|", len(growthOps)) + "\n")
		for _, g := range t.clientGrowth {
			fmt.Fprintf(b, "| %d | %.0f ms | %.0f | %.1f |", g.clients, g.join.Seconds()*1000, float64(g.joinCPU.Nanoseconds())/1000, float64(g.pingCPU.Nanoseconds())/1000)
			cells(g.samples)
			b.WriteString("\n")
		}
	}
}

// numbers reads a list of positive numbers.
func numbers(list string) (out []uint64, err error) {
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%q is not a positive number", s)
		}
		out = append(out, n)
	}
	return out, nil
}
