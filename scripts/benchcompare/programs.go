package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/internal/procstat"
	"github.com/mooncake-agent/mooncake/internal/sidebyside"
)

// command binds the wheel to loopback.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := sidebyside.Command(ctx, name, args...)
	cmd.Env = append(cmd.Env, "MC_TCP_BIND_ADDRESS=127.0.0.1", "GLOG_logtostderr=1")
	return cmd
}

// runOurs measures a point with "mooncake bench transfer" against a target, "" for one of its own. with are processes
// that work for it.
func runOurs(ctx context.Context, p *plan, pt point, transport, target string, with ...int) (sample, error) {
	args := []string{"bench", "transfer", "--json", "--transport", transport, "--op", pt.op, "--block", strconv.FormatUint(pt.block, 10),
		"--batch", strconv.Itoa(pt.batch), "--threads", strconv.Itoa(pt.threads), "--duration", p.seconds.String()}
	if target != "" {
		args = append(args, "--target", target)
	}
	r, err := sidebyside.Measure(command(ctx, p.mooncake, args...), with...)
	if err != nil {
		return sample{}, err
	}
	s, err := parseOurs(r.Stdout)
	if err != nil {
		return s, fmt.Errorf("mooncake bench: %w: %s", err, sidebyside.Tail(r.Stderr))
	}
	s.foreign = r.Foreign
	return s, nil
}

