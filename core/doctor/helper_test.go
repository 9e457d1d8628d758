package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"path"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Recorded trees of RDMA devices; "" is a machine without.
const (
	none    = ""
	roce    = "mlx5-roce.txtar"
	ib      = "mlx5-ib.txtar"
	defects = "roce-defects.txtar"
	rxe     = "rxe.txtar" // a recording
	broken  = "broken.txtar"
)

// healthy is a machine on which everything is fine for a node that asks for nothing special.
func healthy(t testing.TB, devices string) *Host {
	t.Helper()
	files := []string{"testdata/host.txtar"}
	if devices != none {
		files = append(files, path.Join("../../internal/rdmasys/testdata", devices))
	}
	tree := testenv.Tree(t, files...)
	for at, inode := range map[string]string{"777/fd/9": "40001", "4242/fd/6": "50001", "4242/fd/5": "50000"} {
		tree["proc/"+at] = &fstest.MapFile{Data: []byte("socket:[" + inode + "]"), Mode: fs.ModeSymlink}
	}
	return &Host{
		FS: tree,
		Kernel: Kernel{
			Rlimit:    func(int) (uint64, error) { return unix.RLIM_INFINITY, nil },
			Available: func() (uint64, error) { return 470 << 30, nil },
			Adjtimex:  func() (unix.Timex, error) { return unix.Timex{Maxerror: 1500}, nil },
			Addrs: func() ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.10.1.11"), netip.MustParseAddr("fe80::1%eth0")}, nil
			},
		},
		Network: Network{
			Dial: func(ctx context.Context, addr string) (net.Conn, error) {
				return nil, errors.New("dial " + addr + ": no network in tests")
			},
			Probe:    func(context.Context, string, int) error { return errors.New("no network in tests") },
			Segments: func(net.Conn) (int, int) { return 0, 0 },
		},
		Setup: Setup{
			Segment: 64 * units.GiB, Buffer: units.GiB, HugePages: "off", NUMANode: -1, RDMA: RDMA{GID: -1, Wanted: devices != none},
			Ranges: []Range{{"transfer.rpc_port_min to rpc_port_max", units.PortRange{Min: 15000, Max: 17000}, 2}},
			Listen: []Listener{{"admin.listen", "127.0.0.1:9004"}},
		},
	}
}

// tree is the host's file system, to be changed.
func (h *Host) tree() fstest.MapFS { return h.FS.(fstest.MapFS) }

func (h *Host) put(name, text string) { h.tree()[name] = &fstest.MapFile{Data: []byte(text)} }

func (h *Host) rlimit(v uint64) {
	h.Kernel.Rlimit = func(int) (uint64, error) { return v, nil }
}

// situation is one row of the tables below: a machine, what is different about it, and what a check says.
type situation struct {
	name    string
	devices string
	change  func(*Host)
	want    Level // "" = does not apply
	seen    []string
	advice  []string
}

func try(t *testing.T, run func(context.Context, *Host) Result, rows []situation) {
	t.Helper()
	for _, s := range rows {
		t.Run(s.name, func(t *testing.T) {
			h := healthy(t, s.devices)
			if s.change != nil {
				s.change(h)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r := run(ctx, h)
			if r.Level != s.want {
				t.Fatalf("%q, want %q\nseen: %s\nadvice: %s", r.Level, s.want, r.Seen, r.Advice)
			}
			for _, w := range s.seen {
				if !strings.Contains(r.Seen, w) {
					t.Errorf("seen lacks %q:\n%s", w, r.Seen)
				}
			}
			for _, w := range s.advice {
				if !strings.Contains(r.Advice, w) {
					t.Errorf("advice lacks %q:\n%s", w, r.Advice)
				}
			}
			if (r.Level == Warn || r.Level == Fail) != (r.Advice != "") {
				t.Errorf("%s with the advice %q: what is wrong needs advice, what is fine none", r.Level, r.Advice)
			}
			if r.Level != "" && r.Seen == "" {
				t.Error("nothing seen")
			}
		})
	}
}
