package record

import (
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/trace"
)

// ringPieces is how many blocks of a recording may wait for the disk: 2 MB, some 160,000 records.
const ringPieces = 32

// piece is what goes to the file at once: the header of a part, or a block.
type piece struct {
	part    uint32
	records uint64
	b       []byte
}

// recorder is one recording. It encodes; its [tape] writes.
type recorder struct {
	o    *Options
	path string // of part 0
	full chan piece
	free chan []byte
	quit chan struct{}
	done chan struct{}

	lock    sync.Mutex // of all below
	w       *trace.Writer
	made    int              // pieces
	call    []eviction.Event // the last ones: a call that may go on
	part    uint32
	pending uint64 // records of the open block
	records uint64 // in the ring or written
	dropped uint64
	failed  error // nothing is written after it
}

var _ master.Recorder = (*recorder)(nil)

func newRecorder(o *Options, path string) (*recorder, error) {
	r := &recorder{o: o, path: path, full: make(chan piece, ringPieces), free: make(chan []byte, ringPieces), quit: make(chan struct{}), done: make(chan struct{})}
	return r, r.begin()
}

// begin starts the present part.
func (r *recorder) begin() error {
	w, err := trace.NewWriter(r, trace.Header{Source: r.o.Source, Start: time.Now().UnixMilli(), Capacity: r.o.Capacity(), Part: r.part})
	if err == nil {
		r.w = w
	}
	return err
}

// Offer implements [master.Recorder]. It wakes the writer once in a block, not for every call.
func (r *recorder) Offer(events []eviction.Event) {
	r.lock.Lock()
	defer r.lock.Unlock()
	for i := 0; i < len(events); {
		op := opOf(&events[i])
		if op == 0 {
			i++
			continue
		}
		if n := len(r.call); n > 0 && (!together(&r.call[n-1], &events[i]) || opOf(&r.call[n-1]) != op) {
			r.endCall()
		}
		j := i + 1
		for j < len(events) && together(&events[i], &events[j]) && opOf(&events[j]) == op {
			j++
		}
		if len(r.call) > 0 || j == len(events) {
			r.call = append(r.call, events[i:j]...) // it may go on in the next
		} else {
			r.write(events[i:j])
		}
		i = j
	}
	if r.w.Bytes() >= r.o.PartBytes && r.failed == nil {
		r.rotate()
	}
}

// together tells whether two events that say the same are of one call.
func together(a, b *eviction.Event) bool { return a.Req == b.Req && a.Tenant == b.Tenant }

// endCall writes the call that is kept.
func (r *recorder) endCall() {
	r.write(r.call)
	r.call = r.call[:0]
}

// write encodes the events of one call, which come deepest block first, its first key first.
func (r *recorder) write(call []eviction.Event) {
	if len(call) == 0 {
		return
	}
	if r.failed != nil {
		r.dropped += uint64(len(call))
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
			r.keep(err)
			r.dropped += uint64(i + 1)
			return
		}
		r.pending++
	}
}

// Write puts a header or a block of the encoder into the ring, or drops it with the records in it if there is no room.
// It is called with lock held and implements io.Writer.
func (r *recorder) Write(p []byte) (int, error) {
	if b, ok := r.buffer(); ok {
		r.full <- piece{r.part, r.pending, append(b, p...)} // there are as many places as buffers
		r.records += r.pending
	} else {
		r.dropped += r.pending
	}
	r.pending = 0
	return len(p), nil
}

// buffer returns an empty buffer, if not all are in use.
func (r *recorder) buffer() (b []byte, ok bool) {
	select {
	case b = <-r.free:
		return b[:0], true
	default:
	}
	if r.made == ringPieces {
		return nil, false
	}
	r.made++
	return make([]byte, 0, trace.BlockSize+64), true
}

// room is how many pieces the ring would take.
func (r *recorder) room() int { return ringPieces - r.made + len(r.free) }

// flush puts what was recorded so far into the ring.
func (r *recorder) flush() {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.endCall()
	if r.room() > 0 { // else it can wait
		r.keep(r.w.Flush())
	}
}

// rotate goes on in the next part, if there is room for the end of this one and the header of the next.
func (r *recorder) rotate() {
	r.endCall()
	if r.room() < 2 {
		return
	}
	r.keep(r.w.Flush())
	r.part++
	r.keep(r.begin())
}

// keep keeps the first error.
func (r *recorder) keep(err error) {
	if err == nil || r.failed != nil {
		return
	}
	r.failed = err
	r.o.Log.Error("the recording failed; what comes is dropped", "file", partPath(r.path, r.part), "error", err)
}

// lost tells that records that were in the ring are not in the file, because of err.
func (r *recorder) lost(records uint64, err error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.keep(err)
	r.records -= records
	r.dropped += records
}

func (r *recorder) status() Status {
	r.lock.Lock()
	defer r.lock.Unlock()
	s := Status{Running: true, File: partPath(r.path, r.part), Part: r.part, Records: r.records + r.pending, Bytes: r.w.Bytes(), Dropped: r.dropped}
	if r.failed != nil {
		s.Error = r.failed.Error()
	}
	return s
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
