package bench

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// fakeMaster is a Store master of one table, without any rules but that a key is put only once.
type fakeMaster struct {
	addr string

	mu      sync.Mutex
	state   map[string]wire.ReplicaStatus
	segment wire.Segment // the mounted one; zero if none
	pings   int
	puts    int
	room    int // puts that fit; -1 = all

	reads atomic.Int64
	lose  atomic.Int64 // every nth read finds nothing; 0 = never
	odd   atomic.Bool  // answer late, in another order
	fail  atomic.Bool  // answer with an RPC error
}

func startFakeMaster(t *testing.T) *fakeMaster {
	t.Helper()
	f := &fakeMaster{state: map[string]wire.ReplicaStatus{}, room: -1}
	s, err := rpc.NewServer(rpc.DefaultServerConfig(), rpc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f.serve(s)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(ln, nil); err != nil {
		t.Fatal(err)
	}
	f.addr = ln.Addr().String()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close the master: %v", err)
		}
	})
	return f
}

func (f *fakeMaster) setRoom(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.room = n
}

func (f *fakeMaster) serve(s *rpc.Server) {
	r := wire.NewestResolver{}
	wire.Handle(s, wire.ReMountSegment, r, func(_ *wire.Call, req *wire.ReMountSegmentRequest, _ *wire.Result[wire.Void]) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.segment = req.Segments[0]
		f.segment.Name = strings.Clone(f.segment.Name)
	})
	wire.Handle(s, wire.UnmountSegment, r, func(_ *wire.Call, req *wire.UnmountSegmentRequest, _ *wire.Result[wire.Void]) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if req.Segment == f.segment.ID {
			f.segment = wire.Segment{}
		}
	})
	wire.Handle(s, wire.Ping, r, func(_ *wire.Call, _ *wire.ClientRequest, resp *wire.Result[wire.PingReply]) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.pings++
		resp.Value.Status = wire.ClientOK
	})
	exist := func(key string) wire.Result[bool] {
		if n := f.lose.Load(); f.reads.Add(1)%max(n, 1) == 0 && n > 0 {
			return wire.Result[bool]{}
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		return wire.Result[bool]{Value: f.state[key] == wire.StatusComplete}
	}
	list := func(key string) (l wire.Result[wire.ReplicaList]) {
		if !exist(key).Value {
			l.Code = wire.ErrObjectNotFound
			return l
		}
		l.Value.Replicas = []wire.Replica{{ID: 1, Status: wire.StatusComplete, Size: 64, Address: segmentBase, Protocol: "tcp", Endpoint: "127.0.0.1:1"}}
		return l
	}
	put := func(key string) (p wire.Result[[]wire.Replica]) {
		f.mu.Lock()
		defer f.mu.Unlock()
		switch {
		case f.room == 0:
			p.Code = wire.ErrNoAvailableHandle
		case f.state[key] != 0:
			p.Code = wire.ErrObjectAlreadyExists
		default:
			f.room--
			f.puts++
			f.state[strings.Clone(key)] = wire.StatusProcessing
			p.Value = []wire.Replica{{ID: 1, Status: wire.StatusProcessing}}
		}
		return p
	}
	end := func(key string) (v wire.Result[wire.Void]) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.state[key] != wire.StatusProcessing {
			v.Code = wire.ErrInvalidWrite
		} else {
			f.state[strings.Clone(key)] = wire.StatusComplete // assigning replaces the stored key too
		}
		return v
	}
	wire.Handle(s, wire.ExistKey, r, func(c *wire.Call, req *wire.KeyRequest, resp *wire.Result[bool]) {
		if f.fail.Load() {
			c.Fail(rpc.CodeHandlerFailed, "out of order")
			return
		}
		if f.odd.Load() && req.Key[0] < '8' && c.Leave() {
			return
		}
		*resp = exist(req.Key)
	})
	wire.Handle(s, wire.GetReplicaList, r, func(_ *wire.Call, req *wire.KeyRequest, resp *wire.Result[wire.ReplicaList]) { *resp = list(req.Key) })
	wire.Handle(s, wire.PutStart, r, func(_ *wire.Call, req *wire.PutStartRequest, resp *wire.Result[[]wire.Replica]) { *resp = put(req.Key) })
	wire.Handle(s, wire.PutEnd, r, func(_ *wire.Call, req *wire.PutEndRequest, resp *wire.Result[wire.Void]) { *resp = end(req.Meta.Key) })
	wire.Handle(s, wire.BatchExistKey, r, func(_ *wire.Call, req *wire.KeysRequest, resp *[]wire.Result[bool]) {
		for _, k := range req.Keys {
			*resp = append(*resp, exist(k))
		}
	})
	wire.Handle(s, wire.BatchGetReplicaList, r, func(_ *wire.Call, req *wire.KeysRequest, resp *[]wire.Result[wire.ReplicaList]) {
		for _, k := range req.Keys {
			*resp = append(*resp, list(k))
		}
	})
	wire.Handle(s, wire.BatchPutStart, r, func(_ *wire.Call, req *wire.BatchPutStartRequest, resp *[]wire.Result[[]wire.Replica]) {
		for _, k := range req.Keys {
			*resp = append(*resp, put(k))
		}
	})
	wire.Handle(s, wire.BatchPutEnd, r, func(_ *wire.Call, req *wire.BatchPutEndRequest, resp *[]wire.Result[wire.Void]) {
		for _, m := range req.Metas {
			*resp = append(*resp, end(m.Key))
		}
	})
}

