package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/transports"
)

// ArenaFence gives the memory of an arena a new address when the master has lost it (SegmentSpec.Fence). Peers that
// still use the old address are refused from then on. Methods may be called concurrently.
type ArenaFence struct {
	engine *transfer.Engine
	arena  *segment.Arena

	mu     sync.Mutex
	region *segment.Region // the one in use; nil after Close
}

// NewArenaFence begins with a region of the arena that is registered with the engine. From now on the fence owns it.
func NewArenaFence(e *transfer.Engine, a *segment.Arena, r *segment.Region) *ArenaFence {
	return &ArenaFence{engine: e, arena: a, region: r}
}

// fenceLimit is how long one attempt waits until nothing touches the old address any more.
const fenceLimit = 5 * time.Second

// Fence implements SegmentSpec.Fence.
func (f *ArenaFence) Fence(ctx context.Context) (transports.Region, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, fenceLimit)
	defer cancel()
	if f.region != nil {
		if err := f.engine.Unregister(ctx, f.region.Addr()); err != nil && !errors.Is(err, transfer.ErrNotRegistered) {
			return nil, fmt.Errorf("close the old address of the segment: %w", err)
		}
	}
	r, err := f.arena.View(transports.ReadWrite) // before the old mapping goes, so that its address is taken
	if err != nil {
		return nil, err
	}
	if err := f.engine.Register(ctx, r); err != nil {
		r.Close()
		return nil, fmt.Errorf("open a new address of the segment: %w", err)
	}
	if f.region != nil {
		f.region.Close()
	}
	f.region = r
	return r, nil
}

// Close gives the region back to the arena. The engine must be closed before, or the region unregistered.
func (f *ArenaFence) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.region != nil {
		f.region.Close()
		f.region = nil
	}
}
