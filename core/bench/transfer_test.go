package bench

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
	_ "github.com/mooncake-agent/mooncake/transports/tcp"
)

// The test binary is its own target process.
const (
	targetSize = "MOONCAKE_BENCH_TEST_BYTES"
	targetMode = "MOONCAKE_BENCH_TEST_MODE"
)

func TestMain(m *testing.M) {
	size, err := strconv.ParseUint(os.Getenv(targetSize), 10, 64)
	if err != nil {
		goleakMain(m)
		return
	}
	switch os.Getenv(targetMode) {
	case "garbage":
		os.Stdout.WriteString("hello\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "dies":
		os.Stderr.WriteString("no such device\n")
		os.Exit(3)
	default:
		if err := ServeTarget(context.Background(), tcp, size, os.Stdin, os.Stdout); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
	}
}

var tcp = Endpoint{Transport: "tcp", Metadata: metadata.P2P}

func spawn(mode string) func(uint64) *exec.Cmd {
	return func(size uint64) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), targetSize+"="+strconv.FormatUint(size, 10), targetMode+"="+mode)
		return cmd
	}
}

func short(op string) Options {
	return Options{Transport: "tcp", Op: op, Block: 64<<10 + 3, Batch: 4, Threads: 2, Duration: 150 * time.Millisecond}
}

func TestTransferToOwnTarget(t *testing.T) {
	for _, c := range []struct {
		op     string
		verify bool
	}{{"read", false}, {"write", false}, {"read", true}, {"write", true}} {
		o := short(c.op)
		o.Verify = c.verify
		r, err := Transfer(t.Context(), o, tcp, "", spawn(""))
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if r.BytesPerSecond < 1e6 || r.Errors != 0 || r.FirstError != nil || r.CPUSecondsPerGB <= 0 ||
			r.LatencyUS.P50 <= 0 || r.LatencyUS.P50 > r.LatencyUS.P999 || r.Seconds <= 0 {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}

func TestTransferToRunningEngine(t *testing.T) {
	peer, err := open(t.Context(), tcp, "peer", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := peer.close(); err != nil {
			t.Error(err)
		}
	}()
	name := peer.engine.Name()
	r, err := Transfer(t.Context(), short("write"), tcp, name, nil)
	if err != nil || r.BytesPerSecond <= 0 {
		t.Errorf("%+v, %v", r, err)
	}
	big := short("read")
	big.Block, big.Batch, big.Threads = 300<<10, 4, 2 // 2.4 MB in a region of 1 MiB
	if r, err := Transfer(t.Context(), big, tcp, name, nil); err != nil || r.BytesPerSecond <= 0 {
		t.Errorf("blocks that share places: %+v, %v", r, err)
	}
	big.Verify = true
	if _, err := Transfer(t.Context(), big, tcp, name, nil); err == nil || !strings.Contains(err.Error(), "--verify needs 2457600") {
		t.Errorf("verify without room: %v", err)
	}
	big.Block = 2 << 20
	if _, err := Transfer(t.Context(), big, tcp, name, nil); err == nil || !strings.Contains(err.Error(), "largest region has 1048576 bytes, less than a block of 2097152") {
		t.Errorf("a block larger than the region: %v", err)
	}
}

func TestTransferStopsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := short("read")
	o.Duration = time.Hour
	o.Progress = func(s Snapshot) {
		if s.Bytes > 0 {
			cancel()
		}
	}
	begin := time.Now()
	r, err := Transfer(ctx, o, tcp, "", spawn(""))
	if err != nil || r.BytesPerSecond <= 0 || r.Errors != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("the stop took %v", took)
	}
}

func TestTransferRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(o *Options, e *Endpoint)
		target string
		mode   string
		text   string
		is     error
	}{
		{"bad option", func(o *Options, _ *Endpoint) { o.Batch = 0 }, "", "", "--batch: 0", nil},
		{"unknown transport", func(_ *Options, e *Endpoint) { e.Transport = "tpc" }, "127.0.0.1:1", "", "did you mean tcp", module.ErrUnknown},
		{"bad metadata", func(_ *Options, e *Endpoint) { e.Metadata = "p2phandshake" }, "127.0.0.1:1", "", "--metadata: ", nil},
		{"unknown metadata", func(_ *Options, e *Endpoint) { e.Metadata = "zoo://127.0.0.1:1" }, "x", "", `--metadata: no metadata backend of type "zoo"`, module.ErrUnknown},
		{"nobody there", nil, "127.0.0.1:1", "", "--target 127.0.0.1:1: ", nil},
		{"target that dies", nil, "", "dies", "the process ended\nbench target: exit status 3: no such device", nil},
		{"target that talks nonsense", nil, "", "garbage", `in "hello"`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, e := short("read"), tcp
			if c.change != nil {
				c.change(&o, &e)
			}
			r, err := Transfer(t.Context(), o, e, c.target, spawn(c.mode))
			if r != nil || err == nil || !strings.Contains(err.Error(), c.text) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%+v, %v; want %q", r, err, c.text)
			}
		})
	}
	missing := func(uint64) *exec.Cmd { return exec.Command("/nonexistent/mooncake") }
	if _, err := Transfer(t.Context(), short("read"), tcp, "", missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a binary that is not there: %v", err)
	}
}

