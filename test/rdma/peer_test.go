package rdma

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/transports"
)

// peerVariable makes the test binary a peer: an engine of ours that is driven like wheel.py, with one JSON object a line.
const peerVariable = "MOONCAKE_RDMA_PEER"

// enginePeer is the engine of a peer process and its memory.
type enginePeer struct {
	*transfer.Engine
	mem  []byte
	base uint64
	regs map[uint64]*segment.Region
}

// peerMain has the arguments NAME METADATA SIZE DEVICES.
func peerMain(args []string, in io.Reader, out io.Writer) error {
	name, meta := args[0], args[1]
	size, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	ctx := context.Background()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	tr, err := transports.Kind.Build(ctx, "verbs", module.Env{Log: log}, section{"Devices": strings.Split(args[3], ","), "RailPause": 2 * time.Second})
	if err != nil {
		return err
	}
	o := transfer.Options{Config: transfer.DefaultConfig(), LocalName: name, AdvertiseHost: host, BindAddress: host,
		Transports: []transfer.NamedTransport{{Name: "verbs", Transport: tr}}, Log: log}
	o.TransferTimeout = soon
	if strings.HasPrefix(meta, "http") {
		o.MetadataRaw = true
		if o.Metadata, err = metadata.Kind.Build(ctx, "http", module.Env{}, section{"URL": meta}); err != nil {
			return err
		}
		defer o.Metadata.Close()
	}
	p := &enginePeer{regs: map[uint64]*segment.Region{}}
	if p.Engine, err = transfer.New(o); err != nil {
		return err
	}
	if p.mem, err = syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE); err != nil {
		return err
	}
	if p.base, err = p.register(ctx, 0, size); err != nil {
		return err
	}
	if err := p.Start(ctx); err != nil {
		return err
	}
	enc := json.NewEncoder(out)
	if err := enc.Encode(answer{Ready: true, Name: p.Name(), Base: p.base}); err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		a, err := p.do(ctx, &c)
		if err != nil {
			a = answer{RC: -1, Error: err.Error()}
		}
		if err := enc.Encode(a); err != nil {
			return err
		}
	}
	return p.Close(ctx)
}

// command is one line for a driver. What Local, Remote and Len are depends on Cmd, as in wheel.py.
type command struct {
	Cmd           string
	Off, Addr     uint64
	Len           json.RawMessage
	Seed, Target  string
	Write         bool
	Local, Remote json.RawMessage
}

func (p *enginePeer) register(ctx context.Context, off uint64, n int) (uint64, error) {
	r, err := segment.Wrap(p.mem[off:off+uint64(n)], "cpu:0", transports.ReadWrite)
	if err != nil {
		return 0, err
	}
	p.regs[r.Addr()] = r
	return r.Addr(), p.Register(ctx, r)
}

func (p *enginePeer) do(ctx context.Context, c *command) (a answer, err error) {
	switch c.Cmd {
	case "transfer", "batch":
		return a, p.move(ctx, c)
	case "unregister":
		r := p.regs[c.Addr]
		delete(p.regs, c.Addr)
		return a, p.Unregister(ctx, r.Addr())
	}
	var n int
	if err := json.Unmarshal(c.Len, &n); err != nil {
		return a, err
	}
	switch c.Cmd {
	case "fill":
		copy(p.mem[c.Off:c.Off+uint64(n)], pattern(c.Seed, n))
	case "zero":
		clear(p.mem[c.Off : c.Off+uint64(n)])
	case "sha":
		a.SHA256 = sum(p.mem[c.Off : c.Off+uint64(n)])
	case "register":
		_, err = p.register(ctx, c.Addr-p.base, n)
	default:
		err = fmt.Errorf("unknown command %q", c.Cmd)
	}
	return a, err
}

func (p *enginePeer) move(ctx context.Context, c *command) error {
	var local, remote, n []uint64
	for _, f := range []struct {
		raw json.RawMessage
		to  *[]uint64
	}{{c.Local, &local}, {c.Remote, &remote}, {c.Len, &n}} {
		if c.Cmd == "transfer" {
			f.raw = fmt.Appendf(nil, "[%s]", f.raw)
		}
		if err := json.Unmarshal(f.raw, f.to); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	s, err := p.Open(ctx, c.Target)
	if err != nil {
		return err
	}
	reqs := make([]transfer.Request, len(n))
	for i := range n {
		reqs[i] = transfer.Request{Write: c.Write, Local: p.mem[local[i] : local[i]+n[i]], Segment: s, Remote: remote[i]}
	}
	return p.Transfer(ctx, reqs)
}
