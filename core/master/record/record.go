// Package record writes what clients ask a master for into a file that `mooncake replay` reads (package
// eviction/trace): hashes of keys, sizes, times, no keys and no values.
//
// The master hands its events over in passing; a goroutine writes them. Between them is a ring of fixed size: when
// the disk does not keep up, records are dropped and counted, and no request waits. A file that has grown to the
// limit is followed by the next part; the oldest parts are deleted.
package record

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/trace"
)

// Store is what is recorded, a [master.Service].
type Store interface {
	Record(r master.Recorder)
}

var _ Store = (*master.Service)(nil)

// Options say where and how much.
type Options struct {
	// Dir is the folder in which recordings may be started by name; "" allows none.
	Dir string
	// PartBytes is the size at which a file is followed by the next part, before compression.
	PartBytes uint64
	// Parts is how many files of a recording are kept.
	Parts int
	// Source is the program's name and version, Capacity the store's room in bytes; both are noted in the file.
	Source   string
	Capacity func() uint64
	Log      *slog.Logger
}

// Status of the recording.
type Status struct {
	Running bool   `json:"running"`
	File    string `json:"file,omitempty"` // the present part
	Part    uint32 `json:"part"`
	Records uint64 `json:"records"` // written since the start
	Bytes   uint64 `json:"bytes"`   // before compression
	Dropped uint64 `json:"dropped"` // events that found the ring full
	Error   string `json:"error,omitempty"`
}

// Control starts and stops recordings of one store. Safe for concurrent use.
type Control struct {
	o     Options
	store Store

	mu   sync.Mutex
	run  *recorder
	last Status
}

// New makes a control; nothing is recorded yet.
func New(store Store, o Options) *Control {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Capacity == nil {
		o.Capacity = func() uint64 { return 0 }
	}
	return &Control{o: o, store: store}
}

// Start begins a recording in a file of the configured folder; name is a plain file name, compressed if it ends
// in .gz or .zst.
func (c *Control) Start(name string) error {
	if c.o.Dir == "" {
		return errors.New("recording: no folder is configured for it; start the master with --record_dir")
	}
	if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return fmt.Errorf("recording: %q is not a plain file name; the file is made in %s", name, c.o.Dir)
	}
	return c.Open(filepath.Join(c.o.Dir, name))
}

// Open begins a recording in a new file.
func (c *Control) Open(path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run != nil {
		return fmt.Errorf("recording: %s is being written; stop it first", c.run.path)
	}
	r := &recorder{o: &c.o, path: path, full: make(chan []eviction.Event, ringBuffers), free: make(chan []eviction.Event, ringBuffers), quit: make(chan struct{}), done: make(chan struct{})}
	if err := r.begin(); err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	go r.run()
	c.run = r
	c.store.Record(r)
	c.o.Log.Info("recording", "file", path)
	return nil
}

// Stop ends the recording and waits until its file is complete.
func (c *Control) Stop() (Status, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run == nil {
		return c.last, errors.New("recording: nothing is being recorded")
	}
	c.store.Record(nil)
	close(c.run.quit)
	<-c.run.done
	c.last = c.run.status()
	c.last.Running = false
	c.run = nil
	c.o.Log.Info("recording ended", "file", c.last.File, "records", c.last.Records, "dropped", c.last.Dropped)
	if c.last.Error != "" {
		return c.last, errors.New("recording: " + c.last.Error)
	}
	return c.last, nil
}

// Status tells about the running recording, or the last one.
func (c *Control) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run == nil {
		return c.last
	}
	return c.run.status()
}

// Close stops a recording if there is one.
func (c *Control) Close() error {
	if c.Status().Running {
		_, err := c.Stop()
		return err
	}
	return nil
}

const (
	ringBuffers  = 32
	bufferEvents = 4096 // 256 KiB
	flushPeriod  = time.Second
)

