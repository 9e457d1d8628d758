package master

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/eviction"
	_ "github.com/mooncake-agent/mooncake/eviction/arc"
	_ "github.com/mooncake-agent/mooncake/eviction/lru"
	_ "github.com/mooncake-agent/mooncake/eviction/s3fifo"
	_ "github.com/mooncake-agent/mooncake/eviction/sieve"
)

// testTB is testing.TB and rapid.T.
type testTB interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
	Cleanup(func())
}

// store is a service under test with a clock that only tests move.
type store struct {
	testTB
	*Service
	clock *atomic.Int64
}

const t0 = 1_700_000_000_000

var (
	clientA = wire.UUID{0x1111, 0x2222}
	clientB = wire.UUID{0x3333, 0x4444}
	clientC = wire.UUID{0x5555, 0x6666}
)

// newStore makes a service; change adjusts config and options.
func newStore(t testTB, change func(*Options)) *store {
	t.Helper()
	clock := new(atomic.Int64)
	clock.Store(t0)
	o := Options{Config: DefaultConfig(), Clock: ClockFunc(clock.Load), Log: slog.New(slog.DiscardHandler), Seed: 1}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return &store{t, s, clock}
}

// pass moves the clock and does what is due.
func (s *store) pass(ms int64) {
	s.clock.Add(ms)
	s.Poll()
}

func segmentID(n int) wire.UUID { return wire.UUID{0xa0 + uint64(n), 0xb0 + uint64(n)} }

// mount adds segment n of a client: "node<n>:1".
func (s *store) mount(n int, size uint64, client wire.UUID) {
	s.Helper()
	s.must("ReMountSegment", s.remountSegs(client, s.segmentOf(n, size)), wire.OK)
	s.must("MountSegment", s.mountSeg(client, s.segmentOf(n, size)), wire.OK)
}

func (s *store) segmentOf(n int, size uint64) wire.Segment {
	return wire.Segment{
		ID: segmentID(n), Name: fmt.Sprintf("node%d:1", n), Base: uint64(n+1) << 40, Size: size,
		TEEndpoint: fmt.Sprintf("10.0.0.%d:15001", n), Protocol: "tcp", HostID: fmt.Sprintf("host%d", n),
	}
}

func (s *store) mountSeg(client wire.UUID, g wire.Segment) wire.ErrorCode {
	var r wire.Result[wire.Void]
	s.MountSegment(&wire.MountSegmentRequest{Segment: g, Client: client}, &r)
	return r.Code
}

func (s *store) remountSegs(client wire.UUID, gs ...wire.Segment) wire.ErrorCode {
	var r wire.Result[wire.Void]
	s.ReMountSegment(&wire.ReMountSegmentRequest{Segments: gs, Client: client}, &r)
	return r.Code
}

func (s *store) unmount(n int, client wire.UUID) wire.ErrorCode {
	var r wire.Result[wire.Void]
	s.UnmountSegment(&wire.UnmountSegmentRequest{Segment: segmentID(n), Client: client}, &r)
	return r.Code
}

func (s *store) ping(client wire.UUID) wire.ClientStatus {
	var r wire.Result[wire.PingReply]
	s.Ping(&wire.ClientRequest{Client: client}, &r)
	return r.Value.Status
}

