package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Mover is what is measured: something with a local and a remote memory that moves blocks between
// them. Offsets count from the start of each memory, which both have at least Options.Need bytes.
type Mover interface {
	// Local is the local memory, registered and mapped.
	Local() []byte
	// Prepare returns a function that moves ops once and waits for the end of all of them. It is
	// called by one goroutine at a time, many times.
	Prepare(ops []Op) (func(ctx context.Context, write bool) error, error)
	// CPU is the processor time used so far on both sides, as far as it can be known.
	CPU() (time.Duration, error)
}

// Op is one block.
type Op struct{ Local, Remote, Len uint64 }

const (
	warmUp       = 100 * time.Millisecond
	grace        = 30 * time.Second // for the last batches after Duration
	manyErrors   = 10               // failed batches in a row that end a thread
	progressStep = 200 * time.Millisecond
)

// Run measures m. When ctx ends the measurement stops early and what was measured until then is
// returned without an error. An error means that there is no result: bad options, or no batch of the
// warm-up went through.
func Run(ctx context.Context, m Mover, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if have := uint64(len(m.Local())); have < o.Need() {
		return nil, fmt.Errorf("bench: %d bytes of local memory, %d needed", have, o.Need())
	}
	r := &run{m: m, o: o, begin: make(chan struct{})}
	for i := range o.Threads {
		w, err := r.worker(i)
		if err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		r.workers = append(r.workers, w)
	}
	return r.measure(ctx)
}

type run struct {
	m       Mover
	o       Options
	workers []*worker
	bytes   atomic.Uint64
	errors  atomic.Uint64
	begin   chan struct{} // closed at the start of the measurement
	until   time.Time     // end of the measurement, set before begin is closed
}

// worker is one thread. Its fields belong to its goroutine until that has ended.
type worker struct {
	r       *run
	id      int
	move    func(ctx context.Context, write bool) error
	blocks  [][]byte // local memory, one per op
	round   int
	hist    histogram
	busy    time.Duration // inside move, since begin
	batches int
	err     error // first
}

func (r *run) worker(id int) (*worker, error) {
	w := &worker{r: r, id: id}
	ops := make([]Op, r.o.Batch)
	for i := range ops {
		off := uint64(id*r.o.Batch+i) * r.o.Block
		ops[i] = Op{Local: off, Remote: off, Len: r.o.Block}
		w.blocks = append(w.blocks, r.m.Local()[off:off+r.o.Block])
	}
	var err error
	w.move, err = r.m.Prepare(ops)
	return w, err
}

func (r *run) measure(ctx context.Context) (*Result, error) {
	hard, cancel := context.WithCancel(ctx)
	defer cancel()
	var warm, all sync.WaitGroup
	for _, w := range r.workers {
		warm.Add(1)
		all.Go(func() {
			err := w.warmUp(hard)
			warm.Done()
			if err != nil {
				w.err = err
				r.errors.Add(1)
				return
			}
			<-r.begin
			w.loop(hard)
		})
	}
	warm.Wait()
	cpu, cpuErr := r.m.CPU()
	start := time.Now()
	r.until = start.Add(r.o.Duration)
	timer := time.AfterFunc(r.o.Duration+grace, cancel)
	defer timer.Stop()
	close(r.begin)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		all.Wait()
	}()
	r.watch(start, ended)
	wall := time.Since(start)
	cpuEnd, err := r.m.CPU()
	if cpuErr = errors.Join(cpuErr, err); cpuErr != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("bench: processor time: %w", cpuErr)
	}
	return r.result(wall, cpuEnd-cpu)
}

// watch reports progress until all workers have ended.
func (r *run) watch(start time.Time, ended <-chan struct{}) {
	tick := time.NewTicker(progressStep)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			if r.o.Progress != nil {
				r.o.Progress(Snapshot{time.Since(start), r.bytes.Load(), r.errors.Load()})
			}
		}
	}
}

func (r *run) result(wall, cpu time.Duration) (*Result, error) {
	var hist histogram
	var busy time.Duration
	var batches int
	var first error
	for _, w := range r.workers {
		hist.merge(&w.hist)
		busy += w.busy
		batches += w.batches
		if first == nil {
			first = w.err
		}
	}
	if batches == 0 && first != nil {
		return nil, fmt.Errorf("bench: nothing was moved: %w", first)
	}
	seconds := wall.Seconds()
	if r.o.Verify {
		seconds = (busy / time.Duration(len(r.workers))).Seconds()
	}
	res := &Result{
		Transport: r.o.Transport, Op: r.o.Op, BlockBytes: r.o.Block, Batch: r.o.Batch, Threads: r.o.Threads,
		Seconds: seconds, LatencyUS: hist.latency(), Errors: r.errors.Load(), FirstError: first,
	}
	if moved := float64(r.bytes.Load()); moved > 0 && seconds > 0 {
		res.BytesPerSecond = moved / seconds
		res.OpsPerSecond = moved / float64(r.o.Block) / seconds
		res.CPUSecondsPerGB = cpu.Seconds() / (moved / 1e9)
	}
	return res, nil
}

// warmUp opens connections and touches all memory: at least one batch.
func (w *worker) warmUp(ctx context.Context) error {
	if w.r.o.Op == "read" && w.r.o.Verify {
		w.fillAll()
		if err := w.move(ctx, true); err != nil {
			return err
		}
	}
	for end := time.Now().Add(min(warmUp, w.r.o.Duration)); ; {
		if _, err := w.batch(ctx); err != nil {
			return err
		}
		if !time.Now().Before(end) {
			return nil
		}
	}
}

func (w *worker) loop(ctx context.Context) {
	failed := 0
	for ctx.Err() == nil && time.Now().Before(w.r.until) && failed < manyErrors {
		took, err := w.batch(ctx)
		w.busy += took
		if err != nil {
			if ctx.Err() != nil {
				return // stopped, not failed
			}
			failed++
			w.r.errors.Add(1)
			if w.err == nil {
				w.err = err
			}
			continue
		}
		failed = 0
		w.batches++
		w.hist.add(took)
		w.r.bytes.Add(w.r.o.Block * uint64(w.r.o.Batch))
	}
}

// batch moves one batch, with its content checks around the measured part.
func (w *worker) batch(ctx context.Context) (took time.Duration, err error) {
	write := w.r.o.Op == "write"
	verify := w.r.o.Verify
	if verify {
		if write {
			w.round++
			w.fillAll()
		} else {
			w.clearAll()
		}
	}
	start := time.Now()
	err = w.move(ctx, write)
	took = time.Since(start)
	if err != nil || !verify {
		return took, err
	}
	if write { // read back into memory that does not hold the pattern any more
		w.clearAll()
		if err := w.move(ctx, false); err != nil {
			return took, fmt.Errorf("read back: %w", err)
		}
	}
	for i, b := range w.blocks {
		if err := check(b, seedOf(w.id, w.round, i)); err != nil {
			return took, fmt.Errorf("block %d of a batch: %w", i, err)
		}
	}
	return took, nil
}

func (w *worker) fillAll() {
	for i, b := range w.blocks {
		fill(b, seedOf(w.id, w.round, i))
	}
}

func (w *worker) clearAll() {
	for _, b := range w.blocks {
		clear(b)
	}
}