// storeWindow is long enough for one operation on a busy machine.
const storeWindow = 300 * time.Millisecond

func storeOptions(f *fakeMaster, op string, connections, depth int) StoreOptions {
	o := DefaultStoreOptions()
	o.Master, o.Op, o.Connections, o.Depth, o.Keys, o.Duration = f.addr, op, connections, depth, 2500, storeWindow
	o.warmUp = 20 * time.Millisecond
	return o
}

func TestStoreOps(t *testing.T) {
	for _, op := range StoreOps {
		for _, c := range []struct{ connections, depth, threads int }{{1, 1, 1}, {1, 5, 1}, {9, 1, 2}, {3, 7, 2}} {
			f := startFakeMaster(t)
			f.odd.Store(c.depth > 1)
			o := storeOptions(f, op, c.connections, c.depth)
			o.Threads, o.PID = c.threads, os.Getpid()
			r, err := Store(t.Context(), o)
			if err != nil {
				t.Fatalf("%s %+v: %v", op, c, err)
			}
			if r.Errors != 0 || r.OpsPerSecond <= 0 || op != "fill" && (r.LatencyUS.P50 <= 0 || r.LatencyUS.P999 < r.LatencyUS.P50 || r.Seconds > 1.2*storeWindow.Seconds()) {
				t.Errorf("%s %+v: %+v", op, c, r)
			}
			if op != "fill" && r.MasterRSS == 0 {
				t.Errorf("%s: the master's memory was not measured", op)
			}
			f.mu.Lock()
			if f.segment != (wire.Segment{}) {
				t.Errorf("%s: the segment is still there", op)
			}
			if more := op == "putstart-end" || op == "mixed"; (f.puts > 2500) != more || f.puts < 2500 {
				t.Errorf("%s: %d puts", op, f.puts)
			}
			for k, st := range f.state {
				if st != wire.StatusComplete {
					t.Errorf("%s: %s was left %v", op, k, st)
					break
				}
			}
			f.mu.Unlock()
		}
	}
}

