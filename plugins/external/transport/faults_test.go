package transport

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
)

// What a plugin may not say ends its process, and what was in flight ends once.
func TestGarbage(t *testing.T) {
	for name, say := range map[string]func(t *testing.T, r *rude, req *pluginv1.TransferRequest){
		"no message": func(t *testing.T, r *rude, _ *pluginv1.TransferRequest) {
			r.c.Write([]byte{0xff, 0xff, 0xff})
		},
		"oversized": func(t *testing.T, r *rude, _ *pluginv1.TransferRequest) {
			r.c.Write(make([]byte, maxPacket+1))
		},
		"an operation that is not in flight": func(t *testing.T, r *rude, _ *pluginv1.TransferRequest) {
			r.say(t, &pluginv1.Completion{OperationId: 1 << 40})
		},
		"an end twice": func(t *testing.T, r *rude, req *pluginv1.TransferRequest) {
			c := &pluginv1.Completion{OperationId: req.Operations[0].OperationId}
			r.say(t, c, c)
		},
		"an unknown code": func(t *testing.T, r *rude, req *pluginv1.TransferRequest) {
			r.say(t, &pluginv1.Completion{OperationId: req.Operations[0].OperationId, Error: &pluginv1.Error{Code: 999}})
		},
		"a code of another kind": func(t *testing.T, r *rude, req *pluginv1.TransferRequest) {
			r.say(t, &pluginv1.Completion{OperationId: req.Operations[0].OperationId, Error: &pluginv1.Error{Code: pluginv1.ErrorCode_ERROR_CODE_CONFLICT}})
		},
		"the end of the socket": func(t *testing.T, r *rude, _ *pluginv1.TransferRequest) { r.c.CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			r, n, node, region, peer := startRude(t, nil)
			rec := transporttest.NewRecorder(t)
			ops := make([]transports.Op, 10)
			for i := range ops {
				ops[i] = transports.Op{Local: region, Remote: region.Addr(), Len: 8, Cookie: uint64(i)}
			}
			if err := rec.Submit(context.Background(), peer, ops...); err != nil {
				t.Fatal(err)
			}
			say(t, r, r.next(t))
			rec.Wait()
			failed := 0
			for c, res := range rec.Results() {
				if res.Err != nil {
					failed++
				}
				if res.Err != nil && !errors.Is(res.Err, transports.ErrInterrupted) && !errors.Is(res.Err, transports.ErrProtocol) {
					t.Errorf("op %d: %v", c, res.Err)
				}
			}
			if failed < 9 {
				t.Errorf("%d of 10 ops failed", failed)
			}
			n.ready(t, node.T.(*Transport), 2)
			if f := n.faultList(); len(f) != 1 {
				t.Errorf("faults: %v", f)
			}
		})
	}
}

// Every error of the contract arrives as itself.
func TestErrors(t *testing.T) {
	r, _, _, region, peer := startRude(t, nil)
	for code, want := range sentinels {
		rec := transporttest.NewRecorder(t)
		if err := rec.Submit(context.Background(), peer, transports.Op{Local: region, Remote: 1, Len: 8}); err != nil {
			t.Fatal(err)
		}
		id := r.next(t).Operations[0].OperationId
		r.say(t, &pluginv1.Completion{OperationId: id, Error: &pluginv1.Error{Code: code, Message: "why"}})
		rec.Wait()
		res, _ := rec.Result(0)
		if code == pluginv1.ErrorCode_ERROR_CODE_CANCELLED {
			want = transports.ErrInterrupted // nobody has cancelled
		}
		if code == pluginv1.ErrorCode_ERROR_CODE_CLOSED {
			want = transports.ErrInterrupted // and nobody has closed
		}
		if !errors.Is(res.Err, want) || res.N != 0 {
			t.Errorf("%v: %v", code, res)
		}
	}
}

