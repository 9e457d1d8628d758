package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// Info describes an object.
type Info struct {
	Key string
	// Size in bytes.
	Size uint64
	// Replicas that can be read now.
	Replicas []Replica
	// Checksum is the CRC-64 it was put with; valid if HasChecksum.
	Checksum    uint64
	HasChecksum bool
	// Lease is how long the object stays after this lookup at least.
	Lease time.Duration
}

// Replica is one copy of an object.
type Replica struct {
	ID       uint64
	Kind     string // memory, disk, local_disk, nof, dfs
	Endpoint string // name of the segment for the Transfer Engine; memory and nof
	Address  uint64 // in that segment
	Path     string // disk and dfs
	Size     uint64
}

var kindNames = map[wire.ReplicaKind]string{wire.KindMemory: "memory", wire.KindDisk: "disk", wire.KindLocalDisk: "local_disk",
	wire.KindNoF: "nof", wire.KindDFS: "dfs"}

func info(key string, replicas []wire.Replica) Info {
	i := Info{Key: key, Replicas: make([]Replica, len(replicas))}
	for n, r := range replicas {
		i.Replicas[n] = Replica{ID: r.ID, Kind: kindNames[r.Kind], Endpoint: r.Endpoint, Address: r.Address, Path: r.Path, Size: r.Size}
		i.Size = r.Size
	}
	return i
}

// Exists tells whether the object can be read. It counts as a use: the master may protect the object for a moment.
func (c *Client) Exists(ctx context.Context, key string) (bool, error) {
	r, err := call(ctx, c.quick, wire.ExistKey, idempotent, &wire.KeyRequest{Key: key, Tenant: c.tenant})
	ok, err := unwrap("exists", key, r, err)
	c.m.done("exists", err)
	return ok, err
}

// ExistsBatch is Exists for several keys, with one call.
func (c *Client) ExistsBatch(ctx context.Context, keys []string) ([]bool, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	rs, err := call(ctx, c.quick, wire.BatchExistKey, idempotent, &wire.KeysRequest{Keys: keys, Tenant: c.tenant})
	oks, errs := unwrapAll("exists", keys, rs, err)
	for i, err := range errs {
		c.m.done("exists", err)
		if err != nil {
			return oks, errs[i]
		}
	}
	return oks, nil
}

// Stat returns what the master knows of an object. It takes a lease, as a read does.
func (c *Client) Stat(ctx context.Context, key string) (Info, error) {
	r, err := call(ctx, c.quick, wire.GetReplicaList, idempotent, &wire.KeyRequest{Key: key, Tenant: c.tenant})
	l, err := unwrap("stat", key, r, err)
	c.m.done("stat", err)
	if err != nil {
		return Info{}, err
	}
	i := info(key, l.Replicas)
	i.Lease = time.Until(leaseEnd(time.Now(), l.LeaseTTLMS))
	i.Checksum, i.HasChecksum = l.Checksum.Value, l.Checksum.OK
	return i, nil
}

// Size returns the size of an object.
func (c *Client) Size(ctx context.Context, key string) (uint64, error) {
	i, err := c.Stat(ctx, key)
	return i.Size, err
}

// Replicas returns where the copies of an object lie.
func (c *Client) Replicas(ctx context.Context, key string) ([]Replica, error) {
	i, err := c.Stat(ctx, key)
	return i.Replicas, err
}

// List returns the readable objects whose key contains a match of the regular expression (ECMAScript as far as the
// master knows it; "^prefix"), sorted by key. It takes a lease on each of them.
func (c *Client) List(ctx context.Context, pattern string) ([]Info, error) {
	r, err := call(ctx, c.scans, wire.GetReplicaListByRegex, idempotent, &wire.KeyRequest{Key: pattern, Tenant: c.tenant})
	l, err := unwrap("list", "", r, err)
	c.m.done("list", err)
	if err != nil {
		return nil, err
	}
	out := make([]Info, len(l))
	for n := range l {
		out[n] = info(l[n].Key, l[n].Value)
	}
	slices.SortFunc(out, func(a, b Info) int { return strings.Compare(a.Key, b.Key) })
	return out, nil
}

// Remove removes an object. Unless force is set, one that is being read, or was a moment ago, is ErrLeased. Force takes
// the memory away from running reads, which notice it by checksums only until they renew their lease, unless the
// master keeps the space back for them. A missing object is ErrNotFound.
func (c *Client) Remove(ctx context.Context, key string, force bool) error {
	r, err := call(ctx, c.quick, wire.Remove, once, &wire.RemoveRequest{Key: key, Force: force, Tenant: c.tenant})
	_, err = unwrap("remove", key, r, err)
	c.m.done("remove", err)
	return err
}

