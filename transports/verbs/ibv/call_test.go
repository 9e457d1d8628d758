//go:build !noverbs

package ibv

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ebitengine/purego"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/transports/verbs/device"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMissingLibrary(t *testing.T) {
	_, err := load("libibverbs-of-nobody.so.1")
	if !errors.Is(err, device.ErrNotAvailable) || err.Error() != "libibverbs-of-nobody.so.1 not found: verbs not available" {
		t.Errorf("load of a missing library: %v", err)
	}
	_, err = load("libc.so.6")
	if !errors.Is(err, device.ErrNotAvailable) || !strings.Contains(err.Error(), "libc.so.6 has no function ibv_get_device_list") {
		t.Errorf("load of another library: %v", err)
	}
	file := filepath.Join(t.TempDir(), "broken.so")
	if err := os.WriteFile(file, []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = load(file)
	if !errors.Is(err, device.ErrNotAvailable) || !strings.Contains(err.Error(), "cannot be loaded") {
		t.Errorf("load of a file that is no library: %v", err)
	}
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		r     uintptr
		errno unix.Errno
		want  error
	}{
		{0, unix.EIO, nil},
		{1 << 32, 0, nil}, // the upper half of an int is not defined
		{uintptr(unix.EINVAL), 0, unix.EINVAL},
		{^uintptr(0), unix.ENOMEM, unix.ENOMEM},
		{^uintptr(int(unix.EBUSY) - 1), 0, unix.EBUSY},
	} {
		if err := status("x", c.r, c.errno); !errors.Is(err, c.want) {
			t.Errorf("status(%#x, %d) = %v, want %v", c.r, c.errno, err, c.want)
		}
	}
	if _, err := pointer("x", 0, 0); !errors.Is(err, errUnknown) {
		t.Errorf("no address and no errno: %v", err)
	}
}

// A chain arrives at the driver as it was given, and a driver that stops in the middle is understood.
func TestPost(t *testing.T) {
	work := []device.Work{
		{ID: 1, Write: true, Len: 10, LKey: 11, RKey: 12, Local: 1 << 40, Remote: 1 << 50},
		{ID: 2, Len: 20, LKey: 21, RKey: 22, Local: 1<<63 + 1, Remote: 7},
		{ID: 3, Write: true, RKey: 5},
	}
	refuse := uint64(0)
	var got []device.Work
	post := purego.NewCallback(func(qp, wr, bad uintptr) uintptr {
		if qp != 4711 {
			t.Errorf("queue pair %d", qp)
		}
		for got = nil; wr != 0; {
			w := at[cSendWR](wr)
			if w.ID == refuse {
				*at[uintptr](bad) = wr
				return uintptr(unix.ENOMEM)
			}
			if w.SendFlags != sendSignaled || w.Opcode != wrWrite && w.Opcode != wrRead {
				t.Errorf("work %d: flags %d, opcode %d", w.ID, w.SendFlags, w.Opcode)
			}
			g := device.Work{ID: w.ID, Write: w.Opcode == wrWrite, RKey: w.RKey, Remote: w.RemoteAddr}
			if w.NumSGE == 1 {
				s := at[cSGE](w.SGList)
				g.Local, g.Len, g.LKey = s.Addr, s.Length, s.LKey
			}
			got = append(got, g)
			wr = w.Next
		}
		return 0
	})
	q := &qp{dev: &dev{name: "test"}, num: 9, qp: 4711, post: post, bad: new(uintptr)}
	for _, n := range []int{3, 1, 2, 3} { // shorter chains after longer ones
		if acc, err := q.Post(work[:n]); acc != n || err != nil {
			t.Fatalf("Post of %d = %d, %v", n, acc, err)
		}
		if len(got) != n {
			t.Fatalf("%d arrived of %d", len(got), n)
		}
		for i := range got {
			if got[i] != work[i] {
				t.Errorf("work %d arrived as %+v, given %+v", i, got[i], work[i])
			}
		}
	}
	for i := range work {
		refuse = work[i].ID
		if n, err := q.Post(work); n != i || !errors.Is(err, unix.ENOMEM) {
			t.Errorf("refused at %d: %d, %v", i, n, err)
		}
	}
	q.qp = 0
	if n, err := q.Post(work); n != 0 || !errors.Is(err, device.ErrClosed) {
		t.Errorf("Post after Destroy = %d, %v", n, err)
	}
}