func TestTransferToTargetWithoutMemory(t *testing.T) {
	s, err := open(t.Context(), tcp, "empty", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.engine.Unregister(t.Context(), s.region.Addr()); err != nil {
		t.Fatal(err)
	}
	if _, err := Transfer(t.Context(), short("read"), tcp, s.engine.Name(), nil); err == nil || !strings.Contains(err.Error(), "it has no registered memory") {
		t.Errorf("got %v", err)
	}
}

func TestServeTargetCommands(t *testing.T) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	end := make(chan error, 1)
	go func() { end <- ServeTarget(t.Context(), tcp, 4096, inR, outW) }()
	d := json.NewDecoder(outR)
	var info targetInfo
	if err := d.Decode(&info); err != nil || info.Bytes != 4096 || !strings.HasPrefix(info.Segment, "127.0.0.1:") {
		t.Fatalf("%+v, %v", info, err)
	}
	var c cpuInfo
	io.WriteString(inW, "cpu\n")
	if err := d.Decode(&c); err != nil || c.CPUSeconds <= 0 {
		t.Errorf("%+v, %v", c, err)
	}
	io.WriteString(inW, "dance\n")
	if err := <-end; err == nil || !strings.Contains(err.Error(), `"dance" is not a command`) {
		t.Errorf("unknown command: %v", err)
	}
	inW.Close()
}

func TestURLSection(t *testing.T) {
	type withURL struct {
		Timeout time.Duration `koanf:"timeout"`
		URL     string        `koanf:"url"`
	}
	v := withURL{Timeout: time.Second}
	if err := urlSection("etcd://127.0.0.1:2379").Decode(&v); err != nil || v != (withURL{time.Second, "etcd://127.0.0.1:2379"}) {
		t.Errorf("%+v, %v", v, err)
	}
	var none struct{ X int }
	if err := urlSection("memory://x").Decode(&none); err == nil {
		t.Error("an address for a backend that takes none was accepted")
	}
	if n := (Endpoint{Metadata: "etcd://h"}).defaultName("target"); !strings.HasPrefix(n, "mooncake-bench-target-") || !strings.HasSuffix(n, strconv.Itoa(os.Getpid())) {
		t.Errorf("name %q", n)
	}
	if _, err := transfer.New(transfer.Options{Config: transfer.DefaultConfig(), LocalName: tcp.defaultName("x")}); err != nil {
		t.Errorf("the name of a P2P engine: %v", err)
	}
}

var listening = regexp.MustCompile(`listening on (\S+:\d+)`)

func TestTransferToTheWheel(t *testing.T) {
	w := testenv.Wheel(t)
	cmd := exec.Command(w.Bin("transfer_engine_bench"), "--mode=target", "--protocol=tcp", "--metadata_server=P2PHANDSHAKE",
		"--local_server_name=127.0.0.1", "--threads=1", "--batch_size=1", "--buffer_size=8388608")
	cmd.Env = w.Env()
	p := testenv.StartCmd(t, cmd)
	var name string
	testenv.Eventually(t, 30*time.Second, func() error {
		m := listening.FindStringSubmatch(p.Stderr())
		if m == nil {
			return errors.New("the wheel's target does not say where it listens")
		}
		name = m[1]
		// It listens before it registers its memory.
		doc, err := handshake.Call(t.Context(), name, handshake.TypeMetadata, []byte("{}"))
		if err == nil && !strings.Contains(string(doc), `"buffers":[{`) {
			err = errors.New("the wheel's target has no registered memory yet")
		}
		return err
	})
	for _, op := range []string{"write", "read"} {
		o := short(op)
		o.Verify = true
		r, err := Transfer(t.Context(), o, tcp, name, nil)
		if err != nil || r.Errors != 0 || r.BytesPerSecond <= 0 {
			t.Errorf("%s: %+v, %v", op, r, err)
		}
	}
	p.Stop(10*time.Second, syscall.SIGINT)
}
