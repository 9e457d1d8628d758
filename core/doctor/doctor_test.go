package doctor

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"
)

func levels(r *Report) map[string]Level {
	out := map[string]Level{}
	for _, c := range r.Checks {
		out[c.Name] = c.Result
	}
	return out
}

// A whole report of each recorded machine: which checks apply, and how they end.
func TestReports(t *testing.T) {
	machine := []string{"config", "rdma-devices", "numa", "memlock", "huge-pages", "memory", "files", "ports", "outgoing-ports", "kernel", "clock", "metadata"}
	rdma := []string{"link-layer", "gid", "mtu", "pci"}
	for _, c := range []struct {
		name, devices string
		checks        []string
		notFine       map[string]Level
	}{
		{"none", none, machine, map[string]Level{"ports": Warn}},
		{"RoCE", roce, append(slices.Clone(machine), rdma...), map[string]Level{"ports": Warn, "huge-pages": Warn}},
		{"InfiniBand", ib, append(slices.Clone(machine), rdma...), map[string]Level{"ports": Warn, "huge-pages": Warn, "rdma-devices": Warn, "mtu": Warn, "pci": Warn}},
		{"defects", defects, append(slices.Clone(machine), rdma...), map[string]Level{"ports": Warn, "huge-pages": Warn, "rdma-devices": Warn, "gid": Warn, "mtu": Warn, "numa": Warn}},
		{"soft-RoCE", rxe, append(slices.Clone(machine), "link-layer", "gid", "mtu"), map[string]Level{"ports": Warn, "huge-pages": Warn}},
		{"broken", broken, machine, map[string]Level{"ports": Warn, "rdma-devices": Warn}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := healthy(t, c.devices)
			r := Run(t.Context(), h, Checks(&h.Setup), time.Minute)
			got := levels(r)
			if len(got) != len(c.checks) {
				t.Errorf("%d checks, want %d: %v", len(got), len(c.checks), got)
			}
			for _, name := range c.checks {
				want := c.notFine[name]
				if want == "" {
					want = Pass
				}
				if got[name] != want {
					t.Errorf("%s: %q, want %q", name, got[name], want)
				}
			}
			if r.Worst() != Warn || r.Count(Warn) != len(c.notFine) {
				t.Errorf("worst %v, %d warnings", r.Worst(), r.Count(Warn))
			}
		})
	}
}

func TestReportJSON(t *testing.T) {
	b, err := json.Marshal(&Report{Checks: []Line{{"gid", Warn, "entry 0", "set it"}}})
	if want := `{"checks":[{"name":"gid","result":"warn","seen":"entry 0","advice":"set it"}]}`; err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
	if b, _ := json.Marshal(Run(t.Context(), &Host{}, nil, time.Second)); string(b) != `{"checks":[]}` {
		t.Errorf("%s", b)
	}
}

func TestWorst(t *testing.T) {
	r := &Report{}
	for _, l := range []Level{Pass, Warn, Pass, Fail, Warn} {
		r.Checks = append(r.Checks, Line{Result: l})
	}
	if (&Report{}).Worst() != Pass || (&Report{Checks: r.Checks[:3]}).Worst() != Warn || r.Worst() != Fail || r.Count(Warn) != 2 {
		t.Errorf("%v", r.Worst())
	}
}

// A check that measures has the machine for itself, and one that hangs ends with its time.
func TestRunOrderAndTime(t *testing.T) {
	running := make(chan struct{}, 10)
	waits := func(ctx context.Context, _ *Host) Result {
		running <- struct{}{}
		<-ctx.Done()
		<-running
		return Result{Level: Fail, Seen: "no answer\x1b[31m\nin time"}
	}
	alone := func(ctx context.Context, _ *Host) Result {
		if len(running) > 0 {
			return Result{Level: Fail, Seen: "something runs beside it"}
		}
		return Result{Level: Pass, Seen: "alone"}
	}
	r := Run(t.Context(), &Host{}, []Check{{Name: "m", Alone: true, Run: alone}, {Name: "a", Run: waits}, {Name: "b", Run: waits, Timeout: time.Millisecond}}, 20*time.Millisecond)
	want := []Line{{"m", Pass, "alone", ""}, {"a", Fail, "no answer?[31m in time", ""}, {"b", Fail, "no answer?[31m in time", ""}}
	if !slices.Equal(r.Checks, want) {
		t.Errorf("%+v", r.Checks)
	}
}