func parseOurs(out string) (sample, error) {
	var r struct {
		BytesPerSecond  float64 `json:"bytes_per_second"`
		CPUSecondsPerGB float64 `json:"cpu_seconds_per_gb"`
		Errors          uint64
		LatencyUS       struct{ P50, P99 float64 } `json:"latency_us"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return sample{}, err
	}
	if r.Errors > 0 || r.BytesPerSecond <= 0 {
		return sample{}, fmt.Errorf("%d failed batches, %v bytes/s", r.Errors, r.BytesPerSecond)
	}
	return sample{gbps: r.BytesPerSecond / 1e9, p50: r.LatencyUS.P50, p99: r.LatencyUS.P99, cpuPerGB: r.CPUSecondsPerGB}, nil
}

// target is a running engine that others move bytes to and from.
type target struct {
	name    string
	program *sidebyside.Program
	stdin   io.Closer // of ours, whose end ends it
}

func (t *target) pid() int { return t.program.PID() }

func (t *target) stop() {
	if t.stdin != nil {
		_ = t.stdin.Close()
	}
	t.program.Stop()
}

// startTarget starts a target of ours.
func startTarget(ctx context.Context, p *plan, transport string, need uint64) (*target, error) {
	cmd := command(ctx, p.mooncake, "bench", "transfer-target", "--transport", transport, "--bytes", strconv.FormatUint(need, 10))
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out := &lines{}
	cmd.Stdout = out
	var info struct{ Segment string }
	pr, err := sidebyside.Start(ctx, cmd, func() error { return json.Unmarshal([]byte(out.first()), &info) })
	if err != nil {
		return nil, err
	}
	return &target{name: info.Segment, program: pr, stdin: in}, nil
}

// lines keeps what a program writes.
type lines struct {
	mu sync.Mutex
	b  []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	return len(p), nil
}

func (l *lines) first() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	line, _, _ := strings.Cut(string(l.b), "\n")
	return line
}

// wheel is a running target of the wheel's benchmark.
type wheel struct {
	target

	version, bench string
}

// findWheel looks for the wheel's benchmark.
func findWheel(ctx context.Context, p *plan) (*wheel, error) {
	out, err := command(ctx, p.wheelPython, "-c",
		"import os, mooncake, importlib.metadata as m; print(os.path.dirname(mooncake.__file__)); print(m.version('mooncake-transfer-engine-non-cuda'))").Output()
	found := strings.Fields(string(out))
	if err != nil || len(found) != 2 {
		return nil, fmt.Errorf("%s has no Mooncake wheel: %w", p.wheelPython, errors.Join(err, exitText(err)))
	}
	return &wheel{bench: filepath.Join(found[0], "transfer_engine_bench"), version: found[1]}, nil
}

// startWheel starts a target with that much memory.
func startWheel(ctx context.Context, p *plan, need uint64) (*wheel, error) {
	w, err := findWheel(ctx, p)
	if err != nil {
		return nil, err
	}
	return w, w.startTarget(ctx, command(ctx, w.bench, "--mode=target", "--protocol=tcp", "--metadata_server=P2PHANDSHAKE", "--local_server_name=127.0.0.1",
		"--threads=1", "--batch_size=1", fmt.Sprintf("--buffer_size=%d", max(need, 64<<20))))
}

// startTarget starts the wheel's benchmark as a target.
func (w *wheel) startTarget(ctx context.Context, cmd *exec.Cmd) error {
	// Its name is in the log, on stderr, which sidebyside.Start would keep for itself.
	log, err := logOf(cmd)
	if err != nil {
		return err
	}
	name := make(chan string, 1)
	go func() {
		for sc := bufio.NewScanner(log); sc.Scan(); { // to the end, or the program would block
			if m := listening.FindStringSubmatch(sc.Text()); m != nil && len(name) == 0 && w.name == "" {
				select {
				case name <- m[1]:
				default:
				}
			}
		}
	}()
	got := ""
	w.program, err = sidebyside.Start(ctx, cmd, func() error {
		select {
		case got = <-name:
			return nil
		default:
			return errors.New("it did not say where it listens")
		}
	})
	w.name = got
	return err
}

// logOf has a program's stderr written to a pipe by the shell, because [sidebyside.Start] takes stderr.
func logOf(cmd *exec.Cmd) (io.Reader, error) {
	cmd.Args = append([]string{"sh", "-c", `exec "$0" "$@" 2>&1`, cmd.Path}, cmd.Args[1:]...)
	var err error
	if cmd.Path, err = exec.LookPath("sh"); err != nil {
		return nil, err
	}
	return cmd.StdoutPipe()
}

func exitText(err error) error {
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		return errors.New(sidebyside.Tail(string(ee.Stderr)))
	}
	return nil
}

var (
	listening  = regexp.MustCompile(`listening on (\S+:\d+)`)
	throughput = regexp.MustCompile(`Test completed: duration [\d.]+, batch count \d+, throughput ([\d.]+) GB/s`)
)

// run measures a point with the wheel's benchmark against a target, with the processes that work for it: the wheel's own
// target if none is given.
func (w *wheel) run(ctx context.Context, p *plan, pt point, target string, with ...int) (sample, error) {
	if len(with) == 0 {
		with = []int{w.pid()}
	}
	return w.runAs(ctx, p, pt, target, []string{"--protocol=tcp", "--local_server_name=127.0.0.1"}, with...)
}

// runAs measures with further arguments, those of the protocol.
func (w *wheel) runAs(ctx context.Context, p *plan, pt point, target string, args []string, with ...int) (sample, error) {
	args = append([]string{"--mode=initiator", "--metadata_server=P2PHANDSHAKE", "--segment_id=" + target, "--operation=" + pt.op,
		"--report_unit=GB", "--report_precision=6", fmt.Sprintf("--buffer_size=%d", max(pt.need(), 1<<20)), fmt.Sprintf("--batch_size=%d", pt.batch),
		fmt.Sprintf("--block_size=%d", pt.block), fmt.Sprintf("--threads=%d", pt.threads), fmt.Sprintf("--duration=%d", int(p.seconds.Seconds()))}, args...)
	r, err := sidebyside.Measure(command(ctx, w.bench, args...), with...)
	if err != nil {
		return sample{}, err
	}
	m := throughput.FindStringSubmatch(r.Stderr)
	if m == nil {
		return sample{}, fmt.Errorf("transfer_engine_bench printed no result: %s", sidebyside.Tail(r.Stderr))
	}
	rate, err := strconv.ParseFloat(m[1], 64)
	if err != nil || rate <= 0 {
		return sample{}, fmt.Errorf("transfer_engine_bench printed %q", m[0])
	}
	return sample{gbps: rate, cpuPerGB: r.CPU.Seconds() / (rate * p.seconds.Seconds()), foreign: r.Foreign}, nil
}

// iperf measures TCP streams over loopback with buffers of 1 MiB.
func iperf(ctx context.Context, d time.Duration, n int) (sample, error) {
	port, err := sidebyside.FreePort()
	if err != nil {
		return sample{}, err
	}
	at := strconv.Itoa(port)
	server := command(ctx, "iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", at)
	if err := server.Start(); err != nil {
		return sample{}, fmt.Errorf("iperf3 (Debian package iperf3): %w", err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	for deadline := time.Now().Add(5 * time.Second); ; {
		r, err := sidebyside.Measure(command(ctx, "iperf3", "-J", "-l", "1M", "-P", strconv.Itoa(n), "-c", "127.0.0.1", "-p", at, "-t", strconv.Itoa(int(d.Seconds()))), server.Process.Pid)
		notYet := strings.Contains(r.Stdout, "Connection refused") // which iperf3 may report with status 0
		if notYet && time.Now().Before(deadline) {
			select {
			case <-ctx.Done():
				return sample{}, ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		if r.Stdout == "" {
			return sample{}, err
		}
		rate, err := parseIperf(r.Stdout) // the server may have ended by now, which Measure does not like
		return sample{gbps: rate, foreign: r.Foreign}, err
	}
}

func parseIperf(out string) (float64, error) {
	var r struct {
		Error string
		End   struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return 0, fmt.Errorf("iperf3: %w", err)
	}
	if r.Error != "" || r.End.Received.BitsPerSecond <= 0 {
		return 0, fmt.Errorf("iperf3 reported no throughput: %s", sidebyside.Tail(out))
	}
	return r.End.Received.BitsPerSecond / 8e9, nil
}

// copier copies between two mappings.
type copier struct{ from, to []byte }

func newCopier(n uint64) (*copier, error) {
	c := &copier{}
	for _, m := range []*[]byte{&c.from, &c.to} {
		fd, err := unix.MemfdCreate("benchcompare", unix.MFD_CLOEXEC)
		if err == nil {
			err = unix.Ftruncate(fd, int64(n))
		}
		if err == nil {
			*m, err = unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
			err = errors.Join(err, unix.Close(fd))
		}
		if err != nil {
			c.close()
			return nil, err
		}
	}
	return c, nil
}

func (c *copier) close() {
	for _, m := range [][]byte{c.from, c.to} {
		if m != nil {
			_ = unix.Munmap(m)
		}
	}
}

// run copies as "bench transfer" moves: each block has its place, one after the other.
func (c *copier) run(ctx context.Context, p *plan, pt point) (sample, error) {
	busy, err := procstat.Busy()
	if err != nil {
		return sample{}, err
	}
	var took []float64 // ns
	n, bytes := int(pt.block), 0
	start := time.Now()
	for last := start; last.Sub(start) < p.seconds && ctx.Err() == nil; {
		for i := range pt.batch {
			copy(c.to[i*n:][:n], c.from[i*n:][:n])
		}
		now := time.Now()
		took = append(took, float64(now.Sub(last)))
		bytes += n * pt.batch
		last = now
	}
	wall := time.Since(start)
	after, err := procstat.Busy()
	if err != nil {
		return sample{}, err
	}
	slices.Sort(took)
	return sample{gbps: float64(bytes) / 1e9 / wall.Seconds(), p50: took[len(took)/2] / 1e3,
		foreign: max(0, (after-busy-wall).Seconds()/wall.Seconds())}, ctx.Err()
}

// idle is the processor time a second of engines with open connections and nothing to do.
type idle struct {
	wait        time.Duration
	ours, wheel float64
}

// idleCPU moves something to a target of each side and looks what that uses afterwards.
func idleCPU(ctx context.Context, p *plan, w *wheel) (idle, error) {
	own, err := startTarget(ctx, p, "tcp", 1<<20)
	if err != nil {
		return idle{}, err
	}
	defer own.stop()
	if _, err := runOurs(ctx, p, point{4096, "write", 1, 1}, "tcp", own.name); err != nil {
		return idle{}, err
	}
	cpu := func(pid int) float64 {
		s, err2 := procstat.Read(pid)
		err = errors.Join(err, err2)
		return s.CPU.Seconds()
	}
	out := idle{wait: 5 * time.Second}
	p.progress("idle engines, %v", out.wait)
	before, wheelBefore := cpu(own.pid()), cpu(w.pid())
	select {
	case <-ctx.Done():
		return out, ctx.Err()
	case <-time.After(out.wait):
	}
	out.ours, out.wheel = (cpu(own.pid())-before)/out.wait.Seconds(), (cpu(w.pid())-wheelBefore)/out.wait.Seconds()
	return out, err
}
