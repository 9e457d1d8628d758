package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/core/transfer"
)

// runTasks asks the master for objects to copy or move out of this client's segments, and does it.
func (k *keeper) runTasks() {
	tick := time.NewTicker(k.c.opt.TaskInterval)
	defer tick.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	room := make(chan struct{}, k.c.opt.TaskLimit)
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-tick.C:
		}
		free := cap(room) - len(room)
		if free == 0 || k.leavingAll() {
			continue
		}
		ctx, cancel := context.WithTimeout(k.ctx, k.c.opt.RPCTimeout)
		r, err := call(ctx, k.c.quick, wire.FetchTasks, once, &wire.FetchTasksRequest{Client: k.c.id, Limit: uint64(free)})
		cancel()
		tasks, err := unwrap("tasks", "", r, err)
		if err != nil {
			if k.ctx.Err() == nil && !errors.Is(err, ErrUnavailable) { // the heartbeat tells that
				k.c.warn.Log(k.ctx, k.c.log, slog.LevelWarn, "tasks", "the master gives no tasks", "err", err)
			}
			continue
		}
		for _, t := range tasks {
			room <- struct{}{}
			running.Go(func() {
				defer func() { <-room }()
				k.do(t)
			})
		}
	}
}

// leavingAll tells that nothing is lent any more.
func (k *keeper) leavingAll() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.mounts) == 0 || k.closing
}

// taskPayload is the JSON of both kinds of tasks.
type taskPayload struct {
	Tenant  string   `json:"tenant_id"`
	Key     string   `json:"key"`
	Source  string   `json:"source"`
	Target  string   `json:"target"`
	Targets []string `json:"targets"`
	LeaseHi uint64   `json:"dynamic_replication_lease_id_high"`
	LeaseLo uint64   `json:"dynamic_replication_lease_id_low"`
	Epoch   uint64   `json:"dynamic_replication_version_epoch"`
}

// taskLimit bounds one task; the master gives it up after 300 s by default.
const taskLimit = 5 * time.Minute

// do runs one task and reports its end.
func (k *keeper) do(t wire.TaskAssignment) {
	ctx, cancel := context.WithTimeout(k.ctx, taskLimit)
	defer cancel()
	kind := "copy"
	if t.Type == wire.TaskMove {
		kind = "move"
	}
	var p taskPayload
	err := json.Unmarshal([]byte(t.Payload), &p)
	for pause := spacePauseMin; err == nil; pause = min(2*pause, spacePauseMax) {
		switch t.Type {
		case wire.TaskCopy:
			err = k.copyObject(ctx, &p)
		case wire.TaskMove:
			err = k.moveObject(ctx, &p)
		default:
			err = fmt.Errorf("%w: task type %d", ErrUnsupported, t.Type)
		}
		if !errors.Is(err, wire.ErrNoAvailableHandle) || t.MaxRetries == 0 {
			break
		}
		t.MaxRetries--
		select {
		case <-time.After(pause):
			err = nil
		case <-ctx.Done():
		}
	}
	done := wire.CompleteTaskRequest{Client: k.c.id, ID: t.ID, Status: wire.TaskSuccess, Message: "ok"}
	result := "ok"
	if err != nil {
		done.Status, done.Message = wire.TaskFailed, err.Error()
		result = "failed"
		k.c.log.Warn("a task of the master failed", "task", kind, "key", p.Key, "source", p.Source, "err", err)
	}
	k.c.m.tasks.WithLabelValues(kind, result).Inc()
	ctx, cancel = detached(ctx, k.c.opt.RPCTimeout)
	defer cancel()
	r, err := call(ctx, k.c.quick, wire.MarkTaskToComplete, idempotent, &done)
	if _, err := unwrap("tasks", "", r, err); err != nil {
		k.c.log.Warn("the end of a task could not be reported", "task", kind, "key", p.Key, "err", err)
	}
}