func TestPoll(t *testing.T) {
	left, next := 0, uint64(0)
	poll := purego.NewCallback(func(cq uintptr, n int32, wc uintptr) uintptr {
		if cq != 42 || n > pollBatch {
			t.Errorf("poll of queue %d for %d", cq, n)
		}
		if left < 0 {
			return uintptr(uint32(0xffff_fff4)) // -ENOMEM as an int
		}
		k := min(int(n), left)
		for i := range k {
			next++
			*at[cWC](wc + uintptr(i)*size[cWC]()) = cWC{ID: next, Status: uint32(device.StatusRetryExceeded), QPNum: 7, VendorErr: 129}
		}
		left -= k
		return uintptr(k)
	})
	c := &cq{dev: &dev{name: "test"}, cq: 42, poll: poll, wc: new([pollBatch]cWC)}
	dst := make([]device.Completion, 3*pollBatch)
	for _, n := range []int{0, 1, pollBatch, pollBatch + 1, 3 * pollBatch} {
		left = n
		first := next
		got, err := c.Poll(dst)
		if got != n || err != nil {
			t.Fatalf("Poll of %d = %d, %v", n, got, err)
		}
		for i, d := range dst[:got] {
			if want := (device.Completion{ID: first + uint64(i) + 1, Status: device.StatusRetryExceeded, QP: 7, Vendor: 129}); d != want {
				t.Fatalf("completion %d is %+v, want %+v", i, d, want)
			}
		}
	}
	left = -1
	if n, err := c.Poll(dst); n != 0 || !errors.Is(err, unix.ENOMEM) {
		t.Errorf("Poll of a lost queue = %d, %v", n, err)
	}
	c.cq = 0
	if _, err := c.Poll(dst); !errors.Is(err, device.ErrClosed) {
		t.Errorf("Poll after Close: %v", err)
	}
}

func TestGIDsOfSysfs(t *testing.T) {
	const dir = "class/infiniband/mlx5_0/ports/1/"
	sys := fstest.MapFS{
		dir + "gids/0":            {Data: []byte("fe80:0000:0000:0000:0002:c9ff:fe00:0001\n")},
		dir + "gids/1":            {Data: []byte("0000:0000:0000:0000:0000:0000:0000:0000\n")},
		dir + "gids/2":            {Data: []byte("0000:0000:0000:0000:0000:ffff:0a00:0001\n")},
		dir + "gid_attrs/types/0": {Data: []byte("IB/RoCE v1\n")},
		dir + "gid_attrs/ndevs/0": {Data: []byte("eth0\n")},
		dir + "gid_attrs/types/2": {Data: []byte("RoCE v2\n")},
		dir + "gid_attrs/ndevs/2": {Data: []byte("eth0\n")},
	}
	root := t.TempDir()
	if err := os.CopyFS(root, sys); err != nil {
		t.Fatal(err)
	}
	got, err := gidsOfSysfs(root, "mlx5_0", 1)
	if err != nil || len(got) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	if g := got[0]; g.Index != 0 || !g.GID.LinkLocal() || g.Type != device.GIDRoCEv1 || g.NetDev != "eth0" {
		t.Errorf("entry 0: %+v", g)
	}
	if g := got[1]; g.Index != 2 || g.GID.String() != "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01" || g.Type != device.GIDRoCEv2 {
		t.Errorf("entry 2: %+v", g)
	}
	if _, err := gidsOfSysfs(root, "mlx5_9", 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a device that is not there: %v", err)
	}
	if err := os.WriteFile(filepath.Join(root, dir, "gids/2"), []byte("fe80::1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := gidsOfSysfs(root, "mlx5_0", 1); err == nil || !strings.Contains(err.Error(), "GID 2 of mlx5_0 port 1") {
		t.Errorf("a broken entry: %v", err)
	}
}

func TestSpeed(t *testing.T) {
	for _, c := range []struct {
		width, speed uint8
		want         float64
	}{{2, 32, 100}, {2, 64, 200}, {2, 128, 400}, {1, 1, 2}, {0, 32, 0}, {2, 0, 0}} {
		if got := gbps(c.width, c.speed); got != c.want {
			t.Errorf("gbps(%d, %d) = %v, want %v", c.width, c.speed, got, c.want)
		}
	}
}

// What a post and a poll cost beyond what the driver does: here it does nothing.
func BenchmarkPostPoll(b *testing.B) {
	cc := compiler(b)
	dir := b.TempDir()
	src, so := filepath.Join(dir, "driver.c"), filepath.Join(dir, "driver.so")
	if err := os.WriteFile(src, []byte("int post(void *q, void *w, void **b) { return 0; }\nint poll(void *c, int n, void *w) { return 0; }\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	if out, err := exec.Command(cc, "-O2", "-shared", "-fPIC", "-o", so, src).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	h, err := purego.Dlopen(so, purego.RTLD_NOW)
	if err != nil {
		b.Fatal(err)
	}
	post, err := purego.Dlsym(h, "post")
	if err != nil {
		b.Fatal(err)
	}
	poll, err := purego.Dlsym(h, "poll")
	if err != nil {
		b.Fatal(err)
	}
	d := &dev{name: "test"}
	q := &qp{dev: d, qp: 1, post: post, bad: new(uintptr)}
	c := &cq{dev: d, cq: 1, poll: poll, wc: new([pollBatch]cWC)}
	work, dst := make([]device.Work, 1), make([]device.Completion, 64)
	b.Run("post", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			q.Post(work)
		}
	})
	b.Run("poll", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.Poll(dst)
		}
	})
}