// recorder is one recording.
type recorder struct {
	o    *Options
	path string // of part 0
	full chan []eviction.Event
	free chan []eviction.Event
	lock sync.Mutex
	made int              // buffers
	open []eviction.Event // the buffer that is being filled
	quit chan struct{}
	done chan struct{}

	w       *trace.Writer
	call    []eviction.Event // the end of the last buffer: a call that may go on
	failed  error
	records atomic.Uint64
	bytes   atomic.Uint64
	dropped atomic.Uint64

	mu    sync.Mutex // of what status shows
	file  string
	part  uint32
	error string
}

// Offer implements [master.Recorder]. It wakes the writer once in a buffer, not for every call.
func (r *recorder) Offer(events []eviction.Event) {
	r.lock.Lock()
	defer r.lock.Unlock()
	for len(events) > 0 {
		if r.open == nil {
			if r.open = r.buffer(); r.open == nil {
				r.dropped.Add(uint64(len(events)))
				return
			}
		}
		n := min(len(events), bufferEvents-len(r.open))
		r.open = append(r.open, events[:n]...)
		events = events[n:]
		if len(r.open) == bufferEvents {
			r.handOver()
		}
	}
}

// handOver gives the open buffer to the writer; called with lock held.
func (r *recorder) handOver() {
	if r.open != nil {
		r.full <- r.open // there are as many places as buffers
		r.open = nil
	}
}

// buffer returns an empty buffer, nil if all are in use; called with lock held.
func (r *recorder) buffer() []eviction.Event {
	select {
	case b := <-r.free:
		return b[:0]
	default:
	}
	if r.made == ringBuffers {
		return nil
	}
	r.made++
	return make([]eviction.Event, 0, bufferEvents)
}

// takeOpen lets the writer have what waits in the open buffer.
func (r *recorder) takeOpen() {
	r.lock.Lock()
	r.handOver()
	r.lock.Unlock()
	for {
		select {
		case b := <-r.full:
			r.take(b)
		default:
			return
		}
	}
}

// run is the goroutine that owns the file.
func (r *recorder) run() {
	defer close(r.done)
	tick := time.NewTicker(flushPeriod)
	defer tick.Stop()
	for {
		select {
		case b := <-r.full:
			r.take(b)
		case <-tick.C:
			r.takeOpen()
			r.endCall()
			r.check(r.w.Flush())
			r.bytes.Store(r.w.Bytes())
		case <-r.quit:
			r.takeOpen()
			r.endCall()
			r.check(r.w.Close())
			return
		}
	}
}

// take writes the events of a buffer. The call at its end may go on in the next one: it is kept until then.
func (r *recorder) take(b []eviction.Event) {
	for i := 0; i < len(b); {
		op := opOf(&b[i])
		if op == 0 {
			i++
			continue
		}
		if n := len(r.call); n > 0 && (!together(&r.call[n-1], &b[i]) || opOf(&r.call[n-1]) != op) {
			r.endCall()
		}
		j := i + 1
		for j < len(b) && together(&b[i], &b[j]) && opOf(&b[j]) == op {
			j++
		}
		if len(r.call) > 0 || j == len(b) {
			r.call = append(r.call, b[i:j]...)
		} else {
			r.write(b[i:j])
		}
		i = j
	}
	r.free <- b
	r.bytes.Store(r.w.Bytes())
	if r.w.Bytes() >= r.o.PartBytes && r.failed == nil {
		r.rotate()
	}
}

// together tells whether two events that say the same are of one call.
func together(a, b *eviction.Event) bool { return a.Req == b.Req && a.Tenant == b.Tenant }

// check keeps the first error: nothing is written after it.
func (r *recorder) check(err error) {
	if err == nil || r.failed != nil {
		return
	}
	r.failed = err
	r.mu.Lock()
	r.error = err.Error()
	r.mu.Unlock()
	r.o.Log.Error("the recording failed; what comes is dropped", "file", r.file, "error", err)
}

