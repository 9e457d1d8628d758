package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/internal/sidebyside"
)

// rdmaHost is the address of the device rxe0 in the machine of rxe-vm.sh.
const (
	rdmaHost   = "192.0.2.1"
	rdmaDevice = "rxe0"
)

// measureRDMA runs inside the soft-RoCE machine: "make bench-rdma" takes it there.
func measureRDMA(ctx context.Context, p *plan) (string, []float64, error) {
	points := p.pointsOr("64KiBx64,1MiBx8")
	gid, err := gidIndex(os.DirFS("/sys/class/infiniband/" + rdmaDevice + "/ports/1/gids"))
	if err != nil {
		return "", nil, err
	}
	w, err := startRDMAWheel(ctx, p, maxNeed(points))
	if err != nil {
		return "", nil, err
	}
	defer w.stop()
	own, err := startRDMATarget(ctx, p, maxNeed(points))
	if err != nil {
		return "", nil, err
	}
	defer own.stop()
	got, foreign, err := p.repeat(points, func(int) error { return nil },
		func(pt point) (sample, error) { return runPerftest(ctx, p, pt, gid) },
		func(pt point) (sample, error) {
			return runOurs(ctx, p, pt, "verbs", own.name, own.pid())
		},
		func(pt point) (sample, error) { return w.runRDMA(ctx, p, pt) })
	if err != nil {
		return "", nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Wheel %s; perftest is ib_write_bw or ib_read_bw.\n\n", w.version)
	b.WriteString("| block | op | batch | ours MB/s | perftest MB/s | wheel MB/s | ours / perftest | ours / wheel | ours p50 / p99 us |\n" + strings.Repeat("|---", 9) + "|\n")
	mbps := func(ss []sample) string {
		v := pick(ss, gbps)
		for i := range v {
			v[i] *= 1e3
		}
		return fmt.Sprintf("%.1f %s", sidebyside.Median(v), sidebyside.Runs(v, "%.1f"))
	}
	for i, pt := range points {
		perf, o, t := got[i][0], got[i][1], got[i][2]
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %s | %s | %s | %s | %.0f / %.0f |\n", blockName(pt.block), pt.op, pt.batch, mbps(o), mbps(perf), mbps(t),
			ratio(pick(o, gbps), pick(perf, gbps)), ratio(pick(o, gbps), pick(t, gbps)), med(o, p50), med(o, p99))
	}
	return b.String(), foreign, nil
}

// gidIndex is the first entry that maps an IPv4 address.
func gidIndex(gids fs.FS) (string, error) {
	for i := range 16 {
		b, err := fs.ReadFile(gids, strconv.Itoa(i))
		if err != nil {
			return "", err
		}
		if a, err := netip.ParseAddr(strings.TrimSpace(string(b))); err == nil && a.Is4In6() {
			return strconv.Itoa(i), nil
		}
	}
	return "", errors.New("no IPv4 address in the GID table of " + rdmaDevice)
}

// runPerftest moves blocks of a point with as many outstanding as its batch.
func runPerftest(ctx context.Context, p *plan, pt point, gid string) (sample, error) {
	// A run of about p.seconds, at what soft-RoCE on emulated processors does.
	const rate = 40e6
	n := max(16, int(rate*p.seconds.Seconds()/float64(pt.block)))
	args := []string{"-d", rdmaDevice, "-x", gid, "-s", strconv.FormatUint(pt.block, 10), "-n", strconv.Itoa(n), "-t", strconv.Itoa(pt.batch), "-F"}
	name := "ib_" + pt.op + "_bw"
	port, err := sidebyside.FreePort()
	if err != nil {
		return sample{}, err
	}
	args = append(args, "-p", strconv.Itoa(port))
	server := command(ctx, name, args...)
	if err := server.Start(); err != nil {
		return sample{}, fmt.Errorf("%s (Debian package perftest): %w", name, err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	for deadline := time.Now().Add(60 * time.Second); ; {
		out, err := command(ctx, name, append(args, rdmaHost)...).Output()
		if err == nil {
			mib, err := parsePerftest(string(out))
			return sample{gbps: mib * (1 << 20) / 1e9}, err
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return sample{}, fmt.Errorf("%s: %w: %s", name, errors.Join(err, exitText(err)), sidebyside.Tail(string(out)))
		}
		select { // the server does not listen yet
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
}

var perftestLine = regexp.MustCompile(`(?m)^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$`)

// parsePerftest finds the average in MiB/s.
func parsePerftest(out string) (float64, error) {
	m := perftestLine.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("perftest printed no result: %s", sidebyside.Tail(out))
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err == nil && v <= 0 {
		err = fmt.Errorf("perftest measured %s MB/s", m[1])
	}
	return v, err
}

// startRDMATarget starts a target of ours on the RDMA device.
func startRDMATarget(ctx context.Context, p *plan, need uint64) (*target, error) {
	return startTarget(ctx, p, "verbs", need)
}

func startRDMAWheel(ctx context.Context, p *plan, need uint64) (*wheel, error) {
	w, err := findWheel(ctx, p)
	if err != nil {
		return nil, err
	}
	cmd := command(ctx, w.bench, "--mode=target", "--protocol=rdma", "--device_name="+rdmaDevice, "--metadata_server=P2PHANDSHAKE",
		"--local_server_name="+rdmaHost, "--threads=1", "--batch_size=1", fmt.Sprintf("--buffer_size=%d", max(need, 1<<20)))
	return w, w.startTarget(ctx, cmd)
}

func (w *wheel) runRDMA(ctx context.Context, p *plan, pt point) (sample, error) {
	return w.runAs(ctx, p, pt, w.name, []string{"--protocol=rdma", "--device_name=" + rdmaDevice, "--local_server_name=" + rdmaHost}, w.pid())
}