func (s *store) must(what string, got, want wire.ErrorCode) {
	s.Helper()
	if got != want {
		s.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func config(change ...func(*wire.ReplicateConfig)) wire.ReplicateConfig {
	c := wire.ReplicateConfig{Replicas: 1}
	for _, f := range change {
		f(&c)
	}
	return c
}

func (s *store) start(client wire.UUID, key string, size uint64, c ...func(*wire.ReplicateConfig)) ([]wire.Replica, wire.ErrorCode) {
	var r wire.Result[[]wire.Replica]
	s.PutStart(&wire.PutStartRequest{Client: client, Key: key, Length: size, Config: config(c...), Tenant: "default"}, &r)
	return r.Value, r.Code
}

func (s *store) upsert(client wire.UUID, key string, size uint64, c ...func(*wire.ReplicateConfig)) ([]wire.Replica, wire.ErrorCode) {
	var r wire.Result[[]wire.Replica]
	s.UpsertStart(&wire.PutStartRequest{Client: client, Key: key, Length: size, Config: config(c...), Tenant: "default"}, &r)
	return r.Value, r.Code
}

func (s *store) end(client wire.UUID, key string) wire.ErrorCode {
	return s.endType(client, key, wire.ReplicaAll)
}

func (s *store) endType(client wire.UUID, key string, typ wire.ReplicaType) wire.ErrorCode {
	var r wire.Result[wire.Void]
	s.PutEnd(&wire.PutEndRequest{Client: client, Meta: wire.ObjectMeta{Key: key}, Type: typ, Tenant: "default"}, &r)
	return r.Code
}

func (s *store) revokePut(client wire.UUID, key string) wire.ErrorCode {
	var r wire.Result[wire.Void]
	s.PutRevoke(&wire.PutRevokeRequest{Client: client, Key: key, Type: wire.ReplicaAll, Tenant: "default"}, &r)
	return r.Code
}

// put writes an object; it must work.
func (s *store) put(key string, size uint64, c ...func(*wire.ReplicateConfig)) []wire.Replica {
	s.Helper()
	rs, code := s.start(clientA, key, size, c...)
	s.must("PutStart "+key, code, wire.OK)
	s.must("PutEnd "+key, s.end(clientA, key), wire.OK)
	return rs
}

func (s *store) exists(key string) bool {
	var r wire.Result[bool]
	s.ExistKey(&wire.KeyRequest{Key: key, Tenant: "default"}, &r)
	if r.Code != wire.OK {
		s.Fatalf("ExistKey: %v", r.Code)
	}
	return r.Value
}

func (s *store) get(key string) (wire.ReplicaList, wire.ErrorCode) {
	var r wire.Result[wire.ReplicaList]
	s.GetReplicaList(&wire.KeyRequest{Key: key, Tenant: "default"}, &r)
	return r.Value, r.Code
}

// look is get without a lease.
func (s *store) look(key string) (wire.ReplicaList, wire.ErrorCode) {
	var r wire.Result[wire.ReplicaList]
	s.QueryKey("default", key, &r)
	return r.Value, r.Code
}

func (s *store) there(key string) bool {
	_, code := s.look(key)
	return code == wire.OK
}

func (s *store) del(key string, force bool) wire.ErrorCode {
	var r wire.Result[wire.Void]
	s.Remove(&wire.RemoveRequest{Key: key, Force: force, Tenant: "default"}, &r)
	return r.Code
}

// check compares all accounts with each other: object table, segments, gauges, tenants, groups.
func (s *store) check() {
	s.Helper()
	if err := s.verify(); err != nil {
		s.Fatalf("accounts: %v", err)
	}
}

func replicas(n uint64) func(*wire.ReplicateConfig) {
	return func(c *wire.ReplicateConfig) { c.Replicas = n }
}

func preferred(names ...string) func(*wire.ReplicateConfig) {
	return func(c *wire.ReplicateConfig) { c.PreferredSegments = names }
}

func withHardPin(c *wire.ReplicateConfig) { c.HardPin = true }

func withSoftPin(ttl uint64) func(*wire.ReplicateConfig) {
	return func(c *wire.ReplicateConfig) {
		c.SoftPin = wire.SoftPinEnable
		if ttl > 0 {
			c.SoftPinTTLMS = wire.Opt[uint64]{Value: ttl, OK: true}
		}
	}
}

func inGroup(name string) func(*wire.ReplicateConfig) {
	return func(c *wire.ReplicateConfig) { c.GroupIDs = wire.Opt[[]string]{Value: []string{name}, OK: true} }
}

const mib = uint64(units.MiB)

var _ testTB = (testing.TB)(nil)

// policies makes the named policy serve all tenants.
func policies(name string) map[string]Policy {
	f, err := eviction.Kind.Build(context.Background(), name, module.Env{Name: name, Log: slog.New(slog.DiscardHandler)}, module.NoConfig{})
	if err != nil {
		panic(err)
	}
	return map[string]Policy{anyTenant: {Name: name, Factory: f}}
}

// outside makes a policy one that works aside, as those do that run code from outside.
type outside struct{ eviction.Factory }

func (outside) DomainSettings() eviction.Settings {
	return eviction.Settings{Reserve: -1, Aside: true}
}

// policiesAside are policies, working aside.
func policiesAside(name string) map[string]Policy {
	p := policies(name)[anyTenant]
	p.Factory = outside{p.Factory}
	return map[string]Policy{anyTenant: p}
}

// taskFields reads the payload of a move task.
func taskFields(payload string) (key, source, target string) {
	var p struct{ Key, Source, Target string }
	if err := json.Unmarshal([]byte(payload), &p); err != nil {
		panic(err)
	}
	return p.Key, p.Source, p.Target
}