// A plugin that hangs keeps its regions until it is dead.
func TestUnquietUntilDead(t *testing.T) {
	hang := make(chan struct{})
	first := true
	_, n, node, region, peer := startRude(t, func(r *rude) {
		if !first {
			return
		}
		first = false
		r.unregister = func(ctx context.Context) (*pluginv1.UnregisterResponse, error) {
			select {
			case <-hang:
			case <-ctx.Done():
			}
			return nil, ctx.Err()
		}
	})
	defer close(hang)
	second := node.Register(t, 4096, transports.ReadWrite)
	rec := transporttest.NewRecorder(t)
	if err := rec.Submit(context.Background(), peer, transports.Op{Local: region, Remote: 1, Len: 8}); err != nil {
		t.Fatal(err)
	}
	reg := node.Registration(region)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := reg.Close(ctx); !errors.Is(err, transports.ErrUnquiet) {
		t.Errorf("while it hangs: %v, want ErrUnquiet", err)
	}
	if rec.Count() != 0 {
		t.Error("the op ended while the plugin could still move its bytes")
	}
	if err := transporttest.Move(t, peer, transports.Op{Local: region, Remote: 1, Len: 8}); !errors.Is(err, transports.ErrClosed) {
		t.Errorf("a new op: %v, want ErrClosed", err)
	}
	closed := make(chan error)
	go func() { closed <- reg.Close(context.Background()) }()
	ctx, cancel = context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	other := node.Registration(second)
	if err := other.Close(ctx); !errors.Is(err, transports.ErrUnquiet) {
		t.Errorf("another region: %v, want ErrUnquiet", err)
	}
	n.process().Fault(errors.New("it hangs"))
	if err := <-closed; err != nil {
		t.Errorf("after its death: %v", err)
	}
	rec.Wait()
	again := n.ready(t, node.T.(*Transport), 2).srv.(*rude) // although a region is still to be closed, which it is not told of
	if len(again.regions) != 0 {
		t.Errorf("the next process was told of %v", again.regions)
	}
	if err := other.Close(context.Background()); err != nil {
		t.Errorf("the other region, closed again: %v", err)
	}
	if res, _ := rec.Result(0); !errors.Is(res.Err, transports.ErrClosed) {
		t.Errorf("the op: %v, want ErrClosed", res.Err)
	}
}

// The next process gets all that is registered, with the same ids, and nothing else.
func TestMemoryAgain(t *testing.T) {
	r, n, node, region, peer := startRude(t, nil)
	second := node.Register(t, 4096, transports.RemoteRead)
	gone := node.Register(t, 4096, transports.ReadWrite)
	node.Unregister(t, gone)
	n.process().Fault(errors.New("test"))
	again := n.ready(t, node.T.(*Transport), 2).srv.(*rude)
	var want, got bytes.Buffer
	for _, q := range r.regions[:2] {
		want.WriteString(q.String() + "\n")
	}
	again.mu.Lock()
	for _, q := range again.regions {
		got.WriteString(q.String() + "\n")
	}
	again.mu.Unlock()
	if want.String() != got.String() || len(again.regions) != 2 || again.regions[1].Length != second.Len() || again.regions[1].RemoteWrite {
		t.Errorf("regions of the first process:\n%sof the second:\n%s", &want, &got)
	}
	waitFor(t, func() string { // the peer is dialled anew in the background
		rec := transporttest.NewRecorder(t)
		if err := rec.Submit(context.Background(), peer, transports.Op{Local: region, Remote: 1, Len: 8}); err != nil {
			if !errors.Is(err, transports.ErrUnreachable) {
				t.Fatal(err)
			}
			return err.Error()
		}
		again.say(t, &pluginv1.Completion{OperationId: again.next(t).Operations[0].OperationId})
		rec.Wait()
		return ""
	})
}

