package rdmasys

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

func read(t *testing.T, file string) []Device {
	t.Helper()
	ds, err := Read(testenv.Tree(t, "testdata/"+file))
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

func TestReadRoCE(t *testing.T) {
	ds := read(t, "mlx5-roce.txtar")
	if len(ds) != 2 {
		t.Fatalf("%d devices", len(ds))
	}
	ll := netip.MustParseAddr("fe80::bace:f6ff:fe57:af0")
	v4 := netip.MustParseAddr("::ffff:10.10.2.11")
	want := Device{
		Name: "mlx5_1", Type: "MT4125", Firmware: "22.36.1010", PCI: "0000:af:00.0", NUMA: 1,
		Ports: []Port{{
			Num: 1, State: StateActive, StateName: "ACTIVE", Phys: "LinkUp", Link: Ethernet, Rate: 100e9, RateName: "100 Gb/sec (4X EDR)",
			GIDs: []GID{{0, ll, RoCEv1, "ens2f0np0"}, {1, ll, RoCEv2, "ens2f0np0"}, {2, v4, RoCEv1, "ens2f0np0"}, {3, v4, RoCEv2, "ens2f0np0"}},
		}},
	}
	if d := cmp.Diff(want, ds[1], cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Error(d)
	}
	p := &ds[1].Ports[0]
	if !p.Active() || ds[1].Software() || !slices.Equal(p.NetDevs(), []string{"ens2f0np0"}) {
		t.Errorf("%+v", ds[1])
	}
}

func TestReadInfiniBand(t *testing.T) {
	ds := read(t, "mlx5-ib.txtar")
	if len(ds) != 2 || len(ds[0].Problems)+len(ds[1].Problems) > 0 {
		t.Fatalf("%+v", ds)
	}
	up, down := ds[0].Ports[0], ds[1].Ports[0]
	if up.Link != InfiniBand || up.LID != 0x1a || up.Rate != 400e9 || up.GIDs[0].Type != IB || !up.Active() {
		t.Errorf("%+v", up)
	}
	if down.Active() || down.StateName != "DOWN" || down.Phys != "Polling" {
		t.Errorf("%+v", down)
	}
}

func TestReadSoftware(t *testing.T) {
	ds := read(t, "rxe.txtar")
	if len(ds) != 1 || !ds[0].Software() || ds[0].NUMA != -1 || len(ds[0].Problems) > 0 || len(ds[0].Ports) != 1 {
		t.Fatalf("%+v", ds)
	}
	p := &ds[0].Ports[0]
	c, err := Choose(p.GIDs, -1)
	if !p.Active() || p.Link != Ethernet || p.Rate != 2.5e9 || err != nil || c.Index != 1 || c.Class != Routable || c.NetDev != "d0" {
		t.Errorf("%+v: %v, %v", p, c, err)
	}
}

// Nonsense is told, file by file, and hides nothing else.
func TestReadBroken(t *testing.T) {
	ds := read(t, "broken.txtar")
	if len(ds) != 2 || ds[0].NUMA != -1 || len(ds[0].Ports) != 2 || !ds[0].Ports[1].Active() {
		t.Fatalf("%+v", ds)
	}
	all := strings.Join(ds[0].Problems, "\n")
	for _, want := range []string{"numa_node: \"north\"", "ports/zero", "ports/1/state", "ports/1/phys_state", "Token Ring", "ports/1/rate", "ports/1/lid", "gids/0: ", "group 1", "gids/x"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is missing in\n%s", want, all)
		}
	}
	if !strings.Contains(strings.Join(ds[1].Problems, "\n"), "ports: ") {
		t.Errorf("%q", ds[1].Problems)
	}
}

func TestReadNone(t *testing.T) {
	if ds, err := Read(fstest.MapFS{"sys/class/net/lo/mtu": {Data: []byte("65536\n")}}); ds != nil || err != nil {
		t.Errorf("%v, %v", ds, err)
	}
	if _, err := Read(fstest.MapFS{Root: {Data: []byte("a file")}}); err == nil {
		t.Error("a file instead of the list passes")
	}
}