func TestStoreCountsErrors(t *testing.T) {
	for _, op := range []string{"exist", "get", "batchget"} {
		f := startFakeMaster(t)
		f.lose.Store(1000)
		o := storeOptions(f, op, 4, 1)
		o.Duration = 200 * time.Millisecond
		r, err := Store(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if op != "batchget" && (r.Errors == 0 || r.FirstError == nil) {
			t.Errorf("%s: %d errors, %v", op, r.Errors, r.FirstError)
		}
	}
	f := startFakeMaster(t)
	f.lose.Store(1)
	if r, err := Store(t.Context(), storeOptions(f, "exist", 2, 1)); !errors.Is(err, errMissingKey) {
		t.Errorf("nothing but errors: %+v, %v", r, err)
	}
	f.lose.Store(0)
	o := storeOptions(f, "get", 1, 1)
	o.PID = 1 << 30
	if r, err := Store(t.Context(), o); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a process that is not there: %+v, %v", r, err)
	}
	f.fail.Store(true)
	if r, err := Store(t.Context(), storeOptions(f, "exist", 2, 1)); err == nil || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("RPC errors: %+v, %v", r, err)
	}
}

// A store without room refuses puts: with a segment of its own that is a result, without one an error.
func TestStoreFull(t *testing.T) {
	f := startFakeMaster(t)
	f.setRoom(1000)
	o := storeOptions(f, "fill", 1, 1)
	if r, err := Store(t.Context(), o); !errors.Is(err, wire.ErrNoAvailableHandle) {
		t.Errorf("filled %+v, %v", r, err)
	}
	f.setRoom(0)
	o.Segment, o.Op = 1<<20, "putstart-end"
	if r, err := Store(t.Context(), o); !errors.Is(err, wire.ErrNoAvailableHandle) {
		t.Errorf("puts into a full store: %+v, %v", r, err)
	}
}

