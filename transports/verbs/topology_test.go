package verbs

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/transports"
	"github.com/mooncake-agent/mooncake/transports/transporttest"
	"github.com/mooncake-agent/mooncake/transports/verbs/fake"
)

func TestDiscover(t *testing.T) {
	sys := fstest.MapFS{}
	put := func(name, text string) { sys[name] = &fstest.MapFile{Data: []byte(text)} }
	put("sys/devices/system/node/node0/cpulist", "0-3")
	put("sys/devices/system/node/node1/cpulist", "4-7")
	put("sys/devices/system/node/possible", "0-1")
	for name, node := range map[string]string{"mlx5_0": "0", "mlx5_1": "1", "mlx5_2": "1", "rxe0": "-1"} {
		put("sys/class/infiniband/"+name+"/device/numa_node", node+"\n")
	}
	got := string(discover(sys, []string{"mlx5_0", "mlx5_1", "mlx5_2", "rxe0"}).encode())
	want := `{"cpu:0":[["mlx5_0"],["mlx5_1","mlx5_2","rxe0"]],"cpu:1":[["mlx5_1","mlx5_2"],["mlx5_0","rxe0"]]}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := string(discover(noSys, []string{"rxe0"}).encode()); got != `{"cpu:0":[[],["rxe0"]]}` {
		t.Error(got)
	}
}

func TestParseMatrix(t *testing.T) {
	m, err := parseMatrix([]byte(`{"cpu:0":[["a","b"],["c"]],"cuda:1":[[],["c","d"]]}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(m.keep([]string{"c", "a"}).encode()); got != `{"cpu:0":[["a"],["c"]],"cuda:1":[[],["c"]]}` {
		t.Error(got)
	}
	if m.keep([]string{"x"}) != nil && len(m.keep([]string{"x"})) != 0 {
		t.Error("a location without devices was kept")
	}
	for _, bad := range []string{`[]`, `{"a":[["x"]]}`, `{"a":[["x"],["y"],["z"]]}`, `{"a":"x"}`, `{"a":[["x"],5]}`, `{`} {
		if m, err := parseMatrix([]byte(bad)); err == nil {
			t.Errorf("%s: %v", bad, m)
		}
	}
}

