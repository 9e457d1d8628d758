package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/mooncake-agent/mooncake/core/client"
)

// KVOps are the operations of KV.
var KVOps = []string{"put", "get", "get-buffer", "get-into", "exists"}

// KVOptions says what is measured of a Store.
type KVOptions struct {
	Op       string        // one of KVOps
	Size     uint64        // bytes of an object
	Batch    int           // objects of one call
	Objects  int           // that are read in turn; puts remove theirs again, outside the measured time
	Duration time.Duration // of the measurement, after a short warm-up
	Put      []client.PutOption
}

// Validate names the flag of each bad value.
func (o *KVOptions) Validate() error {
	var errs []error
	known := false
	for _, op := range KVOps {
		known = known || op == o.Op
	}
	if !known {
		errs = append(errs, fmt.Errorf("--op: %q is unknown; use one of %q", o.Op, KVOps))
	}
	if o.Size < 1 || o.Batch < 1 || o.Objects < 1 || o.Duration <= 0 {
		errs = append(errs, errors.New("--size, --batch, --objects, --duration: must be positive"))
	}
	if o.Op == "get-buffer" && o.Batch > 1 {
		errs = append(errs, errors.New("--op: get-buffer has no batches; use get-into"))
	}
	return errors.Join(errs...)
}

// KVResult is a finished measurement, in the form of "--json".
type KVResult struct {
	Op             string  `json:"op"`
	Bytes          uint64  `json:"bytes"` // of an object
	Batch          int     `json:"batch"`
	Seconds        float64 `json:"seconds"` // measured
	BytesPerSecond float64 `json:"bytes_per_second"`
	CallsPerSecond float64 `json:"calls_per_second"`
	LatencyUS      Latency `json:"latency_us"` // of a call
}

// WriteText writes the result for people.
func (r *KVResult) WriteText(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s, %s x %d, %s\nthroughput   %s/s, %s calls/s\nlatency      p50 %s, p99 %s, p99.9 %s (of a call)\n",
		r.Op, Bytes(r.Bytes), r.Batch, time.Duration(r.Seconds*float64(time.Second)).Round(time.Millisecond), decimal(r.BytesPerSecond),
		strconv.FormatFloat(r.CallsPerSecond, 'f', 0, 64), micros(r.LatencyUS.P50), micros(r.LatencyUS.P99), micros(r.LatencyUS.P999))
	return err
}

// kvWarmUp is how long calls are made before they count: connections, page tables.
const kvWarmUp = 300 * time.Millisecond

// KV measures one operation of a Store, one call after the other. Its objects are removed at the end.
func KV(ctx context.Context, c *client.Client, o KVOptions) (_ *KVResult, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	b := &kvBench{c: c, o: o, prefix: fmt.Sprintf("mooncake-bench-%d-", time.Now().UnixNano()), value: make([]byte, o.Size)}
	for i := range b.value {
		b.value[i] = byte(i * 7)
	}
	defer func() {
		if _, e := c.RemoveRegex(context.WithoutCancel(ctx), "^"+b.prefix, true); e != nil && err == nil {
			err = e
		}
	}()
	call := b.read
	if o.Op == "put" {
		call = b.put
	} else if err := b.fill(ctx); err != nil {
		return nil, err
	}
	var h histogram
	var busy time.Duration
	for begin, warm := time.Now(), true; busy < o.Duration && ctx.Err() == nil; {
		d, err := call(ctx)
		if err != nil {
			return nil, err
		}
		if warm {
			warm = time.Since(begin) < kvWarmUp
			continue
		}
		h.add(d)
		busy += d
	}
	r := &KVResult{Op: o.Op, Bytes: o.Size, Batch: o.Batch, Seconds: busy.Seconds(), LatencyUS: h.latency()}
	if busy > 0 {
		r.CallsPerSecond = float64(h.n) / busy.Seconds()
		if o.Op != "exists" {
			r.BytesPerSecond = r.CallsPerSecond * float64(o.Size) * float64(o.Batch)
		}
	}
	return r, nil
}

type kvBench struct {
	c      *client.Client
	o      KVOptions
	prefix string
	value  []byte
	next   int
	into   []client.Target
}

func (b *kvBench) key(i int) string { return b.prefix + strconv.Itoa(i) }

func (b *kvBench) fill(ctx context.Context) error {
	for i := range b.o.Objects {
		if err := b.c.Put(ctx, b.key(i), b.value, b.o.Put...); err != nil {
			return err
		}
	}
	b.into = make([]client.Target, b.o.Batch)
	for i := range b.into {
		b.into[i].Dst = make([]byte, b.o.Size)
	}
	return nil
}

// keys are the next ones in turn.
func (b *kvBench) keys() []string {
	keys := make([]string, b.o.Batch)
	for i := range keys {
		keys[i] = b.key(b.next % b.o.Objects)
		b.next++
	}
	return keys
}

// put makes one call that puts new objects, and removes them again.
func (b *kvBench) put(ctx context.Context) (time.Duration, error) {
	keys := make([]string, b.o.Batch)
	for i := range keys {
		keys[i] = b.key(b.next)
		b.next++
	}
	var errs []error
	begin := time.Now()
	if b.o.Batch == 1 {
		errs = []error{b.c.Put(ctx, keys[0], b.value, b.o.Put...)}
	} else {
		objects := make([]client.Object, b.o.Batch)
		for i, k := range keys {
			objects[i] = client.Object{Key: k, Parts: [][]byte{b.value}}
		}
		errs = b.c.PutBatch(ctx, objects, b.o.Put...)
	}
	d := time.Since(begin)
	return d, errors.Join(append(errs, b.c.RemoveBatch(ctx, keys, true)...)...)
}

// read makes one call that reads objects.
func (b *kvBench) read(ctx context.Context) (time.Duration, error) {
	keys := b.keys()
	var errs []error
	begin := time.Now()
	switch {
	case b.o.Op == "exists" && b.o.Batch == 1:
		_, err := b.c.Exists(ctx, keys[0])
		errs = []error{err}
	case b.o.Op == "exists":
		_, err := b.c.ExistsBatch(ctx, keys)
		errs = []error{err}
	case b.o.Op == "get" && b.o.Batch == 1:
		_, err := b.c.Get(ctx, keys[0])
		errs = []error{err}
	case b.o.Op == "get-buffer" && b.o.Batch == 1:
		v, err := b.c.GetBuffer(ctx, keys[0])
		if err == nil {
			v.Release()
		}
		errs = []error{err}
	case b.o.Op == "get":
		_, errs = b.c.GetBatch(ctx, keys)
	case b.o.Batch == 1:
		_, err := b.c.GetInto(ctx, keys[0], b.into[0].Dst)
		errs = []error{err}
	default:
		for i := range b.into {
			b.into[i].Key = keys[i]
		}
		errs = b.c.GetBatchInto(ctx, b.into)
	}
	return time.Since(begin), errors.Join(errs...)
}