func (k *keeper) copyObject(ctx context.Context, p *taskPayload) error {
	c := k.c
	o := wire.ObjectTaskRequest{Client: c.id, Key: p.Key, Tenant: p.Tenant, LeaseID: wire.UUID{p.LeaseHi, p.LeaseLo}, Epoch: p.Epoch}
	start, end, revoke := wire.CopyStart, wire.CopyEnd, wire.CopyRevoke
	if !o.LeaseID.IsZero() {
		start, end, revoke = wire.DynamicReplicaCopyStart, wire.DynamicReplicaCopyEnd, wire.DynamicReplicaCopyRevoke
	}
	r, err := call(ctx, c.quick, start, once, &wire.CopyStartRequest{Client: c.id, Key: p.Key, Tenant: p.Tenant, Source: p.Source, Targets: p.Targets,
		LeaseID: o.LeaseID, Epoch: o.Epoch})
	plan, err := unwrap("copy", p.Key, r, err)
	if err != nil {
		return err
	}
	return k.finishTask(ctx, "copy", &o, k.moveData(ctx, plan.Source, plan.Targets), end, revoke)
}

func (k *keeper) moveObject(ctx context.Context, p *taskPayload) error {
	c := k.c
	o := wire.ObjectTaskRequest{Client: c.id, Key: p.Key, Tenant: p.Tenant}
	r, err := call(ctx, c.quick, wire.MoveStart, once, &wire.MoveStartRequest{Client: c.id, Key: p.Key, Tenant: p.Tenant, Source: p.Source, Target: p.Target})
	plan, err := unwrap("move", p.Key, r, err)
	if err != nil {
		return err
	}
	if plan.Target.OK {
		err = k.moveData(ctx, plan.Source, []wire.Replica{plan.Target.Value})
	}
	return k.finishTask(ctx, "move", &o, err, wire.MoveEnd, wire.MoveRevoke)
}

// finishTask ends a copy or move, or revokes it after an error.
func (k *keeper) finishTask(ctx context.Context, op string, o *wire.ObjectTaskRequest, err error, end, revoke *wire.Method[wire.ObjectTaskRequest, endResult]) error {
	c := k.c
	ctx, cancel := detached(ctx, c.opt.RPCTimeout)
	defer cancel()
	if err == nil {
		var r endResult
		r, err = call(ctx, c.quick, end, once, o)
		if _, err = unwrap(op, o.Key, r, err); err == nil {
			return nil
		}
		if errors.Is(err, wire.ErrReplicaIsGone) {
			return err // the master has cleaned up
		}
	}
	if r, rerr := call(ctx, c.quick, revoke, idempotent, o); rerr != nil || r.Code != wire.OK && r.Code != wire.ErrObjectNoReplicationTask && r.Code != wire.ErrObjectNotFound {
		_, rerr = unwrap(op, o.Key, r, rerr)
		return errors.Join(err, rerr)
	}
	return err
}

// moveData writes an object from a segment of this client to other places.
func (k *keeper) moveData(ctx context.Context, src wire.Replica, targets []wire.Replica) error {
	data, err := k.local(src)
	if err != nil {
		return err
	}
	reqs := make([]transfer.Request, len(targets))
	for i, t := range targets {
		if t.Kind != wire.KindMemory && t.Kind != wire.KindNoF || t.Size != src.Size {
			return fmt.Errorf("%w: a target of kind %s with %d bytes for %d", ErrUnsupported, kindNames[t.Kind], t.Size, src.Size)
		}
		seg, err := k.c.open(ctx, t.Endpoint)
		if err != nil {
			return err
		}
		reqs[i] = transfer.Request{Write: true, Local: data, Segment: seg, Remote: t.Address}
	}
	if err := k.c.engine.Transfer(ctx, reqs); err != nil {
		return fmt.Errorf("%w: %w", ErrTransfer, err)
	}
	return nil
}

// local is the memory of a replica in one of this client's segments.
func (k *keeper) local(r wire.Replica) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range k.mounts {
		base, n := m.region.Addr(), m.region.Len()
		if r.Endpoint == m.seg.TEEndpoint && r.Address >= base && r.Size <= n && r.Address-base <= n-r.Size {
			return m.region.Bytes()[r.Address-base:][:r.Size], nil
		}
	}
	return nil, fmt.Errorf("the source at %s %#x is in no segment of this client: %w", r.Endpoint, r.Address, wire.ErrReplicaNotInLocalMemory)
}