func TestOnly(t *testing.T) {
	s := &Setup{Baseline: &Baseline{Transports: []string{"tcp", "shm"}}}
	names := func(cs []Check, err error) (out []string) {
		for _, c := range cs {
			out = append(out, c.Name)
		}
		if err != nil {
			out = append(out, err.Error())
		}
		return out
	}
	if got := names(Only(Checks(s), []string{"mtu", "gid"})); !slices.Equal(got, []string{"gid", "mtu"}) {
		t.Errorf("%v", got)
	}
	if got := names(Only(Checks(s), []string{"baseline"})); !slices.Equal(got, []string{"baseline-tcp", "baseline-shm"}) {
		t.Errorf("%v", got)
	}
	if got := names(Only(Checks(s), []string{"gids"})); len(got) != 1 || !strings.Contains(got[0], `no check "gids"; there are: config`) {
		t.Errorf("%v", got)
	}
	name := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	seen := map[string]bool{}
	for _, c := range Checks(s) {
		if !name.MatchString(c.Name) || seen[c.Name] || c.About == "" {
			t.Errorf("%+v", c)
		}
		seen[c.Name] = true
	}
}

func TestConfigCheck(t *testing.T) {
	try(t, checkConfig, []situation{
		{"none", none, nil, Pass, []string{"no file"}, nil},
		{"fine", none, func(h *Host) { h.Setup.File = "/etc/mooncake.json" }, Pass, []string{"/etc/mooncake.json"}, nil},
		{"warnings", none, func(h *Host) { h.Setup.Warnings = []string{"c.json:1:2: x: no effect"} }, Warn, []string{"c.json:1:2"}, nil},
		{"errors", none, func(h *Host) { h.Setup.Problems = []string{"c.json:1:2: x: unknown"} }, Fail, []string{"c.json:1:2"}, []string{"config check"}},
	})
}

// This very machine: whatever it is, no check panics and each says something.
func TestThisMachine(t *testing.T) {
	h := Machine()
	h.Setup = healthy(t, none).Setup
	r := Run(t.Context(), h, Checks(&h.Setup), time.Minute)
	if len(r.Checks) < 10 {
		t.Errorf("%+v", r)
	}
	for _, c := range r.Checks {
		if c.Seen == "" || c.Result != Pass && c.Advice == "" {
			t.Errorf("%+v", c)
		}
	}
}

// Files of any content in every place that is read: no check panics, and each finding says what it is.
func FuzzChecks(f *testing.F) {
	tree := healthy(f, roce).tree()
	f.Add(tree["proc/net/tcp"].Data, tree["sys/class/infiniband/mlx5_0/device/config"].Data)
	f.Add(tree["proc/meminfo"].Data, tree["proc/self/status"].Data)
	f.Add([]byte("0-3,8"), []byte("1024\t65535"))
	f.Add([]byte("4: ACTIVE"), []byte("18446744073709551615"))
	f.Add([]byte(""), []byte("\xff\xfe\n\x00"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		h := healthy(t, roce)
		i := 0
		for name, file := range h.tree() {
			if i++; len(file.Data) > 0 && file.Mode.IsRegular() {
				h.tree()[name] = &fstest.MapFile{Data: [][]byte{a, b}[i%2]}
			}
		}
		h.Kernel.Adjtimex = func() (unix.Timex, error) { return unix.Timex{Maxerror: int64(len(a)) - 5}, nil }
		h.Setup.NUMANode, h.Setup.HugePages = len(b)%3-1, []string{"off", "2MB", "1GB"}[len(a)%3]
		for _, c := range Run(t.Context(), h, Checks(&h.Setup), time.Minute).Checks {
			if c.Seen == "" || c.Result != Pass && c.Advice == "" {
				t.Errorf("%+v", c)
			}
		}
		if _, err := parseDaemon("x", a); err == nil && len(a) == 0 {
			t.Error("an empty document passes")
		}
	})
}
