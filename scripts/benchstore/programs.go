package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/internal/procstat"
	"github.com/mooncake-agent/mooncake/internal/sidebyside"
)

const fillTimeout = 10 * time.Minute

// master is a running master.
type master struct {
	*sidebyside.Program
	addr, admin string
}

// startMaster runs the master of a side, with its defaults, and waits until it serves.
func (p *plan) startMaster(ctx context.Context, side int) (*master, error) {
	rpc, err := sidebyside.FreePort()
	if err != nil {
		return nil, err
	}
	admin, err := sidebyside.FreePort()
	if err != nil {
		return nil, err
	}
	args := []string{"--rpc_address=127.0.0.1", fmt.Sprintf("--rpc_port=%d", rpc), "--metrics_host=127.0.0.1", fmt.Sprintf("--metrics_port=%d", admin)}
	name := p.upstream
	if side == ours {
		name, args = p.mooncake, append(append([]string{"master"}, args...), p.masterFlags...)
	}
	m := &master{addr: fmt.Sprintf("127.0.0.1:%d", rpc), admin: fmt.Sprintf("http://127.0.0.1:%d", admin)}
	m.Program, err = sidebyside.Start(ctx, sidebyside.Command(ctx, name, args...), sidebyside.Listens(m.addr))
	return m, err
}

// measured runs cmd against m and returns its output and the processors that programs other than both used meanwhile.
func measured(cmd *exec.Cmd, m *master) (stdout string, foreign float64, err error) {
	r, err := sidebyside.Measure(cmd, m.PID())
	// Status 1 of ours only tells that operations failed, which the result says too.
	if ee := new(exec.ExitError); errors.As(err, &ee) && ee.ExitCode() == 1 && r.Stdout != "" {
		err = nil
	}
	return r.Stdout, r.Foreign, err
}

// result is the JSON of "mooncake bench store".
type result struct {
	OpsPerSecond float64 `json:"ops_per_second"`
	Errors       uint64
	LatencyUS    struct{ P50, P99 float64 } `json:"latency_us"`
	MasterCPU    float64                    `json:"master_cpu_us_per_op"`
}

// bench measures a point with our generator. A segment of 0 has room for everything.
func (p *plan) bench(ctx context.Context, m *master, pt point, keys, segment, value uint64) (sample, error) {
	out, foreign, err := measured(sidebyside.Command(ctx, p.mooncake, "bench", "store", "--json", "--master", m.addr, "--pid", strconv.Itoa(m.PID()),
		"--op", pt.op, "--connections", strconv.Itoa(pt.connections), "--keys", strconv.FormatUint(keys, 10),
		"--segment", strconv.FormatUint(segment, 10), "--value", strconv.FormatUint(value, 10), "--duration", p.duration.String()), m)
	if err != nil {
		return sample{}, err
	}
	s, err := parseResult(out)
	if err == nil && segment == 0 && s.errors > 0 {
		err = fmt.Errorf("%d failed operations", s.errors)
	}
	s.foreign = foreign
	return s, err
}

func parseResult(out string) (sample, error) {
	var r result
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return sample{}, fmt.Errorf("mooncake bench: %w", err)
	}
	if r.OpsPerSecond <= 0 {
		return sample{}, fmt.Errorf("mooncake bench measured %v operations a second", r.OpsPerSecond)
	}
	return sample{ops: r.OpsPerSecond, p50: r.LatencyUS.P50, p99: r.LatencyUS.P99, cpu: r.MasterCPU, errors: r.Errors}, nil
}

// The second generator: one thread, one request in flight per connection, JSON on standard output.

// loadgenOps are its names for our operations.
var loadgenOps = map[string]string{"exist": "exist", "get": "get", "putstart-end": "put", "batchexist": "batchexist", "batchget": "batchget"}

func (p *plan) buildLoadgen(ctx context.Context) (remove func(), err error) {
	dir, err := os.MkdirTemp("", "benchstore")
	if err != nil {
		return nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	p.loadgenBin = filepath.Join(dir, "loadgen")
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", p.loadgenBin, ".")
	cmd.Dir = p.loadgen
	if out, err := cmd.CombinedOutput(); err != nil {
		remove()
		return nil, fmt.Errorf("build %s: %w: %s", p.loadgen, err, sidebyside.Tail(string(out)))
	}
	return remove, nil
}

// hold has the second generator lend a segment to a master, until stop. It never gives one back, so one serves all
// points.
func (p *plan) hold(ctx context.Context, m *master) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := sidebyside.Command(ctx, p.loadgenBin, "-addr", m.addr, "-op", "hold")
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	stop = func() {
		cancel()
		_ = cmd.Wait()
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		stop()
		return nil, fmt.Errorf("second generator, hold: %w", err)
	}
	return stop, nil
}

