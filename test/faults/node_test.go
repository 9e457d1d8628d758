package faults

import (
	"bufio"
	"crypto/sha3"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/internal/testenv/rawte"
)

// soon bounds one step on a busy two-core machine; prompt bounds what must not wait for anybody's
// five-second deadline.
const (
	soon   = 60 * time.Second
	prompt = 3 * time.Second
)

// victim is a node under attack.
type victim struct {
	*testenv.Node
	t    *testing.T
	desc *rawte.Desc
}

func startVictim(t *testing.T, c testenv.Config, env ...string) *victim {
	t.Helper()
	n := testenv.StartNode(t, c, env...)
	return &victim{n, t, open(t, n.Segment)}
}

func open(t *testing.T, segment string) *rawte.Desc {
	t.Helper()
	d, err := rawte.Open(segment, soon)
	if err != nil {
		t.Fatalf("open %s: %v", segment, err)
	}
	if len(d.Buffers) == 0 {
		t.Fatalf("%s publishes no buffer", segment)
	}
	return d
}

func (v *victim) base() uint64 { return v.desc.Buffers[0].Addr }
func (v *victim) size() uint64 { return v.desc.Buffers[0].Length }

// dial opens a data connection of which every step must end within soon.
func (v *victim) dial() *rawte.Data {
	v.t.Helper()
	d, err := rawte.DialData(v.desc.DataAddr(), soon)
	if err != nil {
		v.t.Fatalf("data port: %v\n%s", err, v.Stderr())
	}
	v.t.Cleanup(func() { d.Close() })
	return d
}

// serves proves that the node still does its work for others: a probe and a write with read-back,
// each prompt.
func (v *victim) serves() {
	v.t.Helper()
	if err := v.tryServe(); err != nil {
		v.t.Fatalf("%v\n%s", err, v.Stderr())
	}
}

func (v *victim) tryServe() error {
	begin := time.Now()
	if reply, err := rawte.Call(v.Segment, soon, rawte.Probe, "{}\n"); err != nil || !strings.Contains(reply, "success") {
		return fmt.Errorf("probe: %q, %w", reply, err)
	}
	probed := time.Since(begin)
	d, err := rawte.DialData(v.desc.DataAddr(), soon)
	if err != nil {
		return err
	}
	defer d.Close()
	want, got := pattern(fmt.Sprint(begin.UnixNano()), 5000), make([]byte, 5000)
	if err := d.WriteAt(want, v.base()); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := d.ReadAt(got, v.base()); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if string(got) != string(want) {
		return fmt.Errorf("read other bytes than written")
	}
	if took := time.Since(begin); took > prompt {
		return fmt.Errorf("probe, write and read took %v (probe %v)", took, probed)
	}
	return nil
}

// pattern is the first n bytes of the SHAKE-128 stream of seed.
func pattern(seed string, n int) []byte {
	b := make([]byte, n)
	h := sha3.NewSHAKE128()
	h.Write([]byte(seed))
	h.Read(b)
	return b
}

// files lists the open file descriptors of the node, after a first use of its services has opened
// what it keeps.
func (v *victim) files() []string {
	v.t.Helper()
	v.serves()
	return v.list()
}

func (v *victim) list() []string {
	v.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", v.PID())
	fds, err := os.ReadDir(dir)
	if err != nil {
		v.t.Fatal(err)
	}
	var names []string
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil {
			names = append(names, to)
		}
	}
	return names
}

// filesBackTo waits until the node has closed what it opened for clients that are gone.
func (v *victim) filesBackTo(before []string) {
	v.t.Helper()
	testenv.Eventually(v.t, soon, func() error {
		if got := v.list(); len(got) > len(before) {
			return fmt.Errorf("%d open files, %d before:\n%q\n%q", len(got), len(before), got, before)
		}
		return nil
	})
}

// metric is the sum of all series of a metric whose labels contain the given text.
func (v *victim) metric(name, labels string) float64 {
	v.t.Helper()
	r, err := http.Get(v.Admin + "/metrics")
	if err != nil {
		v.t.Fatal(err)
	}
	defer r.Body.Close()
	sum, found := 0.0, false
	for s := bufio.NewScanner(r.Body); s.Scan(); {
		series, value, ok := strings.Cut(s.Text(), " ")
		if family, l, _ := strings.Cut(series, "{"); !ok || family != name || !strings.Contains(l, labels) {
			continue
		}
		x, err := strconv.ParseFloat(value, 64)
		if err != nil {
			v.t.Fatalf("metrics: %q", s.Text())
		}
		sum, found = sum+x, true
	}
	if !found {
		return 0
	}
	return sum
}
