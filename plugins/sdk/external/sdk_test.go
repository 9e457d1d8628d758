package external

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/metadata"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

// The services as a whole are tested through the process boundary, by the suites of plugins/external.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDecode(t *testing.T) {
	var into struct {
		File string `json:"file"`
	}
	c := Config{JSON: []byte(`{"file": "x"}`)}
	if err := c.Decode(&into); err != nil || into.File != "x" {
		t.Errorf("%+v, %v", into, err)
	}
	c.JSON = []byte(`{"fiel": "x"}`)
	if err := c.Decode(&into); err == nil || !strings.Contains(err.Error(), "fiel") {
		t.Errorf("an unknown key: %v", err)
	}
}

func TestPartIsChecked(t *testing.T) {
	if err := Serve(Part{About: About{Name: "x"}}); err == nil {
		t.Error("a part without a kind was served")
	}
	if err := ServePolicy(About{Name: "x"}, func(Config) (func(eviction.Spec) (eviction.Policy, error), error) { return nil, nil }); err == nil {
		t.Error("a policy of an interface type was served")
	}
	if err := ServeMetadata(About{Name: "x"}, func(Config) (metadata.Backend, error) { return nil, nil }); err == nil {
		t.Error("a backend of an interface type was served")
	}
}

func TestLogRecordsAreThoseOfHclog(t *testing.T) {
	var out bytes.Buffer
	slog.New(newLogHandler(&out)).Warn("disk is slow", "seconds", 3)
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got["@level"] != "warn" || got["@message"] != "disk is slow" || got["seconds"] != 3.0 || got["@timestamp"] == nil {
		t.Errorf("record %s", &out)
	}
}

func TestBase(t *testing.T) {
	refused := errors.New("no such file")
	ctx := context.Background()
	var seen Config
	b := &base{part: Part{About: About{Name: "n", Version: "v"}, Kind: pluginv1.Kind_KIND_METADATA, Features: []string{"list"},
		Configure: func(_ context.Context, c Config) error { seen = c; return refused },
		Health:    func(context.Context) error { return refused }, Shutdown: func(context.Context) error { return refused }}}
	if i, err := b.Info(ctx, nil); err != nil || i.Name != "n" || len(i.Features) != 1 {
		t.Errorf("%v, %v", i, err)
	}
	req := &pluginv1.ConfigureRequest{Instance: "i", Generation: 4}
	if r, _ := b.Configure(ctx, req); r.Error.GetCode() != pluginv1.ErrorCode_ERROR_CODE_INVALID_CONFIG || seen.Instance != "i" || seen.Generation != 4 || string(seen.JSON) != "{}" {
		t.Errorf("refused: %v, %+v", r, seen)
	}
	refused = ErrUnavailable
	if r, _ := b.Configure(ctx, req); r.Error.GetCode() != pluginv1.ErrorCode_ERROR_CODE_UNAVAILABLE {
		t.Errorf("unavailable: %v", r)
	}
	if r, _ := b.Health(ctx, nil); r.Problem.GetMessage() == "" {
		t.Errorf("health: %v", r)
	}
	if r, _ := b.Shutdown(ctx, nil); r.Error.GetMessage() == "" {
		t.Errorf("shutdown: %v", r)
	}
	refused = nil
	if r, _ := b.Configure(ctx, req); r.Error != nil {
		t.Errorf("good: %v", r)
	}
	if r, _ := b.Configure(ctx, req); r.Error == nil {
		t.Error("configured twice")
	}
}

// pair is a side socket with both ends.
func pair(t *testing.T) (host, plugin *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "side")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

