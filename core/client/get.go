package client

import (
	"context"
	"fmt"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// Get returns an object's value.
func (c *Client) Get(ctx context.Context, key string) ([]byte, error) {
	r := reading{key: key}
	err := c.getOne(ctx, &r, func(size uint64) ([]byte, error) { return make([]byte, size), nil })
	return r.dst, err
}

// GetInto reads an object into dst and returns its size. If dst is smaller, nothing is read: the error is
// ErrTooSmall and n the size. After an error dst may hold anything.
func (c *Client) GetInto(ctx context.Context, key string, dst []byte) (n int, err error) {
	r := reading{key: key}
	err = c.getOne(ctx, &r, fit(dst))
	return int(r.size), err
}

// fit lets an object use the beginning of dst.
func fit(dst []byte) func(uint64) ([]byte, error) {
	return func(size uint64) ([]byte, error) {
		if size > uint64(len(dst)) {
			return nil, fmt.Errorf("%w: the object has %d bytes, the destination %d", ErrTooSmall, size, len(dst))
		}
		return dst[:size], nil
	}
}

// GetRange reads the part of an object that begins at off into dst and returns how much there was; it is less
// than len(dst) at the object's end.
func (c *Client) GetRange(ctx context.Context, key string, dst []byte, off uint64) (n int, err error) {
	r := reading{key: key, off: off}
	err = c.getOne(ctx, &r, func(size uint64) ([]byte, error) {
		if off > size {
			return nil, fmt.Errorf("%w: offset %d in an object of %d bytes", ErrInvalid, off, size)
		}
		return dst[:min(uint64(len(dst)), size-off)], nil
	})
	return len(r.dst), err
}

func (c *Client) getOne(ctx context.Context, r *reading, place func(size uint64) ([]byte, error)) error {
	begin := time.Now()
	c.lookupOne(ctx, r)
	r.place(place)
	c.read(ctx, []*reading{r}, false)
	err := c.finishRead(r)
	c.m.call("get", uint64(len(r.dst)), begin, err)
	return err
}

// finishRead turns the end of a read into the caller's error.
func (c *Client) finishRead(r *reading) error {
	if r.err == nil {
		c.m.done("get", nil)
		return nil
	}
	r.dst = nil
	err := fail("get", r.key, r.err)
	c.m.done("get", err)
	return err
}

// GetBatch reads several objects with one call to the master; the data is moved in parallel. values[i] is nil
// where errs[i] is not.
func (c *Client) GetBatch(ctx context.Context, keys []string) (values [][]byte, errs []error) {
	rs := make([]*reading, len(keys))
	for i, k := range keys {
		rs[i] = &reading{key: k}
	}
	errs = c.getAll(ctx, rs, func(_ int, size uint64) ([]byte, error) { return make([]byte, size), nil })
	values = make([][]byte, len(keys))
	for i, r := range rs {
		values[i] = r.dst
	}
	return values, errs
}

// Target is one object of GetBatchInto.
type Target struct {
	Key string
	// Dst is where the object goes; N is set to its size, also if Dst is smaller and nothing is read.
	Dst []byte
	N   int
}

// GetBatchInto is GetInto for several objects, as GetBatch.
func (c *Client) GetBatchInto(ctx context.Context, targets []Target) []error {
	rs := make([]*reading, len(targets))
	for i := range targets {
		rs[i] = &reading{key: targets[i].Key}
	}
	errs := c.getAll(ctx, rs, func(i int, size uint64) ([]byte, error) { return fit(targets[i].Dst)(size) })
	for i, r := range rs {
		targets[i].N = int(r.size)
	}
	return errs
}

func (c *Client) getAll(ctx context.Context, rs []*reading, place func(i int, size uint64) ([]byte, error)) []error {
	begin := time.Now()
	c.lookupAll(ctx, rs)
	total := uint64(0)
	for i, r := range rs {
		r.place(func(size uint64) ([]byte, error) { return place(i, size) })
		total += uint64(len(r.dst))
	}
	c.read(ctx, rs, true)
	errs := make([]error, len(rs))
	var first error
	for i, r := range rs {
		if errs[i] = c.finishRead(r); first == nil {
			first = errs[i]
		}
	}
	c.m.call("get", total, begin, first)
	return errs
}

// lookupOne asks the master for the replicas of one object and so gets a lease on it.
func (c *Client) lookupOne(ctx context.Context, r *reading) {
	if r.err = c.readable(r); r.err != nil {
		return
	}
	sent := time.Now()
	res, err := call(ctx, c.quick, wire.GetReplicaList, idempotent, &wire.KeyRequest{Key: r.key, Tenant: c.tenant})
	r.found(sent, &res, err)
}

// lookupAll is lookupOne for several objects, with one call.
func (c *Client) lookupAll(ctx context.Context, rs []*reading) {
	ask := make([]*reading, 0, len(rs))
	for _, r := range rs {
		if r.err = c.readable(r); r.err == nil {
			ask = append(ask, r)
		}
	}
	if len(ask) == 0 {
		return
	}
	sent := time.Now()
	results, err := c.replicaLists(ctx, ask)
	for i, r := range ask {
		if err != nil {
			r.err = err
			continue
		}
		r.found(sent, &results[i], nil)
	}
}

func (c *Client) replicaLists(ctx context.Context, rs []*reading) ([]wire.Result[wire.ReplicaList], error) {
	keys := make([]string, len(rs))
	for i, r := range rs {
		keys[i] = r.key
	}
	results, err := call(ctx, c.quick, wire.BatchGetReplicaList, idempotent, &wire.KeysRequest{Keys: keys, Tenant: c.tenant})
	if err == nil && len(results) != len(keys) {
		err = fmt.Errorf("%w: %d results for %d keys", ErrUnavailable, len(results), len(keys))
	}
	return results, err
}

func (c *Client) readable(r *reading) error {
	switch {
	case c.engine == nil:
		return errNoEngine
	case r.key == "":
		return fmt.Errorf("%w: the key is empty", ErrInvalid)
	}
	return nil
}
