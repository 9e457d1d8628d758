package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/transports"
)

// SegmentSpec is memory to be lent to the store.
type SegmentSpec struct {
	// Name of the segment at the master; "" means the engine's name. Segments of one name count as one place
	// for replicas.
	Name string
	// Endpoint is what other clients open with their engines; "" means the engine's own address for the mode
	// it runs in.
	Endpoint string
	// Region is registered with the engine and stays so until the segment is unmounted.
	Region transports.Region
	// Fence gives the same memory at another address, once nothing touches it at the old one any more. It is
	// called when the master has lost the segment and is about to get it back empty: readers and writers of
	// before, who know the old address, are refused then instead of touching what is stored next. Without it
	// the segment comes back where it was, as with upstream's clients. See [ArenaFence].
	Fence func(ctx context.Context) (transports.Region, error)
}

// Mount is memory lent to the store. Methods may be called concurrently.
type Mount struct {
	k     *keeper
	fence func(ctx context.Context) (transports.Region, error)

	// Of the keeper's goroutine.
	announced bool // the master has it, as far as we know
	leaving   bool
	fenced    bool // its region is new since the master lost it

	// Guarded by keeper.mu.
	seg      wire.Segment
	region   transports.Region
	err      error // why it is not mounted
	mounted  bool
	accepted chan struct{} // closed when the master accepts it for the first time
	left     chan struct{} // closed when it is unmounted
	leaveErr error         // valid then
}

// Mount lends memory to the store and keeps it there, also when the master is restarted, until Unmount or Close. It
// returns at once; while the master cannot be reached it is tried for again. See [Mount.Wait].
func (c *Client) Mount(s SegmentSpec) (*Mount, error) {
	switch {
	case c.engine == nil:
		return nil, fail("mount", "", errNoEngine)
	case s.Region == nil:
		return nil, failf("mount", "", ErrInvalid, "no region")
	}
	if s.Name == "" {
		s.Name = c.engine.Name()
	}
	if s.Endpoint == "" {
		s.Endpoint = c.engine.Name()
	}
	if s.Endpoint == "" {
		return nil, failf("mount", "", ErrInvalid, "the engine is not started")
	}
	m := &Mount{k: c.keep, fence: s.Fence, region: s.Region, accepted: make(chan struct{}), left: make(chan struct{}),
		err: errors.New("the master has not been asked yet"),
		seg: wire.Segment{ID: newUUID(), Name: s.Name, Base: s.Region.Addr(), Size: s.Region.Len(), TEEndpoint: s.Endpoint,
			Protocol: "tcp", HostID: HostID(s.Name)}}
	if err := c.keep.add(m); err != nil {
		return nil, fail("mount", "", err)
	}
	return m, nil
}

// Wait returns nil when the master has accepted the segment; else, when ctx ends, why it has not.
func (m *Mount) Wait(ctx context.Context) error {
	select {
	case <-m.accepted:
		return nil
	case <-m.left:
		return fail("mount", "", ErrClosed)
	case <-ctx.Done():
		return fmt.Errorf("%w (%w)", m.Err(), context.Cause(ctx))
	}
}

// Err is nil while the segment is mounted, as far as the last heartbeat has shown, else the reason.
func (m *Mount) Err() error {
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	if m.mounted {
		return nil
	}
	return fail("mount", "", m.err)
}

// Segment is what the master knows. Address and id change when the segment comes back after a loss.
func (m *Mount) Segment() wire.Segment {
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	return m.seg
}

// Unmount takes the segment out of the store: the master places nothing there any more, what is there stays readable
// for unmount_grace, and then it is gone. When Unmount returns nil the memory belongs to the caller again. If the
// master cannot be reached, or ctx ends before, it says so, and the master drops the segment with the client.
func (m *Mount) Unmount(ctx context.Context) error {
	m.k.leave(m)
	select {
	case <-m.left:
		return m.leaveErr
	case <-ctx.Done():
		return failf("unmount", "", ErrUnavailable, "the master has not taken note: %w", context.Cause(ctx))
	}
}

// State of the segment for the keeper's goroutine.

func (m *Mount) isMounted(on bool, why error) {
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	if on != m.mounted {
		d := float64(m.seg.Size)
		if !on {
			d = -d
		}
		m.k.c.m.mounted.Add(d)
	}
	m.mounted, m.err = on, why
	if on {
		select {
		case <-m.accepted:
		default:
			close(m.accepted)
		}
	}
}

// renew gives a segment that the master has lost a new identity.
func (m *Mount) renew(ctx context.Context) error {
	var region transports.Region
	if m.fence != nil {
		var err error
		if region, err = m.fence(ctx); err != nil {
			return err
		}
	}
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	m.seg.ID = newUUID()
	if region != nil {
		m.region = region
		m.seg.Base, m.seg.Size = region.Addr(), region.Len()
	}
	return nil
}

// unmount tells the master. It is called from the keeper's goroutine or at its end.
func (m *Mount) unmount(ctx context.Context) error {
	k := m.k
	seg := m.Segment()
	defer m.isMounted(false, ErrClosed)
	if !m.announced {
		return nil
	}
	grace := k.c.opt.UnmountGrace
	if grace > 0 {
		err := k.graceful(ctx, seg, grace)
		if err == nil {
			return nil
		}
		k.c.log.Debug("graceful unmount", "segment", seg.Name, "err", err)
	}
	r, err := call(ctx, k.line, wire.UnmountSegment, idempotent, &wire.UnmountSegmentRequest{Segment: seg.ID, Client: k.c.id})
	if _, err = unwrap("unmount", "", r, err); err != nil {
		return err
	}
	m.announced = false
	return nil
}

// graceful lets the master stop using a segment, and waits until it has dropped it.
func (k *keeper) graceful(ctx context.Context, seg wire.Segment, grace time.Duration) error {
	r, err := call(ctx, k.line, wire.GracefulUnmountSegment, once, &wire.UnmountSegmentRequest{
		Segment: seg.ID, Client: k.c.id, GraceMS: uint64(max(grace.Milliseconds(), 1))})
	if _, err = unwrap("unmount", "", r, err); err != nil {
		return err
	}
	const slack = 2 * time.Second // of the master
	ctx, cancel := context.WithTimeout(ctx, grace+slack)
	defer cancel()
	for pause := grace; ; pause = 50 * time.Millisecond {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		switch gone, err := k.lost(ctx, seg.ID); {
		case err != nil:
			return err
		case gone:
			return nil
		}
	}
}

// lost asks the master whether it does not have a segment.
func (k *keeper) lost(ctx context.Context, id wire.UUID) (bool, error) {
	r, err := call(ctx, k.line, wire.QuerySegmentStatusByID, idempotent, &wire.IDRequest{ID: id})
	if err == nil && r.Code == wire.ErrSegmentNotFound {
		return true, nil
	}
	_, err = unwrap("mount", "", r, err)
	return false, err
}

// all is a copy of the list of mounts.
func (k *keeper) all() []*Mount {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.mounts)
}