func TestSideSocket(t *testing.T) {
	host, plugin := pair(t)
	ask := func(packet []byte, rights ...int) *pluginv1.SideResponse {
		t.Helper()
		var control []byte
		if len(rights) > 0 {
			control = unix.UnixRights(rights...)
		}
		if _, _, err := host.WriteMsgUnix(packet, control, nil); err != nil {
			t.Fatal(err)
		}
		got := ""
		err := answer(plugin, func(r *pluginv1.SideRequest, fd int) error {
			defer unix.Close(fd)
			buf := make([]byte, 16)
			n, err := unix.Pread(fd, buf, 0)
			if got = string(buf[:max(0, n)]); err != nil || got != "memory" {
				return errors.Join(err, errors.New("not what was given"))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, maxSidePacket)
		n, err := host.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		resp := &pluginv1.SideResponse{}
		if err := proto.Unmarshal(buf[:n], resp); err != nil {
			t.Fatal(err)
		}
		return resp
	}
	packet, err := proto.Marshal(&pluginv1.SideRequest{Id: 3, What: &pluginv1.SideRequest_Give{Give: &pluginv1.Segment{SegmentId: 1, Length: 6}}})
	if err != nil {
		t.Fatal(err)
	}
	mem, err := unix.MemfdCreate("side", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(mem)
	if _, err := unix.Write(mem, []byte("memory")); err != nil {
		t.Fatal(err)
	}
	if r := ask(packet, mem); r.Id != 3 || r.Error != nil {
		t.Errorf("a segment: %v", r)
	}
	before := openFiles(t)
	if r := ask(packet, mem, mem); r.Error == nil {
		t.Error("two descriptors for one segment were taken")
	}
	if r := ask([]byte("\xff\xff"), mem); r.Error == nil {
		t.Error("a packet that is no request was taken")
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files are open, %d were", after, before)
	}
	host.Close()
	if err := answer(plugin, nil); err == nil {
		t.Error("the end of the host is no error")
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// count is a policy that counts.
type count struct{ events, closed int }

func (c *count) Apply(e []eviction.Event) error {
	c.events += len(e)
	return nil
}
func (c *count) Victims(dst []eviction.Handle, n eviction.Need) ([]eviction.Handle, error) {
	return append(dst, 7, eviction.Handle(n.Max)), nil
}
func (c *count) Close() error { c.closed++; return nil }

func TestPolicyServer(t *testing.T) {
	ctx, p := context.Background(), &count{}
	s := &policyServer{make: func(eviction.Spec) (eviction.Policy, error) { return p, nil }}
	if r, _ := s.Apply(ctx, &pluginv1.ApplyRequest{}); r.Error.GetCode() != pluginv1.ErrorCode_ERROR_CODE_CLOSED {
		t.Errorf("before Start: %v", r)
	}
	if r, _ := s.Start(ctx, &pluginv1.StartPolicyRequest{}); r.Error != nil {
		t.Fatal(r)
	}
	if r, _ := s.Start(ctx, &pluginv1.StartPolicyRequest{}); r.Error == nil {
		t.Error("started twice")
	}
	two := eviction.AppendEvent(eviction.AppendEvent(nil, &eviction.Event{}), &eviction.Event{})
	if r, _ := s.Apply(ctx, &pluginv1.ApplyRequest{Events: two}); r.Error != nil || p.events != 2 {
		t.Errorf("%v, %d events", r, p.events)
	}
	if r, _ := s.Apply(ctx, &pluginv1.ApplyRequest{Events: two[:70]}); r.Error.GetCode() != pluginv1.ErrorCode_ERROR_CODE_BAD_EVENT {
		t.Errorf("part of a record: %v", r)
	}
	if r, _ := s.Victims(ctx, &pluginv1.VictimsRequest{Max: 9}); len(r.Handles) != 2 || r.Handles[1] != 9 {
		t.Errorf("victims %v", r)
	}
	if r, _ := s.Admit(ctx, &pluginv1.AdmitRequest{Events: two}); r.Error == nil {
		t.Error("a policy without admission refuses")
	}
	if err := s.close(); err != nil || p.closed != 1 {
		t.Errorf("close: %v, %d times", err, p.closed)
	}
	if err := s.close(); err != nil || p.closed != 1 {
		t.Errorf("second close: %v, %d times", err, p.closed)
	}
}

func FuzzDecodeEvents(f *testing.F) {
	f.Add(eviction.AppendEvent(nil, &eviction.Event{Kind: eviction.Insert, Handle: 1}))
	f.Add([]byte{1, 2, 3})
	s := &policyServer{}
	f.Fuzz(func(t *testing.T, raw []byte) {
		events, err := s.decode(raw)
		if (err == nil) != (len(raw)%eviction.EventSize == 0) || err == nil && len(events) != len(raw)/eviction.EventSize {
			t.Errorf("%d bytes: %d events, %v", len(raw), len(events), err)
		}
	})
}
