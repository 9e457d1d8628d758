package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer"
)

// Transfer measures an engine that it starts at e against target, the name of a running engine. If
// target is "", spawn makes the command of a second process that runs [ServeTarget] with the given
// memory.
//
// Writes go to the target's first region that is large enough: whatever is there is overwritten.
func Transfer(ctx context.Context, o Options, e Endpoint, target string, spawn func(size uint64) *exec.Cmd) (_ *Result, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	m := &engineMover{}
	defer func() { err = errors.Join(err, m.close()) }()
	if target == "" {
		if m.target, err = SpawnTarget(ctx, spawn(o.Need())); err != nil {
			return nil, err
		}
		target = m.target.Segment
	}
	if m.side, err = open(ctx, e, "bench", o.Need()); err != nil {
		return nil, err
	}
	if m.segment, err = m.side.engine.Open(ctx, target); err != nil {
		return nil, fmt.Errorf("--target %s: %w", target, err)
	}
	if err := m.chooseRegion(&o); err != nil {
		return nil, fmt.Errorf("--target %s: %w", target, err)
	}
	return Run(ctx, m, o)
}

// engineMover is a Transfer Engine as a Mover.
type engineMover struct {
	side    *side
	segment *transfer.Segment
	target  *Target // nil when the target was there before
	base    uint64  // of the remote region
	span    uint64  // bytes of it that are used: whole blocks
}

var _ Mover = (*engineMover)(nil)

// chooseRegion takes the target's first region that has room for all blocks. If none has, blocks of
// different threads share places in the largest, which is no matter unless their content is checked.
func (m *engineMover) chooseRegion(o *Options) error {
	var largest uint64
	for _, b := range m.segment.Descriptor().Buffers {
		if b.Length > largest {
			m.base, largest = b.Addr, b.Length
		}
		if largest >= o.Need() {
			break
		}
	}
	switch {
	case largest == 0:
		return errors.New("it has no registered memory")
	case largest < o.Block:
		return fmt.Errorf("its largest region has %d bytes, less than a block of %d; lower --block", largest, o.Block)
	case largest < o.Need() && o.Verify:
		return fmt.Errorf("its largest region has %d bytes, --verify needs %d (block x batch x threads); lower one of them", largest, o.Need())
	}
	m.span = min(largest, o.Need()) / o.Block * o.Block
	return nil
}

// Local implements Mover.
func (m *engineMover) Local() []byte { return m.side.arena.Bytes() }

// Prepare implements Mover.
func (m *engineMover) Prepare(ops []Op) (func(context.Context, bool) error, error) {
	reqs := make([]transfer.Request, len(ops))
	for i, op := range ops {
		reqs[i] = transfer.Request{Local: m.Local()[op.Local : op.Local+op.Len], Segment: m.segment, Remote: m.base + op.Remote%m.span}
	}
	last := false
	return func(ctx context.Context, write bool) error {
		if write != last {
			for i := range reqs {
				reqs[i].Write = write
			}
			last = write
		}
		return m.side.engine.Transfer(ctx, reqs)
	}, nil
}

// CPU implements Mover: this process and the target it started.
func (m *engineMover) CPU() (time.Duration, error) {
	own := CPUTime()
	if m.target == nil {
		return own, nil
	}
	other, err := m.target.CPU()
	return own + other, err
}

func (m *engineMover) close() error {
	var errs []error
	if m.side != nil {
		errs = append(errs, m.side.close())
	}
	if m.target != nil {
		errs = append(errs, m.target.Close())
	}
	return errors.Join(errs...)
}