func TestStoreInterrupted(t *testing.T) {
	f := startFakeMaster(t)
	for _, connections := range []int{1, 8} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		o := storeOptions(f, "get", connections, 1)
		o.Duration = time.Hour
		f.reads.Store(0)
		go func() {
			for f.reads.Load() < 100_000 {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		r, err := Store(ctx, o)
		if err != nil || r.Seconds > 60 {
			t.Errorf("interrupted: %+v, %v", r, err)
		}
	}
}

func TestStoreMasterGone(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	o := DefaultStoreOptions()
	o.Master = addr
	if _, err := Store(t.Context(), o); !errors.Is(err, rpc.ErrDial) {
		t.Errorf("nobody there: %v", err)
	}

	// One that hangs up on the measuring connections.
	f := startFakeMaster(t)
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer front.Close()
	wg.Go(func() {
		for n := 0; ; n++ {
			c, err := front.Accept()
			if err != nil {
				return
			}
			if n > 0 {
				c.Close()
				continue
			}
			wg.Go(func() { relay(c, f.addr) })
		}
	})
	o = storeOptions(f, "exist", 2, 1)
	o.Master = front.Addr().String()
	if r, err := Store(t.Context(), o); err == nil {
		t.Errorf("a master that hangs up: %+v", r)
	}
}

func relay(c net.Conn, to string) {
	defer c.Close()
	d, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer d.Close()
	var wg sync.WaitGroup
	for _, p := range [][2]net.Conn{{c, d}, {d, c}} {
		wg.Go(func() {
			b := make([]byte, 1<<16)
			for {
				n, err := p[0].Read(b)
				if n > 0 {
					if _, err := p[1].Write(b[:n]); err != nil {
						return
					}
				}
				if err != nil {
					p[1].Close()
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestStoreOptionsValidate(t *testing.T) {
	for flag, spoil := range map[string]func(*StoreOptions){
		"--op":          func(o *StoreOptions) { o.Op = "put" },
		"--connections": func(o *StoreOptions) { o.Connections = 0 },
		"--depth":       func(o *StoreOptions) { o.Depth = maxStoreDepth + 1 },
		"--keys":        func(o *StoreOptions) { o.Keys = 0 },
		"--threads":     func(o *StoreOptions) { o.Threads = -1 },
		"--value":       func(o *StoreOptions) { o.Value = 0 },
		"--duration":    func(o *StoreOptions) { o.Duration = 0 },
	} {
		o := DefaultStoreOptions()
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		spoil(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// The result must reach a reader before the keys go.
func TestStoreHold(t *testing.T) {
	f := startFakeMaster(t)
	o := storeOptions(f, "fill", 1, 1)
	reader, writer := net.Pipe()
	defer reader.Close()
	o.Hold = reader
	o.Ready = func(r *StoreResult) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.state) != 2500 || f.segment == (wire.Segment{}) || r.OpsPerSecond <= 0 {
			t.Errorf("%d keys, segment %+v, %+v", len(f.state), f.segment, r)
		}
		return writer.Close()
	}
	if _, err := Store(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func TestStoreResultJSON(t *testing.T) {
	b, err := json.Marshal(&StoreResult{Op: "get", FirstError: errMissingKey})
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	want := []string{"connections", "errors", "keys", "latency_us", "op", "ops_per_second", "seconds"}
	if d := cmp.Diff(want, slices.Sorted(maps.Keys(m))); d != "" {
		t.Error(d)
	}
	var text strings.Builder
	if err := (&StoreResult{Op: "get", Connections: 2, Errors: 1, FirstError: errMissingKey, MasterCPU: 2.5, MasterRSS: 1e6}).WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(text.String(), "get, 2 connections, 0 keys") || !strings.Contains(text.String(), "2.5 us of") || !strings.Contains(text.String(), errMissingKey.Error()) {
		t.Error(text.String())
	}
}

func TestKeys(t *testing.T) {
	seen := map[string]bool{}
	for space := range uint32(3) {
		for n := range uint64(1000) {
			k := keyString(space, n)
			if len(k) != keyBytes || strings.Trim(k, hexDigits) != "" || seen[k] {
				t.Fatalf("key %d of space %d: %q", n, space, k)
			}
			seen[k] = true
		}
	}
}

// An answer that only looks right must not count.
func TestAnswerChecks(t *testing.T) {
	s := &storeClient{o: &StoreOptions{Value: 64}}
	rs, err := s.requests()
	if err != nil {
		t.Fatal(err)
	}
	body := func(r wire.Result[bool]) []byte {
		b, err := wire.ExistKey.AppendResponse(nil, dialect, &r, true)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good := body(wire.Result[bool]{Value: true})
	for _, c := range []struct {
		name string
		h    answerHeader
		body []byte
		ok   bool
	}{
		{"right", answerHeader{}, good, true},
		{"an RPC error", answerHeader{code: 11}, good, false},
		{"an application error", answerHeader{}, body(wire.Result[bool]{Code: wire.ErrObjectNotFound}), false},
		{"cut off", answerHeader{}, good[:len(good)-2], false},
		{"empty", answerHeader{}, nil, false},
		{"another type", answerHeader{}, append([]byte{good[0] ^ 2}, good[1:]...), false},
	} {
		if err := rs.exist.check(c.h, c.body, false); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := rs.exist.check(answerHeader{}, body(wire.Result[bool]{}), true); !errors.Is(err, errMissingKey) {
		t.Errorf("a missing key, read in full: %v", err)
	}
}

func FuzzAnswer(f *testing.F) {
	s := &storeClient{o: &StoreOptions{Value: 64}}
	rs, err := s.requests()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append([]byte{0x15, 0, 0, 0, 1, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0}, "\xd3\x00\xe8\x90\x04\x87\x0b\x01\x00\x01\x01"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < rpc.ResponseHeaderSize {
			return
		}
		h, ok := parseAnswer(b)
		if !ok || h.size < 0 {
			return
		}
		body := b[rpc.ResponseHeaderSize:]
		for _, r := range []*storeRequest{rs.exist, rs.get, rs.batchExist, rs.batchGet, rs.putStart} {
			quick, full := r.check(h, body, false), r.check(h, body, true)
			if quick != nil && full == nil {
				t.Errorf("refused at first sight but right: %v", quick)
			}
		}
	})
}