// RemoveBatch is Remove for several keys, with one call. The errors belong to the keys.
func (c *Client) RemoveBatch(ctx context.Context, keys []string, force bool) []error {
	if len(keys) == 0 {
		return nil
	}
	rs, err := call(ctx, c.quick, wire.BatchRemove, once, &wire.BatchRemoveRequest{Keys: keys, Force: force, Tenant: c.tenant})
	_, errs := unwrapAll("remove", keys, rs, err)
	for _, err := range errs {
		c.m.done("remove", err)
	}
	return errs
}

// RemoveRegex removes the objects whose key contains a match of the regular expression, but for those that Remove
// would refuse, and returns how many.
func (c *Client) RemoveRegex(ctx context.Context, pattern string, force bool) (int64, error) {
	r, err := call(ctx, c.scans, wire.RemoveByRegex, once, &wire.RemoveRequest{Key: pattern, Force: force, Tenant: c.tenant})
	n, err := unwrap("remove", "", r, err)
	c.m.done("remove_regex", err)
	return n, err
}

// RemoveAll removes all objects of the tenant, but for those that Remove would refuse, and returns how many.
func (c *Client) RemoveAll(ctx context.Context, force bool) (int64, error) {
	n, err := call(ctx, c.scans, wire.RemoveAll, once, &wire.RemoveAllRequest{Force: force, Tenant: c.tenant})
	if err != nil {
		err = fail("remove", "", err)
	}
	c.m.done("remove_all", err)
	return n, err
}

// Task is the state of a copy or a move.
type Task struct {
	ID      wire.UUID
	Kind    string // copy, move
	State   string // pending, processing, failed, success
	Message string
	// Node is the client that does it.
	Node             wire.UUID
	Created, Updated time.Time
}

// Finished tells that the task will not change any more.
func (t Task) Finished() bool { return t.State == "failed" || t.State == "success" }

// Copy asks the master for copies of an object on other segments, by their names. A node does it; see Task.
func (c *Client) Copy(ctx context.Context, key string, segments ...string) (wire.UUID, error) {
	r, err := call(ctx, c.quick, wire.CreateCopyTask, once, &wire.CreateCopyTaskRequest{Key: key, Tenant: c.tenant, Targets: segments})
	return unwrap("copy", key, r, err)
}

// Move asks the master to move an object's replica from one segment to another. A node does it; see Task.
func (c *Client) Move(ctx context.Context, key, from, to string) (wire.UUID, error) {
	r, err := call(ctx, c.quick, wire.CreateMoveTask, once, &wire.CreateMoveTaskRequest{Key: key, Tenant: c.tenant, Source: from, Target: to})
	return unwrap("move", key, r, err)
}

// Task asks how far a copy or move is.
func (c *Client) Task(ctx context.Context, id wire.UUID) (Task, error) {
	r, err := call(ctx, c.quick, wire.QueryTask, idempotent, &wire.IDRequest{ID: id})
	s, err := unwrap("task", "", r, err)
	if err != nil {
		return Task{}, err
	}
	t := Task{ID: s.ID, Kind: "copy", Message: s.Message, Node: s.Client, Created: time.UnixMilli(s.CreatedMS), Updated: time.UnixMilli(s.UpdatedMS)}
	if s.Type == wire.TaskMove {
		t.Kind = "move"
	}
	states := [...]string{wire.TaskPending: "pending", wire.TaskProcessing: "processing", wire.TaskFailed: "failed", wire.TaskSuccess: "success"}
	if s.Status >= 0 && int(s.Status) < len(states) {
		t.State = states[s.Status]
	} else {
		t.State = fmt.Sprintf("unknown (%d)", s.Status)
	}
	return t, nil
}

// unwrap turns the answer to a call into value and error.
func unwrap[T any](op, key string, r wire.Result[T], err error) (T, error) {
	if err == nil && r.Code != wire.OK {
		err = r.Code
	}
	if err != nil {
		return r.Value, fail(op, key, err)
	}
	return r.Value, nil
}

// unwrapAll is unwrap for the answer to a batch.
func unwrapAll[T any](op string, keys []string, rs []wire.Result[T], err error) ([]T, []error) {
	if err == nil && len(rs) != len(keys) {
		err = fmt.Errorf("%w: %d results for %d keys", ErrUnavailable, len(rs), len(keys))
	}
	values, errs := make([]T, len(keys)), make([]error, len(keys))
	for i, k := range keys {
		if err != nil {
			errs[i] = fail(op, k, err)
			continue
		}
		values[i], errs[i] = unwrap(op, k, rs[i], nil)
	}
	return values, errs
}
