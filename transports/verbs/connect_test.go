package verbs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
	"github.com/mooncake-agent/mooncake/transports/verbs/device"
	"github.com/mooncake-agent/mooncake/transports/verbs/fake"
)

// say sends a connection message to a site as a peer would.
func (s *site) say(t testing.TB, m *transports.Connection) *transports.Connection {
	t.Helper()
	b := s.tr.onConnection(context.Background(), m.Encode())
	if b == nil {
		t.Fatal("no reply")
	}
	c, err := transports.ParseConnection(b)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestHandshakeOnTheWire: what is said, in which order, is upstream's exchange with the ready-ack step.
func TestHandshakeOnTheWire(t *testing.T) {
	s := newSites(t, 1, 4096, nil, nil)
	var mu sync.Mutex
	var said []string
	s.b.OnSignal(typeConnection, func(ctx context.Context, _ net.Addr, req []byte) []byte {
		reply := s.b.tr.onConnection(ctx, req)
		mu.Lock()
		said = append(said, string(req), string(reply))
		mu.Unlock()
		return reply
	})
	s.write(t)
	mu.Lock()
	defer mu.Unlock()
	if len(said) != 4 {
		t.Fatalf("said %q", said)
	}
	a, b := s.a.tr.nics[0], s.b.tr.nics[0]
	form := func(from, to *nic, qps, ack string) string {
		return fmt.Sprintf(`{"local_gid":"%v","local_lid":0,"local_nic_path":"%s","path_mtu":4096,"payload":"","peer_nic_path":"%s","qp_num":[%s],"ready_ack":%s,"reply_msg":""}`,
			from.address().GID, from.path, to.path, qps, ack)
	}
	qps := func(msg string) string {
		_, rest, _ := strings.Cut(msg, `"qp_num":[`)
		list, _, _ := strings.Cut(rest, "]")
		return list
	}
	if want := form(a, b, qps(said[0]), "false"); said[0] != want {
		t.Errorf("asked %s\nwant  %s", said[0], want)
	}
	if want := form(b, a, qps(said[1]), "false"); said[1] != want {
		t.Errorf("answered %s\nwant     %s", said[1], want)
	}
	if want := form(a, b, qps(said[0]), "true"); said[2] != want {
		t.Errorf("acknowledged %s\nwant         %s", said[2], want)
	}
	if want := `{"local_gid":"","local_lid":0,"local_nic_path":"","payload":"","peer_nic_path":"","qp_num":[],"reply_msg":""}`; said[3] != want {
		t.Errorf("closed with %s", said[3])
	}
}

// TestPeerWithoutReadyAck: with engines before 0.3.12 two messages are enough.
func TestPeerWithoutReadyAck(t *testing.T) {
	s := newSites(t, 1, 4096, nil, nil)
	n := 0
	s.b.OnSignal(typeConnection, func(ctx context.Context, _ net.Addr, req []byte) []byte {
		n++
		old := strings.Replace(string(req), `"ready_ack":false,`, "", 1)
		return []byte(strings.Replace(string(s.b.tr.onConnection(ctx, []byte(old))), `"ready_ack":false,`, "", 1))
	})
	s.write(t)
	if n != 1 {
		t.Errorf("%d messages", n)
	}
	if e := s.b.tr.nics[0].store.all(); len(e) != 1 || e[0].state != epReady {
		t.Errorf("the passive side is not connected: %+v", e)
	}
}

// TestSimultaneousOpen: both sides connect at once, over and over, and share one connection in the end.
func TestSimultaneousOpen(t *testing.T) {
	hosts, f := transporttest.NewFabric(), fake.New()
	s := [2]*site{newSite(t, hosts, f, 1, nil, nil), newSite(t, hosts, f, 1, nil, nil)}
	var r [2]*transporttest.Region
	for i := range s {
		r[i] = s[i].Register(t, 8192, transports.ReadWrite)
	}
	for round := range 50 {
		for i := range s {
			s[i].tr.nics[0].store.failAll(errReplaced)
		}
		var wg sync.WaitGroup
		for i := range s {
			p := s[i].Dial(t, s[1-i].Node)
			wg.Go(func() {
				op := transports.Op{Write: true, Local: r[i], Remote: r[1-i].Addr() + 4096, Len: 4096}
				if err := transporttest.Move(t, p, op); err != nil {
					t.Errorf("round %d, side %d: %v", round, i, err)
				}
			})
		}
		wg.Wait()
	}
	for i := range s {
		eventually(t, "one connection with two queue pairs", func() bool {
			return len(s[i].tr.nics[0].store.all()) == 1 && s[i].m.Device("mlx5_0").Counts().QPs == 2
		})
	}
}

// TestPeerConnectsAnew: a peer with other queue pairs is one that has begun again; the same ones are the same connection.
func TestPeerConnectsAnew(t *testing.T) {
	b := newSite(t, transporttest.NewFabric(), fake.New(), 1, nil, nil)
	n := b.tr.nics[0]
	m := &transports.Connection{LocalNICPath: "10.0.0.9:15000@mlx5_0", PeerNICPath: n.path, LocalGID: n.address().GID.String(), QPNum: []uint32{7001, 7002}, HasReadyAck: true}
	first := b.say(t, m)
	if again := b.say(t, m); fmt.Sprint(again.QPNum) != fmt.Sprint(first.QPNum) || first.ReplyMsg != "" {
		t.Errorf("the same message: %v, then %v", first, again)
	}
	m.ReadyAck = true
	if c := b.say(t, m); c.ReplyMsg != "" || len(c.QPNum) != 0 {
		t.Errorf("ready: %+v", c)
	}
	if e := n.store.find(m.LocalNICPath); e == nil || e.state != epReady {
		t.Errorf("endpoint %+v", e)
	}
	m.QPNum, m.ReadyAck = []uint32{8001, 8002}, false
	anew := b.say(t, m)
	if anew.ReplyMsg != "" || fmt.Sprint(anew.QPNum) == fmt.Sprint(first.QPNum) {
		t.Errorf("anew: %+v, before %+v", anew, first)
	}
	eventually(t, "the old queue pairs to go", func() bool { return b.m.Device("mlx5_0").Counts().QPs == 2 })
	m.QPNum, m.ReadyAck = []uint32{9, 10}, true
	if c := b.say(t, m); c.ReplyMsg == "" {
		t.Error("a peer that is ready with other queue pairs was believed")
	}
}

// TestPeerNeverReady: a peer that connects and is not heard of again costs its queue pairs for 10 s only.
func TestPeerNeverReady(t *testing.T) {
	b := newSite(t, transporttest.NewFabric(), fake.New(), 1, nil, nil)
	n := b.tr.nics[0]
	b.say(t, &transports.Connection{LocalNICPath: "10.0.0.9:15000@mlx5_0", PeerNICPath: n.path, LocalGID: n.address().GID.String(), QPNum: []uint32{7001, 7002}, HasReadyAck: true})
	n.sweep(b.tr.now() + readyTimeout - time.Second)
	if len(n.store.all()) != 1 {
		t.Fatal("gone too early")
	}
	n.sweep(b.tr.now() + readyTimeout + time.Second)
	eventually(t, "the queue pairs to go", func() bool { return b.m.Device("mlx5_0").Counts().QPs == 0 })
}

func TestRefusals(t *testing.T) {
	b := newSite(t, transporttest.NewFabric(), fake.New(), 1, nil, nil)
	n := b.tr.nics[0]
	good := transports.Connection{LocalNICPath: "10.0.0.9:15000@mlx5_0", PeerNICPath: n.path, LocalGID: n.address().GID.String(), QPNum: []uint32{1, 2}, HasReadyAck: true}
	for name, c := range map[string]struct {
		change func(*transports.Connection)
		want   string
	}{
		"no path":                 {func(c *transports.Connection) { c.LocalNICPath = "" }, "not of the form"},
		"path without device":     {func(c *transports.Connection) { c.LocalNICPath = "a@" }, "not of the form"},
		"another device":          {func(c *transports.Connection) { c.PeerNICPath = "x@mlx5_0" }, "no device"},
		"one queue pair":          {func(c *transports.Connection) { c.QPNum = c.QPNum[:1] }, qpMismatch},
		"no queue pairs":          {func(c *transports.Connection) { c.QPNum = nil }, qpMismatch},
		"bad GID":                 {func(c *transports.Connection) { c.LocalGID = "fe80::1" }, "16"},
		"no GID, unknown peer":    {func(c *transports.Connection) { c.LocalGID = "" }, "no local_gid"},
		"MTU of 1":                {func(c *transports.Connection) { c.PathMTU = 1 }, "path MTU 1"},
		"ready without a message": {func(c *transports.Connection) { c.ReadyAck = true }, "no such connection"},
	} {
		t.Run(name, func(t *testing.T) {
			m := good
			c.change(&m)
			if reply := b.say(t, &m); !strings.Contains(reply.ReplyMsg, c.want) {
				t.Errorf("replied %+v, want %q", reply, c.want)
			}
		})
	}
	if b.tr.onConnection(context.Background(), []byte("[]")) != nil {
		t.Error("a message that is no object was answered")
	}
	if reply := b.tr.onConnection(context.Background(), []byte(`{"notify_rq_depth":70000}`)); !strings.Contains(string(reply), "Invalid handshake notify_rq_depth") {
		t.Errorf("%s", reply)
	}
	eventually(t, "all queue pairs of refused peers to go", func() bool { return b.m.Device("mlx5_0").Counts().QPs <= 2 })
}

// TestPeerWithoutGID: engines before 0.3.11 do not tell their address in the message; their document does.
func TestPeerWithoutGID(t *testing.T) {
	hosts := transporttest.NewFabric()
	b := newSite(t, hosts, fake.New(), 1, nil, nil)
	n := b.tr.nics[0]
	old := hosts.NewHost()
	d := transports.Descriptor{Name: old.Identity().Segment, Protocol: "rdma", Devices: []transports.Device{{Name: "mlx5_7", GID: n.address().GID.String()}}}
	old.OnSignal(typeMetadata, func(context.Context, net.Addr, []byte) []byte { return d.Encode(time.Now()) })
	c := b.say(t, &transports.Connection{LocalNICPath: nicPath(d.Name, "mlx5_7"), PeerNICPath: n.path, QPNum: []uint32{1, 2}})
	if c.ReplyMsg != "" || len(c.QPNum) != 2 {
		t.Errorf("%+v", c)
	}
	if c := b.say(t, &transports.Connection{LocalNICPath: nicPath(d.Name, "mlx5_8"), PeerNICPath: n.path, QPNum: []uint32{1, 2}}); !strings.Contains(c.ReplyMsg, "no device") {
		t.Errorf("%+v", c)
	}
}

// TestPeerAnswersBadly: whatever a peer answers, the op ends with an error that says what was wrong.
func TestPeerAnswersBadly(t *testing.T) {
	for name, c := range map[string]struct{ reply, want string }{
		"tcp only engine": {`{"local_gid":"","local_lid":0,"local_nic_path":"","payload":"","peer_nic_path":"","qp_num":[],"reply_msg":""}`, "has no RDMA"},
		"refused":         {`{"reply_msg":"go away"}`, "go away"},
		"others":          {`{"local_nic_path":"a@b","peer_nic_path":"c@d","qp_num":[1,2]}`, "answered for"},
		"no object":       {`[]`, "object"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSites(t, 1, 4096, nil, nil)
			s.b.OnSignal(typeConnection, func(context.Context, net.Addr, []byte) []byte { return []byte(c.reply) })
			err := transporttest.Move(t, s.peer, s.op(true, 0, 4096, 1))
			if !errors.Is(err, transports.ErrUnreachable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestAnotherGID: when the first GID has no route to a peer, the next is tried and published.
func TestAnotherGID(t *testing.T) {
	hosts, f := transporttest.NewFabric(), fake.New()
	onlyLocal := func(_ int, s *fake.Spec) { s.GIDs = s.GIDs[:2] } // link-local only
	a, b := newSite(t, hosts, f, 1, onlyLocal, nil), newSite(t, hosts, f, 1, nil, nil)
	s := &twoSites{a: a, b: b, local: a.Register(t, 4096, transports.ReadWrite), remote: b.Register(t, 4096, transports.ReadWrite)}
	transporttest.Fill(s.local.Bytes(), 1)
	was := b.tr.nics[0].address()
	s.peer = a.Dial(t, b.Node)
	s.write(t)
	if now := b.tr.nics[0].address(); was.GID.LinkLocal() || !now.GID.LinkLocal() || now.Type != device.GIDRoCEv2 {
		t.Errorf("before %+v, after %+v", was, now)
	}
	pinned := newSite(t, hosts, f, 1, nil, func(c *Config) { c.GIDIndex = 3 })
	s.b, s.remote = pinned, pinned.Register(t, 4096, transports.ReadWrite)
	s.peer = a.Dial(t, pinned.Node)
	if err := transporttest.Move(t, s.peer, s.op(true, 0, 4096, 1)); !errors.Is(err, transports.ErrUnreachable) || !strings.Contains(err.Error(), "gid_index 3") {
		t.Errorf("with a pinned GID: %v", err)
	}
}

// TestDocument: the document is upstream's, byte by byte, with our extension beside it.
func TestDocument(t *testing.T) {
	files := map[string]string{"sys/devices/system/node/node0/cpulist": "0-3", "sys/devices/system/node/node1/cpulist": "4-7"}
	for i, name := range []string{"mlx5_0", "mlx5_1"} {
		files["sys/class/infiniband/"+name+"/device/numa_node"] = fmt.Sprintln(i)
		files["sys/class/infiniband/"+name+"/ports/1/state"] = "4: ACTIVE"
	}
	sys := os.DirFS(writeTree(t, files))
	m := newMachine(fake.New(), 2, nil)
	tr := newOn(t, m, nil)
	tr.sys = sys
	n := transporttest.StartNode(t, transporttest.NewFabric(), tr)
	r := n.Register(t, 4096, transports.ReadWrite)
	d := n.Descriptor()
	d.TCPProtoVersion = 1
	got := d.Encode(time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local))
	var doc struct {
		Buffers []struct{ LKey, RKey []uint32 }
	}
	if err := json.Unmarshal(got, &doc); err != nil || len(doc.Buffers) != 1 {
		t.Fatalf("%s: %v", got, err)
	}
	l := doc.Buffers[0].LKey
	g := [2]string{tr.nics[0].address().GID.String(), tr.nics[1].address().GID.String()}
	want := fmt.Sprintf(`{"buffers":[{"addr":%d,"length":4096,"lkey":[%d,%d],"name":"cpu:0","rkey":[%d,%d]}],"devices":[{"gid":"%s","lid":0,"name":"mlx5_0"},{"gid":"%s","lid":0,"name":"mlx5_1"}],"name":"%s","priority_matrix":{"cpu:0":[["mlx5_0"],["mlx5_1"]],"cpu:1":[["mlx5_1"],["mlx5_0"]]},"protocol":"rdma","rdma_server_name":"","tcp_data_port":0,"tcp_proto_version":1,"timestamp":"2026-01-02 03:04:05.000000"}`,
		r.Addr(), l[0], l[1], l[0], l[1], g[0], g[1], n.Identity().Segment)
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if _, err := transports.ParseDescriptor(got); err != nil {
		t.Error(err)
	}
	other := &transports.Descriptor{Name: "x", Protocol: "tcp", Buffers: n.Buffers()}
	tr.Describe(other)
	if other.Devices != nil || other.Buffers[0].RKey != nil || other.Protocol != "tcp" {
		t.Errorf("a tcp document got %+v", other)
	}
}

// writeTree makes files below a folder.
func writeTree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