// opOf is what an event says that a client did, 0 nothing.
func opOf(e *eviction.Event) trace.Op {
	switch e.Kind {
	case eviction.Insert:
		return trace.Put
	case eviction.Access:
		if master.ByRead(e) {
			return trace.Get
		}
	case eviction.Probe:
		return trace.Exist
	case eviction.Ghost:
		switch {
		case e.Size != 0: // about to be put
		case master.ByRead(e):
			return trace.Get
		default:
			return trace.Exist
		}
	case eviction.Remove:
		switch e.Code {
		case eviction.CodeRemoved:
			return trace.Remove
		case eviction.CodeEvicted:
			return trace.Evict
		}
		return trace.Lose
	case eviction.Resize:
		return trace.Resize
	}
	return 0
}

func flagsOf(e *eviction.Event) (f trace.Flags) {
	switch e.Kind {
	case eviction.Access, eviction.Probe:
		f = trace.Found
	case eviction.Insert:
		if e.Flags&eviction.FlagSoftPin != 0 {
			f |= trace.SoftPin
		}
		if e.Flags&eviction.FlagHardPin != 0 {
			f |= trace.HardPin
		}
	}
	return f
}

// endCall writes the call that is kept.
func (r *recorder) endCall() {
	r.write(r.call)
	r.call = r.call[:0]
}

// write writes the events of one call, which come deepest block first, its first key first.
func (r *recorder) write(call []eviction.Event) {
	if len(call) == 0 {
		return
	}
	if r.failed != nil {
		r.dropped.Add(uint64(len(call)))
		return
	}
	op := opOf(&call[0])
	chain := op == trace.Get || op == trace.Put || op == trace.Exist
	// All events of a call have these in common. The rest is set field by field: a literal is put together elsewhere
	// and copied, which waits for its small parts.
	rec := trace.Record{Op: op, Tenant: call[0].Tenant, Batch: call[0].Req}
	for i := len(call) - 1; i >= 0; i-- {
		e := &call[i]
		if chain {
			rec.Parent = rec.Key
		}
		rec.Flags, rec.TimeMS, rec.Key, rec.Size = flagsOf(e), e.NowMS, e.KeyHash, e.Size
		if err := r.w.Append(&rec); err != nil {
			r.check(err)
			r.dropped.Add(uint64(i + 1))
			return
		}
	}
	r.records.Add(uint64(len(call)))
}

// partPath is where a part is written: x.trace.zst, x-1.trace.zst, ...
func partPath(path string, part uint32) string {
	if part == 0 {
		return path
	}
	dir, name := filepath.Split(path)
	stem, ext, dot := strings.Cut(name, ".")
	if dot {
		ext = "." + ext
	}
	return filepath.Join(dir, stem+"-"+strconv.FormatUint(uint64(part), 10)+ext)
}

// begin opens the present part.
func (r *recorder) begin() error {
	path := partPath(r.path, r.part)
	w, err := trace.Create(path, trace.Header{Source: r.o.Source, Start: time.Now().UnixMilli(), Capacity: r.o.Capacity(), Part: r.part})
	if err != nil {
		return err
	}
	r.w = w
	r.mu.Lock()
	r.file = path
	r.mu.Unlock()
	return nil
}

// rotate goes on in the next part.
func (r *recorder) rotate() {
	r.endCall()
	if err := r.w.Close(); err != nil {
		r.check(err)
		return
	}
	r.mu.Lock()
	r.part++
	r.mu.Unlock()
	if err := r.begin(); err != nil {
		r.check(err)
		return
	}
	if old := int64(r.part) - int64(r.o.Parts); old >= 0 {
		if err := os.Remove(partPath(r.path, uint32(old))); err != nil {
			r.o.Log.Warn("an old part of the recording stays", "error", err)
		}
	}
}

func (r *recorder) status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Status{Running: true, File: r.file, Part: r.part, Records: r.records.Load(), Bytes: r.bytes.Load(), Dropped: r.dropped.Load(), Error: r.error}
}
