package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// peer is a client that speaks the wire of 0.3.13 itself. It can do what no wheel does, such as end a put half way,
// and lends memory that does not exist.
type peer struct {
	t   testing.TB
	rpc *rpc.Client
	id  wire.UUID
}

func startPeer(t testing.TB, addr string) *peer {
	t.Helper()
	cfg := rpc.DefaultClientConfig()
	cfg.Timeout, cfg.MaxConnections = 10*time.Second, 8
	c, err := rpc.NewClient(addr, cfg, rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &peer{t: t, rpc: c, id: wire.UUID{rand.Uint64(), rand.Uint64()}}
}

// ask calls a function whose transport must work and returns its value and code.
func ask[Req, Value any](p *peer, m *wire.Method[Req, wire.Result[Value]], req Req) (Value, wire.ErrorCode) {
	p.t.Helper()
	r, err := wire.Invoke(context.Background(), p.rpc, m, wire.V0_3_13, &req)
	if err != nil {
		p.t.Fatalf("%s: %v", m.Name(), err)
	}
	return r.Value, r.Code
}

// askAll is ask for functions that answer for each key.
func askAll[Req, Value any](p *peer, m *wire.Method[Req, []wire.Result[Value]], req Req) []wire.ErrorCode {
	p.t.Helper()
	rs, err := wire.Invoke(context.Background(), p.rpc, m, wire.V0_3_13, &req)
	if err != nil {
		p.t.Fatalf("%s: %v", m.Name(), err)
	}
	codes := make([]wire.ErrorCode, len(rs))
	for i, r := range rs {
		codes[i] = r.Code
	}
	return codes
}

// segment is memory that a peer lends.
func (p *peer) newSegment(name string, size uint64) wire.Segment {
	return wire.Segment{ID: wire.UUID{rand.Uint64(), rand.Uint64()}, Name: name, Base: 1 << 32, Size: size, TEEndpoint: name, Protocol: "tcp"}
}

// lend mounts a segment and pings until the test ends.
func (p *peer) lend(name string, size uint64) wire.Segment {
	p.t.Helper()
	s := p.newSegment(name, size)
	if _, code := ask(p, wire.MountSegment, wire.MountSegmentRequest{Segment: s, Client: p.id}); code != wire.OK {
		p.t.Fatalf("MountSegment %s: %v", s.Name, code)
	}
	p.remount(s) // as clients do when a ping tells them to
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(300 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_, _ = wire.Invoke(ctx, p.rpc, wire.Ping, wire.V0_3_13, &wire.ClientRequest{Client: p.id})
			}
		}
	})
	p.t.Cleanup(func() {
		stop()
		wg.Wait()
	})
	return s
}

func (p *peer) remount(s wire.Segment) {
	p.t.Helper()
	if _, code := ask(p, wire.ReMountSegment, wire.ReMountSegmentRequest{Segments: []wire.Segment{s}, Client: p.id}); code != wire.OK {
		p.t.Fatalf("ReMountSegment %s: %v", s.Name, code)
	}
}

func (p *peer) start(key string, size uint64, configs ...wire.ReplicateConfig) ([]wire.Replica, wire.ErrorCode) {
	p.t.Helper()
	c := wire.ReplicateConfig{Replicas: 1}
	if len(configs) > 0 {
		c = configs[0]
	}
	return ask(p, wire.PutStart, wire.PutStartRequest{Client: p.id, Key: key, Length: size, Config: c, Tenant: wire.DefaultTenant})
}

func (p *peer) end(key string) wire.ErrorCode {
	p.t.Helper()
	_, code := ask(p, wire.PutEnd, wire.PutEndRequest{Client: p.id, Meta: wire.ObjectMeta{Key: key}, Type: wire.ReplicaAll, Tenant: wire.DefaultTenant})
	return code
}

func (p *peer) revoke(key string) wire.ErrorCode {
	p.t.Helper()
	_, code := ask(p, wire.PutRevoke, wire.PutRevokeRequest{Client: p.id, Key: key, Type: wire.ReplicaAll, Tenant: wire.DefaultTenant})
	return code
}

// put stores an object whole, or says why not.
func (p *peer) put(key string, size uint64, configs ...wire.ReplicateConfig) wire.ErrorCode {
	p.t.Helper()
	if _, code := p.start(key, size, configs...); code != wire.OK {
		return code
	}
	return p.end(key)
}

func (p *peer) mustPut(key string, size uint64, configs ...wire.ReplicateConfig) {
	p.t.Helper()
	if code := p.put(key, size, configs...); code != wire.OK {
		p.t.Fatalf("put %s: %v", key, code)
	}
}

func (p *peer) get(key string) (wire.ReplicaList, wire.ErrorCode) {
	p.t.Helper()
	return ask(p, wire.GetReplicaList, wire.KeyRequest{Key: key, Tenant: wire.DefaultTenant})
}

func (p *peer) exists(key string) bool {
	p.t.Helper()
	v, code := ask(p, wire.ExistKey, wire.KeyRequest{Key: key, Tenant: wire.DefaultTenant})
	if code != wire.OK {
		p.t.Fatalf("ExistKey %s: %v", key, code)
	}
	return v
}

func (p *peer) remove(key string, force bool) wire.ErrorCode {
	p.t.Helper()
	_, code := ask(p, wire.Remove, wire.RemoveRequest{Key: key, Force: force, Tenant: wire.DefaultTenant})
	return code
}

// eventually waits for an answer.
func (p *peer) eventually(want wire.ErrorCode, what string, try func() wire.ErrorCode) {
	p.t.Helper()
	testenv.Eventually(p.t, soon, func() error {
		if code := try(); code != want {
			return fmt.Errorf("%s: %v, want %v", what, code, want)
		}
		return nil
	})
}
