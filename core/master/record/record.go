// Package record writes what clients ask a master for into a file that `mooncake replay` reads (package
// eviction/trace): hashes of keys, sizes, times, no keys and no values.
//
// The master hands its events over in passing. They are encoded at once, while the processor has them at hand: a fifth
// of their size goes through memory to the goroutine that compresses and writes. Between the two is a ring of fixed
// size: when the disk does not keep up, records are dropped and counted, and no request waits. A file that has grown to
// the limit is followed by the next part; the oldest parts are deleted.
package record

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"

	"github.com/mooncake-agent/mooncake/core/master"
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
	Dropped uint64 `json:"dropped"` // records that found the ring full, or came after an error
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
	r, err := newRecorder(&c.o, path)
	if err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	t, err := newTape(r)
	if err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	go t.run()
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