func TestNamesAreInOrder(t *testing.T) {
	fsys := fstest.MapFS{}
	for _, n := range []string{"mlx5_10", "mlx5_2", "bnxt_re0", "mlx5_bond_0"} {
		fsys[Root+"/"+n] = &fstest.MapFile{Mode: fs.ModeDir}
	}
	ds, err := Read(fsys)
	var got []string
	for _, d := range ds {
		got = append(got, d.Name)
	}
	if want := []string{"bnxt_re0", "mlx5_2", "mlx5_10", "mlx5_bond_0"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
}

func gid(index int, typ GIDType, addr, netdev string) GID {
	return GID{Index: index, Addr: netip.AddrFrom16(netip.MustParseAddr(addr).As16()), Type: typ, NetDev: netdev}
}

// The order is upstream's (rdma_gid_probe_test.cpp has the same situations).
func TestRank(t *testing.T) {
	const ll, pub, priv = "fe80::1", "192.0.2.1", "10.1.2.3"
	for _, c := range []struct {
		name string
		gids []GID
		want []int
		best Class
	}{
		{"v2 with an address before link-local and v1", []GID{gid(0, RoCEv1, ll, "e"), gid(1, RoCEv2, ll, "e"), gid(2, RoCEv1, pub, "e"), gid(3, RoCEv2, pub, "e")}, []int{3, 1, 0}, Routable},
		{"an interface here before one elsewhere", []GID{gid(0, RoCEv2, pub, ""), gid(1, RoCEv2, pub, "e")}, []int{1, 0}, Routable},
		{"elsewhere before link-local", []GID{gid(0, RoCEv2, ll, "e"), gid(1, RoCEv2, pub, "")}, []int{1, 0}, RoutableElsewhere},
		{"private between", []GID{gid(0, RoCEv2, ll, "e"), gid(1, RoCEv2, priv, "e"), gid(2, RoCEv2, pub, "")}, []int{2, 1, 0}, RoutableElsewhere},
		{"172.16 and 100.64 are private, 192.168 and 172.32 are not", []GID{gid(0, RoCEv2, "172.16.0.1", "e"), gid(1, RoCEv2, "100.64.0.1", "e"), gid(2, RoCEv2, "192.168.0.1", "e"), gid(3, RoCEv2, "172.32.0.1", "e")}, []int{2, 3, 0, 1}, Routable},
		{"container networks last", []GID{gid(0, RoCEv2, pub, "docker0"), gid(1, RoCEv2, pub, "flannel.1"), gid(2, RoCEv2, priv, "e"), gid(3, RoCEv2, pub, "tunl0")}, []int{2, 0, 1, 3}, Private},
		{"private elsewhere before link-local elsewhere", []GID{gid(0, RoCEv2, ll, ""), gid(1, RoCEv2, priv, "")}, []int{1, 0}, PrivateElsewhere},
		{"only link-local elsewhere", []GID{gid(5, RoCEv2, ll, "")}, []int{5}, DegradedElsewhere},
		{"InfiniBand is no link-local address", []GID{gid(0, IB, ll, "")}, []int{0}, RoutableElsewhere},
		{"only v1: the first", []GID{gid(0, RoCEv1, ll, "e"), gid(2, RoCEv1, pub, "e")}, []int{0}, Fallback},
		{"order of index within a class", []GID{gid(7, RoCEv2, pub, "e"), gid(3, RoCEv2, pub, "e")}, []int{3, 7}, Routable},
		{"empty entries", []GID{gid(0, RoCEv2, "::", "e"), {Index: 1, Type: RoCEv2}, gid(-1, RoCEv2, pub, "e"), gid(2, UnknownGID, pub, "")}, []int{2}, Fallback},
		{"nothing", nil, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			ranked := Rank(c.gids)
			var got []int
			for _, r := range ranked {
				got = append(got, r.Index)
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("%v, want %v", got, c.want)
			}
			if len(ranked) > 0 && ranked[0].Class != c.best {
				t.Errorf("class %v, want %v", ranked[0].Class, c.best)
			}
			best, err := Choose(c.gids, -1)
			if (err == nil) != (len(c.want) > 0) || err == nil && best.Index != c.want[0] {
				t.Errorf("Choose: %v, %v", best, err)
			}
		})
	}
}

func TestChoosePinned(t *testing.T) {
	gids := []GID{gid(0, RoCEv1, "fe80::1", "e"), gid(1, RoCEv2, "fe80::1", "e"), gid(2, RoCEv1, "192.0.2.1", "e"), gid(3, RoCEv2, "192.0.2.1", "e")}
	for pinned, class := range map[int]Class{0: Fallback, 1: Degraded, 2: Fallback, 3: Routable} {
		if c, err := Choose(gids, pinned); err != nil || c.Index != pinned || c.Class != class {
			t.Errorf("%d: %v %v, %v", pinned, c, c.Class, err)
		}
	}
	if _, err := Choose(gids, 4); !errors.Is(err, ErrNoGID) || !strings.Contains(err.Error(), "entry 4") {
		t.Error(err)
	}
}

