package wire

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/core/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// recorder is a Resolver that answers the newest candidate, or what was pinned, and remembers.
type recorder struct {
	mu   sync.Mutex
	pin  VersionSet
	seen []string
}

func (r *recorder) Resolve(c *rpc.Call, client UUID, candidates VersionSet, ambiguous bool) Version {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, _ := MethodByID(c.Function())
	line := m.Name() + " " + client.String() + " " + candidates.String()
	if ambiguous {
		line += " ambiguous"
	}
	r.seen = append(r.seen, line)
	if s := candidates & r.pin; s != 0 {
		candidates = s
	}
	v, _ := candidates.Newest()
	return v
}

// tinyMaster knows one object, "k".
func tinyMaster(s *rpc.Server, r Resolver) {
	Handle(s, ServiceReady, r, func(_ *Call, _ *NoArgs, resp *Result[string]) { resp.Value = ServiceVersion })
	Handle(s, Ping, r, func(_ *Call, _ *ClientRequest, resp *Result[PingReply]) { resp.Value.Status = ClientNeedRemount })
	Handle(s, ExistKey, r, func(_ *Call, req *KeyRequest, resp *Result[bool]) { resp.Value = req.Key == "object" })
	Handle(s, GetReplicaList, r, func(_ *Call, req *KeyRequest, resp *Result[ReplicaList]) {
		if req.Key != "object" {
			resp.Code = ErrObjectNotFound
			return
		}
		resp.Value.Replicas = append(resp.Value.Replicas, goldEvery...)
		resp.Value.LeaseTTLMS = 5000
	})
	Handle(s, BatchExistKey, r, func(c *Call, req *KeysRequest, resp *[]Result[bool]) {
		if len(req.Keys) > 10 && c.Leave() {
			return
		}
		for _, k := range req.Keys {
			*resp = append(*resp, Result[bool]{Value: k == "object"})
		}
	})
	HandleSlow(s, RemoveByRegex, r, func(c *Call, req *RemoveRequest, resp *Result[int64]) {
		switch {
		case req.Key == "fail":
			c.Fail(rpc.CodeHandlerFailed, "refused")
		case !c.Slow():
			resp.Code = ErrInternalError
		default:
			resp.Value = int64(len(req.Key))
		}
	})
	Handle(s, CopyStart, r, func(_ *Call, _ *CopyStartRequest, resp *Result[CopyTargets]) { resp.Value.Source = goldEvery[4] })
}

func start(t *testing.T, r Resolver) (addr string) {
	t.Helper()
	s, err := rpc.NewServer(rpc.DefaultServerConfig(), rpc.Options{Scribble: true})
	if err != nil {
		t.Fatal(err)
	}
	tinyMaster(s, r)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(ln, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

func dial(t *testing.T, addr string) *rpc.Client {
	t.Helper()
	c, err := rpc.NewClient(addr, rpc.DefaultClientConfig(), rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestMalformedRequests replays what the C++ master was asked and answered, byte by byte.
func TestMalformedRequests(t *testing.T) {
	b, err := os.ReadFile("../testdata/malformed.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ Name, Request, Response, After string }
	if err := json.Unmarshal(b, &cases); err != nil || len(cases) != 14 {
		t.Fatal(len(cases), err)
	}
	addr := start(t, NewestResolver{})
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			request, err := hex.DecodeString(c.Request)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patience))
			for range 2 { // the connection must serve a second request, or be closed
				if _, err := conn.Write(request); err != nil {
					t.Fatal(err)
				}
				if c.After == "closed" {
					if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
						t.Errorf("got %x, %v instead of the end", rest, err)
					}
					return
				}
				head := make([]byte, rpc.ResponseHeaderSize)
				if _, err := io.ReadFull(conn, head); err != nil {
					t.Fatal(err)
				}
				body := make([]byte, binary.LittleEndian.Uint32(head[8:]))
				if _, err := io.ReadFull(conn, body); err != nil {
					t.Fatal(err)
				}
				want := c.Response
				if c.Name == "bare_no_literal" { // we answer in the form of the request, the C++ master in that of its build
					want = "15000000070000000600000000000000d200e8900100"
				}
				if got := hex.EncodeToString(head) + hex.EncodeToString(body); got != want {
					t.Errorf("got  %s\nwant %s", got, want)
				}
			}
		})
	}
}