func FuzzParseMatrix(f *testing.F) {
	f.Add([]byte(`{"cpu:0":[["mlx5_0"],["mlx5_1"]]}`))
	f.Add([]byte(`{"cpu:0":[null,[]],"\u0000":[["\ud800"],[]]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMatrix(b)
		if err != nil {
			return
		}
		again, err := parseMatrix(m.encode())
		if err != nil || string(again.encode()) != string(m.encode()) {
			t.Fatalf("%q → %q → %q, %v", b, m.encode(), again.encode(), err)
		}
	})
}

func TestTopologyFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "topo.json")
	start := func(text string) (*Transport, error) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		tr := newOn(t, newMachine(fake.New(), 2, nil), func(c *Config) { c.TopologyFile = file })
		return tr, tr.Start(t.Context(), transporttest.NewFabric().NewHost())
	}
	tr, err := start(`{"cpu:0":[["mlx5_1"],["mlx5_0","mlx5_9"]]}`)
	if err != nil {
		t.Fatal(err)
	}
	d := &transports.Descriptor{}
	tr.Describe(d)
	if got := string(d.PriorityMatrix); got != `{"cpu:0":[["mlx5_1"],["mlx5_0"]]}` {
		t.Error(got)
	}
	for text, want := range map[string]string{`{}`: "no location", `[`: file, `{"cpu:0":[["x"],[]]}`: "none of the devices"} {
		if _, err := start(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestWays: near devices pair with near ones first, each with another one; the rest is for when those fail.
func TestWays(t *testing.T) {
	matrix := map[string]devices{"cpu:0": {[]string{"mlx5_0", "mlx5_1"}, []string{"mlx5_2", "mlx5_3"}}}
	for name, c := range map[string]struct {
		change func(*Config)
		from   string
		want   string
	}{
		"by node":     {from: "cpu:0", want: "0-0 1-1|0-1 1-0|0-2 1-3|0-3 1-2|2-0 3-1|2-1 3-0|2-2 3-3|2-3 3-2"},
		"anywhere":    {from: "*", want: "0-0 1-1 2-0 3-1|0-1 1-0 2-1 3-0|0-2 1-3 2-2 3-3|0-3 1-2 2-3 3-2"},
		"same name":   {from: "*", change: func(c *Config) { c.DestDeviceAffinity = true }, want: "0-0 1-1 2-0 3-1|0-1 1-0 2-1 3-0|0-2 1-3 2-2 3-3|0-3 1-2 2-3 3-2"},
		"by affinity": {from: "cpu:0", change: func(c *Config) { c.UsePeerAffinity, c.PeerAffinity = true, "mlx5_0=mlx5_1;mlx5_1=mlx5_0,mlx5_1" }, want: "0-1 1-0 1-1|0-0|0-2 1-3|0-3 1-2|2-0 3-1|2-1 3-0|2-2 3-3|2-3 3-2"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newOn(t, newMachine(fake.New(), 4, nil), c.change)
			if err := tr.Start(t.Context(), transporttest.NewFabric().NewHost()); err != nil {
				t.Fatal(err)
			}
			tr.matrix = matrix
			r := &remote{server: "x:1", matrix: matrix}
			for i := range 4 {
				r.devices = append(r.devices, transports.Device{Name: fmt.Sprintf("mlx5_%d", i)})
			}
			p := newPeer(tr, r)
			var groups []string
			for _, g := range p.waysFor(c.from, "cpu:0") {
				var ways []string
				for _, w := range g {
					ways = append(ways, fmt.Sprintf("%d-%d", w.n.index, w.dev))
				}
				groups = append(groups, strings.Join(ways, " "))
			}
			if got := strings.Join(groups, "|"); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestAffinity(t *testing.T) {
	a, err := parseAffinity(" mlx5_0=mlx5_2, mlx5_3 ;mlx5_1=x;")
	if err != nil || !slices.Equal(a["mlx5_0"], []string{"mlx5_2", "mlx5_3"}) || !slices.Equal(a["mlx5_1"], []string{"x"}) {
		t.Errorf("%v, %v", a, err)
	}
	for _, bad := range []string{"a", "a=", "=b", "a=b;c"} {
		if a, err := parseAffinity(bad); err == nil {
			t.Errorf("%q: %v", bad, a)
		}
	}
}

// TestSlices: work requests have the configured size, a small rest goes with the one before, and none crosses the end of
// a piece on either side.
func TestSlices(t *testing.T) {
	s := newSites(t, 1, 1<<20, nil, func(c *Config) { c.MaxMRSize = 256 * units.KiB })
	p := s.peer.(*Peer)
	reg, _ := s.a.tr.regs.acquire(s.local.Addr(), 1<<20)
	defer reg.release()
	for _, c := range []struct {
		off, shift, n int
		want          []uint32
	}{
		{0, 0, 64 << 10, []uint32{64 << 10}},
		{0, 0, 80 << 10, []uint32{80 << 10}},
		{0, 0, 80<<10 + 1, []uint32{64 << 10, 16<<10 + 1}},
		{0, 0, 144 << 10, []uint32{64 << 10, 80 << 10}},
		{200 << 10, 0, 100 << 10, []uint32{56 << 10, 44 << 10}},
		{250 << 10, 3 << 10, 20 << 10, []uint32{3 << 10, 3 << 10, 14 << 10}},
	} {
		o := &op{b: &batch{p: p}, reg: reg, local: s.local.Addr() + uint64(c.off), remote: s.remote.Addr() + uint64(c.off+c.shift), len: uint64(c.n)}
		var got []uint32
		for o.cut < o.len {
			sl := p.cut(o)
			got = append(got, sl.len)
			if sl.addr+uint64(sl.len) > sl.local.addr+sl.local.len || sl.remote+uint64(sl.len) > p.r.buffers[sl.buf].end {
				t.Errorf("%+v: a slice crosses the end of its piece", c)
			}
			p.out--
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d bytes at %d: slices %v, want %v", c.n, c.off, got, c.want)
		}
	}
}

func TestConfig(t *testing.T) {
	c := defaultConfig()
	if err := c.Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	if c.sliceTimeout() != hangTimeout {
		t.Errorf("slice timeout %v", c.sliceTimeout())
	}
	for key, change := range map[string]func(*Config){
		"port": func(c *Config) { c.Port = 0 }, "gid_index": func(c *Config) { c.GIDIndex = 256 }, "mtu": func(c *Config) { c.MTU = 1500 },
		"traffic_class": func(c *Config) { c.TrafficClass = 256 }, "service_level": func(c *Config) { c.ServiceLevel = 16 },
		"qps_per_endpoint": func(c *Config) { c.QPs = 0 }, "max_work": func(c *Config) { c.MaxWork = -1 }, "slice_size": func(c *Config) { c.SliceSize = 1 },
		"retries": func(c *Config) { c.Retries = 128 }, "rail_pause": func(c *Config) { c.RailPause = 0 }, "max_mr_size": func(c *Config) { c.MaxMRSize = 0 },
		"endpoint_store": func(c *Config) { c.EndpointStore = "LRU" }, "relaxed_ordering": func(c *Config) { c.RelaxedOrdering = 3 },
		"peer_affinity": func(c *Config) { c.PeerAffinity = "x" }, "connect_pause": func(c *Config) { c.ConnectPause = -time.Second },
	} {
		c := defaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), key+": ") {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// TestVariables: every variable of upstream's RDMA transport sets a key, but for those of drivers that are not here.
func TestVariables(t *testing.T) {
	known := map[string]bool{}
	for f := range reflect.TypeFor[Config]().Fields() {
		for _, name := range strings.Split(f.Tag.Get("env"), ",") {
			known[name] = true
		}
	}
	for _, name := range strings.Fields(`MC_SLICE_TIMEOUT MC_RETRY_CNT MC_SLICE_SIZE MC_FRAGMENT_RATIO MC_NUM_CQ_PER_CTX
		MC_NUM_COMP_CHANNELS_PER_CTX MC_IB_PORT MC_GID_INDEX NCCL_IB_GID_INDEX MC_PKEY_INDEX MC_MAX_CQE_PER_CTX MC_MAX_EP_PER_CTX
		MC_NUM_QP_PER_EP MC_MAX_SGE MC_MAX_WR MC_MAX_INLINE MC_MTU MC_WORKERS_PER_CTX MC_MAX_MR_SIZE MC_MIN_REG_SIZE
		MC_AUTO_GID_MAX_RETRIES MC_RDMA_RAIL_PAUSE_SECONDS MC_CONN_PAUSE_TTL_MS MC_ENABLE_DEST_DEVICE_AFFINITY
		MC_ENABLE_HCA_PEER_AFFINITY MC_NIC_PEER_AFFINITY MC_PATH_ROUNDROBIN MC_ENDPOINT_STORE_TYPE MC_IB_TC MC_IB_SL
		MC_IB_PCI_RELAXED_ORDERING MC_RDMA_BIND_ADDRESS MC_TE_FILTERS MC_ENABLE_PARALLEL_REG_MR MC_MAX_CONCURRENT_REG_MR
		MC_LOG_RDMA_SLICE_AFFINITY MC_TRACK_RDMA_POSTED_SLICES MC_CUSTOM_TOPO_JSON`) {
		if !known[name] {
			t.Errorf("no key has %s", name)
		}
	}
}

// TestLocate: memory that was touched is on some node, or the kernel does not tell.
func TestLocate(t *testing.T) {
	r := transporttest.NewRegion(t, 4096, transports.ReadWrite)
	r.Bytes()[0] = 1
	if l := locate(r.Bytes()); l != anywhere && !strings.HasPrefix(l, "cpu:") {
		t.Error(l)
	}
}