func TestEthernetMTU(t *testing.T) {
	for in, want := range map[int]int{9000: 4096, 4200: 4096, 4192: 4096, 4191: 2048, 2144: 2048, 1500: 1024, 1120: 1024, 1119: 512, 576: 256, 351: 0, 0: 0, -5: 0} {
		if got := EthernetMTU(in); got != want {
			t.Errorf("%d: %d, want %d", in, got, want)
		}
	}
}

func TestParseConfig(t *testing.T) {
	tree := testenv.Tree(t, "testdata/mlx5-ib.txtar")
	config := func(dev string) []byte {
		b, err := Bytes(tree, Root+"/"+dev+"/device/config")
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	off, err := ParseConfig(config("mlx5_0"))
	if want := (PCIe{ExtendedTags: true, MaxPayload: 256, MaxReadRequest: 512}); err != nil || off != want {
		t.Errorf("%+v, %v", off, err)
	}
	on, err := ParseConfig(config("mlx5_1"))
	if err != nil || !on.RelaxedOrdering {
		t.Errorf("%+v, %v", on, err)
	}
	change := func(at int, v byte) []byte {
		b := slices.Clone(config("mlx5_1"))
		b[at] = v
		return b
	}
	for _, c := range []struct {
		name string
		b    []byte
		want string
	}{
		{"cut", config("mlx5_1")[:64], ErrConfigHidden.Error()},
		{"short", config("mlx5_1")[:63], "has 64 bytes or more, this one 63"},
		{"gone", slices.Repeat([]byte{0xff}, 256), "does not answer"},
		{"no list", change(6, 0), "no list"},
		{"outside", change(0x34, 4), "outside of it"},
		{"not PCI Express", change(0x60, 1), "goes in a circle|no PCI Express"},
		{"circle", func() []byte { b := change(0x34, 0x48); b[0x49] = 0x48; return b }(), "goes in a circle"},
	} {
		_, err := ParseConfig(c.b)
		if err == nil || !slices.ContainsFunc(strings.Split(c.want, "|"), func(w string) bool { return strings.Contains(err.Error(), w) }) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// Whatever a kernel writes, reading ends, panics nowhere and yields only what has a meaning.
func FuzzRead(f *testing.F) {
	f.Add("4: ACTIVE", "Ethernet", "100 Gb/sec (4X EDR)", "fe80:0000:0000:0000:bace:f6ff:fe57:03b0", "RoCE v2", "eth0", "1", []byte{0x10, 0})
	f.Add("1: DOWN", "InfiniBand", "2.5 Gb/sec", "0000:0000:0000:0000:0000:0000:0000:0000", "IB/RoCE v1", "", "-1", make([]byte, 64))
	f.Add("", "", "", "", "", "", "", []byte{})
	f.Fuzz(func(t *testing.T, state, link, rate, gidText, typ, netdev, numa string, config []byte) {
		file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
		p := Root + "/mlx5_0/ports/1/"
		ds, err := Read(fstest.MapFS{
			p + "state": file(state), p + "phys_state": file(state), p + "link_layer": file(link), p + "rate": file(rate), p + "lid": file(numa),
			p + "gids/0": file(gidText), p + "gid_attrs/types/0": file(typ), p + "gid_attrs/ndevs/0": file(netdev),
			Root + "/mlx5_0/device/numa_node": file(numa), Root + "/mlx5_0/device/uevent": file(state),
		})
		if err != nil || len(ds) != 1 || len(ds[0].Ports) != 1 || ds[0].NUMA < -1 {
			t.Fatalf("%+v, %v", ds, err)
		}
		for _, c := range Rank(ds[0].Ports[0].GIDs) {
			if c.Addr.IsUnspecified() || c.String() == "" || c.Class.String() == "unknown" {
				t.Errorf("%+v", c)
			}
		}
		if c, err := ParseConfig(config); err == nil && (c.MaxPayload < 128 || c.MaxReadRequest < 128 || len(config) <= 64) {
			t.Errorf("%+v from %x", c, config)
		}
	})
}
