package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/units"
)

// StoreOps are the operations of a Store master that can be measured:
//
//	exist          ExistKey of a random key
//	get            GetReplicaList of a random key
//	putstart-end   PutStart and then PutEnd of a new key: one operation, its latency is that of both
//	mixed          seven gets, two exists and one put of ten
//	batchexist     BatchExistKey of 100 random keys: one operation
//	batchget       BatchGetReplicaList of 100 random keys: one operation
//	ping           Ping: what a request costs that does nothing
//	fill           nothing but the filling: keys per second of BatchPutStart and BatchPutEnd
var StoreOps = []string{"exist", "get", "putstart-end", "mixed", "batchexist", "batchget", "ping", "fill"}

// batchKeys is the number of keys of one batch operation.
const batchKeys = 100

// StoreOptions says what is measured. The benchmark lends the master a segment of memory that does not
// exist, so it must not be run against a master in use: other clients' objects would be placed there.
type StoreOptions struct {
	Master      string // host:port
	Op          string // one of StoreOps
	Connections int
	Depth       int           // requests in flight on each connection
	Keys        uint64        // put before the measurement; those of exist and get are drawn from them
	Duration    time.Duration // of the measurement, after a short warm-up
	Threads     int           // of the load generator
	Value       units.Size    // of each object
	// Segment is the size of the segment; 0 = room for everything. With a size of its own the store may
	// be full: refused puts are then errors of the operation putstart-end and ignored while filling.
	Segment units.Size
	// PID, if set, is the master's process on this machine, whose processor time and memory are measured.
	PID int
	// Hold, if set, is read to its end before the keys are taken away again, and Ready is called when
	// that begins. It serves to look at the master's memory.
	Hold  io.Reader
	Ready func(*StoreResult) error

	warmUp time.Duration
}

// DefaultStoreOptions are those of the command line.
func DefaultStoreOptions() StoreOptions {
	return StoreOptions{Master: "127.0.0.1:50051", Op: "exist", Connections: 8, Depth: 1, Keys: 100_000, Duration: 5 * time.Second, Threads: 1, Value: 64, warmUp: 500 * time.Millisecond}
}

const (
	maxStoreConnections = 20_000
	maxStoreDepth       = 1 << 12
	maxStoreKeys        = 1 << 32
)

// Validate names the flag of each bad value.
func (o *StoreOptions) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	between := func(flag string, n, low, high uint64) {
		if n < low || n > high {
			bad("--%s: %d is not between %d and %d", flag, n, low, high)
		}
	}
	if !slices.Contains(StoreOps, o.Op) {
		bad("--op: %q is unknown; use one of %s", o.Op, strings.Join(StoreOps, ", "))
	}
	between("connections", uint64(max(o.Connections, 0)), 1, maxStoreConnections)
	between("depth", uint64(max(o.Depth, 0)), 1, maxStoreDepth)
	between("threads", uint64(max(o.Threads, 0)), 1, maxThreads)
	between("keys", o.Keys, 1, maxStoreKeys)
	between("value", uint64(o.Value), 1, 1<<40)
	if o.Duration <= 0 {
		bad("--duration: %v is not a time to measure for", o.Duration)
	}
	return errors.Join(errs...)
}

// StoreResult is a finished measurement, in the form of "--json".
type StoreResult struct {
	Op           string  `json:"op"`
	Connections  int     `json:"connections"`
	Keys         uint64  `json:"keys"`
	Seconds      float64 `json:"seconds"` // measured, without filling and warm-up
	OpsPerSecond float64 `json:"ops_per_second"`
	LatencyUS    Latency `json:"latency_us"` // of an operation
	Errors       uint64  `json:"errors"`     // failed operations; they are not in the other figures

	// With a PID only: the master's processor time for an operation, failed ones included, and its memory
	// at the end.
	MasterCPU float64 `json:"master_cpu_us_per_op,omitempty"`
	MasterRSS uint64  `json:"master_rss_bytes,omitempty"`

	// FirstError is the cause of the first failed operation.
	FirstError error `json:"-"`
}

// WriteText writes the result for people.
func (r *StoreResult) WriteText(w io.Writer) error {
	_, err := fmt.Fprintf(w, `%s, %d connection%s, %d keys, %s
throughput   %s ops/s
latency      p50 %s, p99 %s, p99.9 %s
errors       %d
`,
		r.Op, r.Connections, plural(r.Connections), r.Keys, time.Duration(r.Seconds*float64(time.Second)).Round(time.Millisecond),
		strconv.FormatFloat(r.OpsPerSecond, 'f', 0, 64), micros(r.LatencyUS.P50), micros(r.LatencyUS.P99), micros(r.LatencyUS.P999), r.Errors)
	if err == nil && r.MasterRSS > 0 {
		_, err = fmt.Fprintf(w, "master       %.1f us of processor time an operation, %s resident\n", r.MasterCPU, decimal(float64(r.MasterRSS)))
	}
	if err == nil && r.FirstError != nil {
		_, err = fmt.Fprintf(w, "first error  %v\n", r.FirstError)
	}
	return err
}

// Store measures a Store master, ours or upstream's: it speaks the wire of 0.3.13. When ctx ends the
// measurement stops early and what was measured until then is returned without an error.
func Store(ctx context.Context, o StoreOptions) (_ *StoreResult, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s, err := openStore(ctx, &o)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() {
		if closeErr := s.close(); err == nil && closeErr != nil {
			err = fmt.Errorf("bench: %w", closeErr)
		}
	}()
	r := &StoreResult{Op: o.Op, Connections: o.Connections, Keys: o.Keys}
	filled, took, err := s.fill(ctx)
	if err != nil {
		return nil, fmt.Errorf("bench: fill: %w", err)
	}
	if o.Op == "fill" {
		r.Connections, r.Seconds, r.OpsPerSecond = 1, took.Seconds(), float64(filled)/took.Seconds()
	} else if err := s.measure(ctx, r); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if o.Ready != nil {
		if err := o.Ready(r); err != nil {
			return nil, err
		}
	}
	if o.Hold != nil {
		hold(ctx, o.Hold)
	}
	return r, nil
}

// hold returns at the end of r or of ctx. A reader that does not end is left to itself: the process is
// about to end.
func hold(ctx context.Context, r io.Reader) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, r) // an error is an end too
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}