// TestVersionsSideBySide asks one server in all versions.
func TestVersionsSideBySide(t *testing.T) {
	r := &recorder{}
	addr := start(t, r)
	c := dial(t, addr)
	ctx := context.Background()
	for _, v := range AllVersions.Versions() {
		r.mu.Lock()
		r.pin = SetOf(v)
		r.mu.Unlock()
		for key, want := range map[string]bool{"object": true, "other": false} {
			if got, err := Invoke(ctx, c, ExistKey, v, &KeyRequest{Key: key}); err != nil || got.Code != OK || got.Value != want {
				t.Errorf("%s: ExistKey(%s) = %v, %v", v, key, got, err)
			}
		}
		got, err := Invoke(ctx, c, GetReplicaList, v, &KeyRequest{Key: "object"})
		if err != nil {
			t.Fatalf("%s: %v", v, err)
		}
		known := 0
		for _, x := range goldEvery {
			if x.Kind.Known(v) {
				known++
			}
		}
		if len(got.Value.Replicas) != known || got.Value.LeaseTTLMS != 5000 {
			t.Errorf("%s: %d replicas, want %d", v, len(got.Value.Replicas), known)
		}
		if got, err := Invoke(ctx, c, GetReplicaList, v, &KeyRequest{Key: "other"}); err != nil || got.Code != ErrObjectNotFound {
			t.Errorf("%s: %v, %v", v, got, err)
		}
		ready, err := Invoke(ctx, c, ServiceReady, v, &NoArgs{})
		if want := map[bool]string{true: "", false: ServiceVersion}[v == V0_3_7]; err != nil || ready.Value != want {
			t.Errorf("%s: ready %+v, %v", v, ready, err)
		}
	}
}

func TestWrongGuessIsSeenByTheClient(t *testing.T) {
	addr := start(t, NewestResolver{})
	c := dial(t, addr)
	_, err := Invoke(context.Background(), c, GetReplicaList, V0_3_12, &KeyRequest{Key: "object"})
	if !errors.Is(err, rpc.ErrBadAnswer) || CodeOf(err) != ErrRPCFail {
		t.Errorf("an answer of 0.3.13 to a client of 0.3.12: %v", err)
	}
}

func TestResolverSeesEveryRequest(t *testing.T) {
	r := &recorder{}
	c := dial(t, start(t, r))
	ctx := context.Background()
	for _, err := range []error{
		second(Invoke(ctx, c, Ping, Newest, &ClientRequest{UUID{3, 4}})),
		second(Invoke(ctx, c, GetReplicaList, V0_3_9, &KeyRequest{Key: "x"})), // answered as 0.3.11
		second(Invoke(ctx, c, RemoveByRegex, V0_3_10, &RemoveRequest{Key: "ab"})),
	} {
		if err != nil && !errors.Is(err, rpc.ErrBadAnswer) {
			t.Error(err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	want := []string{
		"Ping 3-4 0.3.7 0.3.8 0.3.9 0.3.10 0.3.11 0.3.12 0.3.13",
		"GetReplicaList 0-0 0.3.7 0.3.8 0.3.9 0.3.10 0.3.11 ambiguous",
		"RemoveByRegex 0-0 0.3.9 0.3.10 0.3.11",
	}
	if diff := cmp.Diff(want, r.seen); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func second[T any](_ T, err error) error { return err }

func TestHandlersOnWorkers(t *testing.T) {
	c := dial(t, start(t, NewestResolver{}))
	ctx := context.Background()
	keys := make([]string, 500)
	for i := range keys {
		keys[i] = strings.Repeat("k", i%7)
	}
	keys[77] = "object"
	got, err := Invoke(ctx, c, BatchExistKey, Newest, &KeysRequest{Keys: keys})
	if err != nil || len(got) != len(keys) {
		t.Fatal(len(got), err)
	}
	for i, r := range got {
		if r.Value != (i == 77) {
			t.Errorf("key %d: %v", i, r)
		}
	}
	if n, err := Invoke(ctx, c, RemoveByRegex, Newest, &RemoveRequest{Key: "abc"}); err != nil || n.Value != 3 {
		t.Error(n, err)
	}
	_, err = Invoke(ctx, c, RemoveByRegex, Newest, &RemoveRequest{Key: "fail"})
	var remote *rpc.RemoteError
	if !errors.As(err, &remote) || remote.Code != rpc.CodeHandlerFailed || remote.Message != "refused" {
		t.Error(err)
	}
	_, err = Invoke(ctx, c, PutStart, Newest, &PutStartRequest{})
	if !errors.As(err, &remote) || remote.Code != rpc.CodeUnknownFunction {
		t.Error(err)
	}
	_, err = Invoke(ctx, c, CopyStart, V0_3_9, &CopyStartRequest{})
	if !errors.As(err, &remote) || remote.Code != rpc.CodeHandlerFailed {
		t.Errorf("a DFS replica answered to 0.3.9: %v", err)
	}
}

func TestConcurrentRequestsKeepApart(t *testing.T) {
	c := dial(t, start(t, NewestResolver{}))
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 200 {
				keys := slices.Repeat([]string{"other"}, 1+(i+g)%12)
				at := i % len(keys)
				keys[at] = "object"
				got, err := Invoke(context.Background(), c, BatchExistKey, Version(i%NumVersions), &KeysRequest{Keys: keys})
				if err != nil || len(got) != len(keys) || !got[at].Value {
					t.Errorf("%d of %d: %v, %v", at, len(keys), got, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestCodeOf(t *testing.T) {
	for err, want := range map[error]ErrorCode{nil: OK, ErrObjectHasLease: ErrObjectHasLease, rpc.ErrTimeout: ErrRPCTimeout,
		rpc.ErrConnectionLost: ErrRPCFail, context.Canceled: ErrRPCFail} {
		if got := CodeOf(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}