// secondBench measures a point with the second generator: one process puts the keys, one measures.
func (p *plan) secondBench(ctx context.Context, m *master, pt point) (sample, error) {
	id := strconv.FormatInt(time.Now().UnixNano()&0x7fffffff, 10) // of the key space
	keys := strconv.FormatUint(p.keys, 10)
	args := []string{"-addr", m.addr, "-space", id, "-keys", keys}
	if out, err := sidebyside.Command(ctx, p.loadgenBin, append(args, "-op", "fill")...).CombinedOutput(); err != nil {
		return sample{}, fmt.Errorf("second generator, fill: %w: %s", err, sidebyside.Tail(string(out)))
	}
	out, foreign, err := measured(sidebyside.Command(ctx, p.loadgenBin, append(args, "-op", loadgenOps[pt.op], "-conns", strconv.Itoa(pt.connections),
		"-seconds", strconv.FormatFloat(p.duration.Seconds(), 'f', -1, 64), "-pid", strconv.Itoa(m.PID()))...), m)
	if err != nil {
		return sample{}, err
	}
	s, err := parseLoadgen(out)
	s.foreign = foreign
	// The keys must not be there for the next run.
	if out, e := sidebyside.Command(ctx, p.loadgenBin, append(args, "-op", "removeall")...).CombinedOutput(); e != nil && err == nil {
		err = fmt.Errorf("second generator, removeall: %w: %s", e, sidebyside.Tail(string(out)))
	}
	return s, err
}

func parseLoadgen(out string) (sample, error) {
	var r struct {
		Ops    float64 `json:"ops_per_s"`
		Errors uint64
		P50    float64 `json:"p50_us"`
		P99    float64 `json:"p99_us"`
		Pair50 float64 `json:"pair_p50_us"`
		Pair99 float64 `json:"pair_p99_us"`
		CPU    float64 `json:"master_cpu_pct"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return sample{}, fmt.Errorf("second generator: %w", err)
	}
	if r.Ops <= 0 || r.Errors > 0 {
		return sample{}, fmt.Errorf("second generator: %v operations a second, %d errors", r.Ops, r.Errors)
	}
	s := sample{ops: r.Ops, p50: r.P50, p99: r.P99, cpu: r.CPU / 100 * 1e6 / r.Ops}
	if r.Pair99 > 0 {
		s.p50, s.p99 = r.Pair50, r.Pair99
	}
	return s, nil
}

// footprint is the memory of a master.
type footprint struct {
	empty, filled, peak uint64 // resident bytes
	keysPerSecond       float64
	pause               string // longest stop-the-world pause, if the master tells
}

// settle is how long the memory of a filled master is watched.
const settle = 8 * time.Second

// fill puts many keys into a fresh master and looks at its memory while they are there.
func (p *plan) fill(ctx context.Context, m *master, keys uint64) (f footprint, err error) {
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	cmd := sidebyside.Command(ctx, p.mooncake, "bench", "store", "--json", "--hold", "--op", "fill", "--master", m.addr, "--keys", strconv.FormatUint(keys, 10))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return f, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return f, err
	}
	var log bytes.Buffer
	cmd.Stderr = &log
	s, err := procstat.Read(m.PID())
	if err != nil {
		return f, err
	}
	f.empty = s.RSS
	if err := cmd.Start(); err != nil {
		return f, err
	}
	line, readErr := bufio.NewReader(stdout).ReadString('\n')
	if readErr == nil {
		var r result
		if readErr = json.Unmarshal([]byte(line), &r); readErr == nil {
			f.keysPerSecond = r.OpsPerSecond
			readErr = f.watch(ctx, m)
		}
	}
	closeErr := stdin.Close()
	err = cmd.Wait()
	if err = errors.Join(readErr, closeErr, err); err != nil {
		return f, fmt.Errorf("fill: %w: %s", err, sidebyside.Tail(log.String()))
	}
	return f, nil
}

// watch follows the memory for a while.
func (f *footprint) watch(ctx context.Context, m *master) error {
	for end := time.Now().Add(settle); time.Now().Before(end); {
		s, err := procstat.Read(m.PID())
		if err != nil {
			return err
		}
		f.filled, f.peak = s.RSS, max(f.peak, s.RSS)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	f.pause = longestPause(ctx, m.admin)
	return nil
}

// longestPause reads Go's own metric; upstream's master has none.
func longestPause(ctx context.Context, admin string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/metrics", nil)
	if err != nil {
		return ""
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return ""
	}
	return parsePause(string(b))
}

func parsePause(metrics string) string {
	for line := range strings.Lines(metrics) {
		if v, ok := strings.CutPrefix(line, `go_gc_duration_seconds{quantile="1"} `); ok {
			if s, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil {
				return fmt.Sprintf("%.2f ms", s*1000)
			}
		}
	}
	return ""
}
