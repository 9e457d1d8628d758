package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/internal/sidebyside"
)

var sideNames = [sidebyside.Sides]string{"ours", "wheel"}

//go:embed wheel.py
var wheelScript []byte

// segmentSize has room for every point.
const segmentSize = 768 * mib

// store is one side: a master and a process that lends memory to it.
type store struct {
	p      *plan
	side   int
	master string
	dir    string // config of ours, script of the wheel
	node   string // name of the segment
	procs  []*sidebyside.Program
}

func (s *store) stop() {
	for i := len(s.procs) - 1; i >= 0; i-- {
		s.procs[i].Stop()
	}
	_ = os.RemoveAll(s.dir)
}

func (p *plan) startStore(ctx context.Context, side int) (_ *store, err error) {
	s := &store{p: p, side: side}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if s.dir, err = os.MkdirTemp("", "benchkv"); err != nil {
		return nil, err
	}
	if err = s.startMaster(ctx); err != nil {
		return nil, err
	}
	return s, s.startNode(ctx)
}

func (s *store) startMaster(ctx context.Context) error {
	rpc, err := sidebyside.FreePort()
	if err != nil {
		return err
	}
	admin, err := sidebyside.FreePort()
	if err != nil {
		return err
	}
	s.master = fmt.Sprintf("127.0.0.1:%d", rpc)
	name, args := s.p.upstream, []string{"--rpc_address=127.0.0.1", fmt.Sprintf("--rpc_port=%d", rpc), "--metrics_host=127.0.0.1", fmt.Sprintf("--metrics_port=%d", admin)}
	if s.side == sidebyside.Ours {
		name, args = s.p.mooncake, append([]string{"master"}, args...)
	}
	m, err := sidebyside.Start(ctx, sidebyside.Command(ctx, name, args...), sidebyside.Listens(s.master))
	if err == nil {
		s.procs = append(s.procs, m)
	}
	return err
}

// startNode starts the process that lends memory and learns the name of its segment.
func (s *store) startNode(ctx context.Context) error {
	var cmd *exec.Cmd
	if s.side == sidebyside.Ours {
		config := map[string]any{"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": segmentSize,
			"master_server_address": s.master, "transports": map[string]any{"shm": map[string]any{"enabled": s.p.transport == "shm"}}}
		b, err := json.Marshal(config)
		if err != nil {
			return err
		}
		if err := os.WriteFile(s.config(), b, 0o600); err != nil {
			return err
		}
		cmd = sidebyside.Command(ctx, s.p.mooncake, "node", "--config", s.config())
	} else {
		if err := os.WriteFile(s.script(), wheelScript, 0o600); err != nil {
			return err
		}
		cmd = s.wheel(ctx, "lend", s.master, strconv.Itoa(segmentSize))
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	line := make(chan []byte, 1)
	var first []byte
	started := make(chan struct{})
	go func() {
		<-started
		b, _ := bufio.NewReader(out).ReadBytes('\n') // an end without a line is seen by the end of the process
		line <- b
	}()
	node, err := sidebyside.Start(ctx, cmd, func() error {
		select {
		case <-started:
		default:
			close(started)
		}
		select {
		case first = <-line:
			return nil
		default:
			return errors.New("it has not said that it is ready")
		}
	})
	if err != nil {
		return err
	}
	s.procs = append(s.procs, node)
	if s.side == sidebyside.Theirs {
		return json.Unmarshal(first, &s.node)
	}
	var ready struct {
		Segment string
		Mounted bool
	}
	if err := json.Unmarshal(first, &ready); err != nil {
		return err
	}
	if s.node = ready.Segment; !ready.Mounted {
		return errors.New("the master has not accepted the memory")
	}
	return nil
}

func (s *store) config() string { return filepath.Join(s.dir, "config.json") }
func (s *store) script() string { return filepath.Join(s.dir, "wheel.py") }

func (s *store) wheel(ctx context.Context, args ...string) *exec.Cmd {
	cmd := sidebyside.Command(ctx, s.p.python, append([]string{"-u", s.script()}, args...)...)
	cmd.Env = append(cmd.Env, "MC_TCP_BIND_ADDRESS=127.0.0.1", "GLOG_minloglevel=1")
	return cmd
}

// measure measures a point.
func (s *store) measure(ctx context.Context, pt point) (sample, error) {
	lend := uint64(0)
	if pt.own {
		lend = pt.size*uint64(pt.objects()) + 64*mib
	}
	var cmd *exec.Cmd
	if s.side == sidebyside.Ours {
		args := []string{"bench", "kv", "--json", "--config", s.config(), "--set", "global_segment_size=0", "--master", s.master, "--op", pt.ourOp(),
			"--size", strconv.FormatUint(pt.size, 10), "--batch", strconv.Itoa(pt.batch), "--objects", strconv.Itoa(pt.objects()), "--duration", s.p.duration.String()}
		if pt.own {
			args = append(args, "--lend", strconv.FormatUint(lend, 10))
		} else {
			args = append(args, "--prefer", s.node)
		}
		cmd = sidebyside.Command(ctx, s.p.mooncake, args...)
	} else {
		o, err := json.Marshal(map[string]any{"master": s.master, "op": pt.op, "size": pt.size, "batch": pt.batch, "objects": pt.objects(),
			"seconds": s.p.duration.Seconds(), "prefer": s.node, "lend": lend})
		if err != nil {
			return sample{}, err
		}
		cmd = s.wheel(ctx, "bench", string(o))
	}
	pids := make([]int, len(s.procs))
	for i, p := range s.procs {
		pids[i] = p.PID()
	}
	r, err := sidebyside.Measure(cmd, pids...)
	if err != nil {
		return sample{}, err
	}
	got, err := parseResult(r.Stdout)
	if err != nil {
		return sample{}, fmt.Errorf("%w: %s", err, sidebyside.Tail(r.Stderr))
	}
	got.foreign = r.Foreign
	if pt.own {
		got.copied, err = plainCopy(pt.size, pt.objects(), s.p.duration/2)
	}
	return got, err
}

// parseResult reads the JSON that both sides print.
func parseResult(out string) (sample, error) {
	var r struct {
		BytesPerSecond float64                    `json:"bytes_per_second"`
		LatencyUS      struct{ P50, P99 float64 } `json:"latency_us"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return sample{}, fmt.Errorf("result: %w", err)
	}
	if r.BytesPerSecond <= 0 {
		return sample{}, fmt.Errorf("%v bytes a second", r.BytesPerSecond)
	}
	return sample{gbps: r.BytesPerSecond / 1e9, p50: r.LatencyUS.P50, p99: r.LatencyUS.P99}, nil
}

// plainCopy is the speed of copies out of shared memory as big as the objects are: GB/s.
func plainCopy(size uint64, objects int, d time.Duration) (float64, error) {
	n := int(size)
	m, err := unix.Mmap(-1, 0, n*objects, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		return 0, os.NewSyscallError("mmap", err)
	}
	defer func() { _ = unix.Munmap(m) }()
	dst := make([]byte, n)
	copy(dst, m)
	begin, moved := time.Now(), 0
	for i := 0; time.Since(begin) < d; i++ {
		at := i % objects * n
		copy(dst, m[at:at+n])
		moved += n
	}
	return float64(moved) / 1e9 / time.Since(begin).Seconds(), nil
}