func TestRegister(t *testing.T) {
	_, n, node, _, peer := startRude(t, func(r *rude) {
		r.register = func(req *pluginv1.RegisterRequest) *pluginv1.RegisterResponse {
			resp := &pluginv1.RegisterResponse{}
			for _, q := range req.Regions {
				if q.Length == 8192 {
					resp.Refused = append(resp.Refused, &pluginv1.RefusedRegion{RegionId: q.RegionId, Error: &pluginv1.Error{Code: pluginv1.ErrorCode_ERROR_CODE_NOT_SHAREABLE, Message: "no"}})
				}
				if q.Length == 12288 {
					resp.Error = &pluginv1.Error{Code: pluginv1.ErrorCode_ERROR_CODE_UNAVAILABLE, Message: "no"}
				}
			}
			return resp
		}
	})
	tr := node.T
	register := func(r transports.Region) error {
		reg, err := tr.Register(context.Background(), r)
		if err == nil {
			err = reg.Close(context.Background())
		}
		return err
	}
	good := transporttest.NewRegion(t, 4096, transports.ReadWrite)
	for name, c := range map[string]struct {
		r    transports.Region
		want error
	}{
		"no descriptor":           {bare{good}, transports.ErrNotShareable},
		"no memfd":                {file{good, 0}, transports.ErrNotShareable},
		"outside of its memfd":    {file{good, 4096}, transports.ErrNotShareable},
		"refused by the plugin":   {transporttest.NewRegion(t, 8192, transports.ReadWrite), transports.ErrNotShareable},
		"the plugin has no place": {transporttest.NewRegion(t, 12288, transports.ReadWrite), transports.ErrUnreachable},
		"good":                    {good, nil},
		"good again":              {good, nil},
	} {
		if err := register(c.r); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if err := peer.Submit(context.Background(), []transports.Op{{Local: good, Remote: 1, Len: 8}}, nil); !errors.Is(err, transports.ErrNotShareable) {
		t.Errorf("an op with local memory that is not registered: %v, want ErrNotShareable", err)
	}
	if f := n.faultList(); len(f) != 0 {
		t.Errorf("faults: %v", f)
	}
	tr.(*Transport).mu.Lock()
	defer tr.(*Transport).mu.Unlock()
	if len(tr.(*Transport).segments) != 1 || len(tr.(*Transport).regions) != 1 {
		t.Errorf("%d segments, %d regions are left", len(tr.(*Transport).segments), len(tr.(*Transport).regions))
	}
}

// bare is a region without a descriptor, file one with a wrong one.
type bare struct{ transports.Region }

func (bare) FD() (int, int64, bool) { return -1, 0, false }

type file struct {
	transports.Region
	off int64
}

func (f file) FD() (int, int64, bool) {
	if f.off == 0 {
		return 0, 0, true // standard input
	}
	fd, _, _ := f.Region.FD()
	return fd, f.off, true
}

// FuzzCompletions feeds packets of a plugin: nothing but operations in flight ends, each once.
func FuzzCompletions(f *testing.F) {
	for _, r := range []*pluginv1.TransferResponse{{}, {Completions: []*pluginv1.Completion{{OperationId: 1}, {OperationId: 2}, {OperationId: 1}}},
		{Completions: []*pluginv1.Completion{{OperationId: 3, Error: &pluginv1.Error{Code: 45, Message: "x"}}}}} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		tr, _ := newTransport(t)
		s, err := newSession(tr, &nearProcess{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.abandon()
		const n = 4
		ends := map[uint64]int{}
		p := &Peer{t: tr, req: &pluginv1.DialRequest{}}
		p.wg.Add(1)
		b := &batch{p: p, s: s, ctx: context.Background(), left: n + 1, done: func(c, _ uint64, _ error) { ends[c]++ }}
		if err := s.room.Acquire(context.Background(), n); err != nil {
			t.Fatal(err)
		}
		for i := range uint64(n) {
			s.pending[i+1] = pending{b: b, local: &region{idle: make(chan struct{}, 1)}, cookie: i + 1}
		}
		var resp pluginv1.TransferResponse
		err = s.take(packet, &resp)
		for c, times := range ends {
			if times != 1 {
				t.Errorf("op %d ended %d times", c, times)
			}
		}
		if len(ends)+len(s.pending) != n {
			t.Errorf("%d ended, %d pending of %d", len(ends), len(s.pending), n)
		}
		if err != nil && !errors.Is(err, transports.ErrProtocol) {
			t.Errorf("untyped error %v", err)
		}
	})
}
