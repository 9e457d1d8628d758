package bench

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Options says what is measured.
type Options struct {
	Transport string        // name of the transport, shown in the result
	Op        string        // "read" or "write"
	Block     uint64        // bytes of one op
	Batch     int           // ops of one batch
	Threads   int           // goroutines, each with one batch in flight
	Duration  time.Duration // of the measurement, after a short warm-up
	// Verify checks the content after every batch. It takes CPU time, but the check itself is not part
	// of the measured time. It writes to the target's memory for reads too.
	Verify bool
	// Progress is called about five times a second during the measurement; nil = never.
	Progress func(Snapshot)
}

// Snapshot is the state of a running measurement.
type Snapshot struct {
	Elapsed time.Duration
	Bytes   uint64 // moved since the measurement began
	Errors  uint64
}

// Default limits of a run: enough for any sensible one, small enough to refuse a slip of the pen before
// memory is taken.
const (
	maxThreads = 1024
	maxBatch   = 1 << 20
)

// Validate names the flag of each bad value.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Op != "read" && o.Op != "write" {
		bad("--op: %q is unknown; use read or write", o.Op)
	}
	if o.Block == 0 {
		bad("--block: a block has at least 1 byte")
	}
	if o.Batch < 1 || o.Batch > maxBatch {
		bad("--batch: %d is not between 1 and %d", o.Batch, maxBatch)
	}
	if o.Threads < 1 || o.Threads > maxThreads {
		bad("--threads: %d is not between 1 and %d", o.Threads, maxThreads)
	}
	if o.Duration <= 0 {
		bad("--duration: %v is not a time to measure for", o.Duration)
	}
	if len(errs) == 0 && o.Block > math.MaxInt64/uint64(o.Batch)/uint64(o.Threads)/2 {
		bad("--block: %d bytes x %d blocks x %d threads is more than any machine has", o.Block, o.Batch, o.Threads)
	}
	return errors.Join(errs...)
}

// Need is the memory of one side: every block of every thread has its own place.
func (o *Options) Need() uint64 { return o.Block * uint64(o.Batch) * uint64(o.Threads) }
