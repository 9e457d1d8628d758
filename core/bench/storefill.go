package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// dialect is the version that the benchmark speaks.
const dialect = wire.V0_3_13

const (
	segmentBase   = 1 << 32
	fillBatch     = 1000
	closeTimeout  = 30 * time.Second
	pingEvery     = time.Second
	defaultRoom   = 64 << 30 // for the objects of putstart-end
	roundingSpare = 8        // allocators round sizes up, by an eighth at most
)

// storeClient is the client of a benchmark: it owns the segment and pings.
type storeClient struct {
	o       *StoreOptions
	rpc     *rpc.Client
	id      wire.UUID
	segment wire.Segment
	space   uint32 // number of the key space of this run

	stop  context.CancelFunc
	pings sync.WaitGroup
}

// openStore connects, lends the segment and starts to ping.
func openStore(ctx context.Context, o *StoreOptions) (*storeClient, error) {
	cfg := rpc.DefaultClientConfig()
	cfg.DialAttempts = 1
	c, err := rpc.NewClient(o.Master, cfg, rpc.ClientOptions{})
	if err != nil {
		return nil, err
	}
	size := uint64(o.Segment)
	if size == 0 {
		size = uint64(o.Value)
		size = o.Keys*(size+size/roundingSpare+64) + defaultRoom
	}
	s := &storeClient{o: o, rpc: c, id: wire.UUID{rand.Uint64(), rand.Uint64()}, space: rand.Uint32()}
	s.segment = wire.Segment{
		ID: wire.UUID{rand.Uint64(), rand.Uint64()}, Name: fmt.Sprintf("bench-%08x:1", s.space), Base: segmentBase, Size: size,
		TEEndpoint: "127.0.0.1:1", Protocol: "tcp",
	}
	// ReMountSegment makes the client known too, which MountSegment does not.
	r, err := wire.Invoke(ctx, c, wire.ReMountSegment, dialect, &wire.ReMountSegmentRequest{Segments: []wire.Segment{s.segment}, Client: s.id})
	if err == nil {
		_, err = wire.Unwrap(r)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	live, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.pings.Go(func() { s.ping(live) })
	return s, nil
}

// ping keeps the segment alive. What fails shows in the measurement.
func (s *storeClient) ping(ctx context.Context) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_, _ = wire.Invoke(ctx, s.rpc, wire.Ping, dialect, &wire.ClientRequest{Client: s.id})
		}
	}
}

// close takes the segment back, and with it all objects of the benchmark.
func (s *storeClient) close() error {
	s.stop()
	s.pings.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	r, err := wire.Invoke(ctx, s.rpc, wire.UnmountSegment, dialect, &wire.UnmountSegmentRequest{Segment: s.segment.ID, Client: s.id})
	if err == nil {
		_, err = wire.Unwrap(r)
	}
	return errors.Join(err, s.rpc.Close())
}

// fill puts the keys and returns how many there are and how long it took.
func (s *storeClient) fill(ctx context.Context) (filled uint64, took time.Duration, err error) {
	start := time.Now()
	put := wire.BatchPutStartRequest{Client: s.id, Config: s.config(), Tenant: wire.DefaultTenant}
	end := wire.BatchPutEndRequest{Client: s.id, Type: wire.ReplicaAll, Tenant: wire.DefaultTenant}
	for low := uint64(0); low < s.o.Keys; low += fillBatch {
		put.Keys, put.Lengths, end.Metas = put.Keys[:0], put.Lengths[:0], end.Metas[:0]
		for n := low; n < min(low+fillBatch, s.o.Keys); n++ {
			put.Keys, put.Lengths = append(put.Keys, keyString(s.space, n)), append(put.Lengths, uint64(s.o.Value))
		}
		started, err := wire.Invoke(ctx, s.rpc, wire.BatchPutStart, dialect, &put)
		if err != nil {
			return filled, 0, err
		}
		if len(started) != len(put.Keys) {
			return filled, 0, fmt.Errorf("BatchPutStart: %d answers for %d keys", len(started), len(put.Keys))
		}
		for i, r := range started {
			switch {
			case r.Code == wire.OK:
				end.Metas = append(end.Metas, wire.ObjectMeta{Key: put.Keys[i]})
			case s.o.Segment != 0 && r.Code == wire.ErrNoAvailableHandle:
			default:
				return filled, 0, fmt.Errorf("BatchPutStart: %w", r.Code)
			}
		}
		ended, err := wire.Invoke(ctx, s.rpc, wire.BatchPutEnd, dialect, &end)
		if err != nil {
			return filled, 0, err
		}
		for _, r := range ended {
			if r.Code != wire.OK {
				return filled, 0, fmt.Errorf("BatchPutEnd: %w", r.Code)
			}
		}
		filled += uint64(len(ended))
	}
	return filled, time.Since(start), nil
}

func (s *storeClient) config() wire.ReplicateConfig {
	return wire.ReplicateConfig{Replicas: 1, PreferredSegment: s.segment.Name}
}
