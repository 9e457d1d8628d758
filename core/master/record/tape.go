package record

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/eviction/trace"
)

const flushPeriod = time.Second

// compressor is what trace.NewCompressor makes for names that ask for it.
type compressor interface {
	io.WriteCloser
	Flush() error
}

// tape owns the files of a recording.
type tape struct {
	r      *recorder
	part   uint32
	file   *os.File
	w      io.Writer
	zip    compressor // w, or nil
	failed error
}

// newTape makes the file of part 0.
func newTape(r *recorder) (*tape, error) {
	t := &tape{r: r}
	return t, t.open(0)
}

// open makes the file of a part, readable by its owner only.
func (t *tape) open(part uint32) error {
	path := partPath(t.r.path, part)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	w, err := trace.NewCompressor(path, f)
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(path))
	}
	t.part, t.file, t.w = part, f, w
	t.zip, _ = w.(compressor)
	return nil
}

func (t *tape) close() error {
	var err error
	if t.zip != nil {
		err = t.zip.Close()
	}
	return errors.Join(err, t.file.Close())
}

// run writes until the recording ends.
func (t *tape) run() {
	defer close(t.r.done)
	tick := time.NewTicker(flushPeriod)
	defer tick.Stop()
	for {
		select {
		case p := <-t.r.full:
			t.take(p)
		case <-tick.C:
			t.catchUp()
			if t.zip != nil && t.failed == nil {
				t.fail(t.zip.Flush(), 0)
			}
		case <-t.r.quit:
			t.catchUp()
			if err := t.close(); t.failed == nil {
				t.fail(err, 0)
			}
			return
		}
	}
}

// catchUp writes all that was recorded so far.
func (t *tape) catchUp() {
	t.empty()
	t.r.flush()
	t.empty()
}

// empty writes what is in the ring.
func (t *tape) empty() {
	for range len(t.r.full) {
		t.take(<-t.r.full)
	}
}

// take writes a piece, or throws it away if writing has failed before.
func (t *tape) take(p piece) {
	err := t.failed
	if err == nil {
		err = t.write(p)
	}
	t.fail(err, p.records)
	t.r.free <- p.b
}

func (t *tape) write(p piece) error {
	if p.part != t.part {
		if err := t.next(p.part); err != nil {
			return err
		}
	}
	_, err := t.w.Write(p.b)
	return err
}

func (t *tape) fail(err error, records uint64) {
	if err != nil {
		t.failed = err
		t.r.lost(records, err)
	}
}

// next goes on in another file and deletes the oldest.
func (t *tape) next(part uint32) error {
	if err := t.close(); err != nil {
		return err
	}
	if err := t.open(part); err != nil {
		return err
	}
	if old := int64(part) - int64(t.r.o.Parts); old >= 0 {
		if err := os.Remove(partPath(t.r.path, uint32(old))); err != nil {
			t.r.o.Log.Warn("an old part of the recording stays", "error", err)
		}
	}
	return nil
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
