package config

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/fsnotify/fsnotify"
)

const (
	// watchQuiet is how long the folder must be quiet before the file is read: editors and the
	// kubelet make several events of one change.
	watchQuiet = 200 * time.Millisecond
	// watchMax bounds the wait in a folder that is never quiet.
	watchMax = 2 * time.Second
	// watchPoll finds changes that no event tells: network file systems, a replaced folder.
	watchPoll = 10 * time.Second
)

// Watch calls changed each time the content of l's file differs from what was last seen, beginning with
// what l was loaded from. It watches folders, not the file, so it sees editors that write a new file
// and rename it, and the Kubernetes symlink swap of ..data. A file that is gone is no change: the
// next one with other content is. Watch blocks until ctx ends and then returns nil; changed is called
// on the same goroutine. Without a file it waits for ctx.
func (l *Loaded) Watch(ctx context.Context, changed func()) error {
	if l.path == "" {
		<-ctx.Done()
		return nil
	}
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("config: watch %s: %w", l.path, err)
	}
	defer fs.Close()
	w := &watch{path: l.path, digest: l.digest, fs: fs, dirs: map[string]bool{}}
	w.follow()
	if len(w.dirs) == 0 {
		return fmt.Errorf("config: watch %s: its folder cannot be watched", l.path)
	}
	poll := time.NewTicker(watchPoll)
	defer poll.Stop()
	// The file may have changed between Load and here.
	quiet, since := time.After(watchQuiet), time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-fs.Events:
			if !ok {
				return fmt.Errorf("config: watch %s: ended", l.path)
			}
			if quiet == nil {
				since = time.Now()
			}
			quiet = time.After(min(watchQuiet, max(0, watchMax-time.Since(since))))
		case <-fs.Errors: // lost events: look for ourselves
			quiet = time.After(watchQuiet)
		case <-poll.C:
			if quiet == nil {
				quiet, since = time.After(0), time.Now()
			}
		case <-quiet:
			quiet = nil
			w.follow()
			if w.differs() {
				changed()
			}
		}
	}
}

type watch struct {
	path   string
	digest uint64
	fs     *fsnotify.Watcher
	dirs   map[string]bool
}

// follow watches the folder of the path and of every symlink on the way to the file. Removed folders
// drop out by themselves in the kernel; adding one again is harmless.
func (w *watch) follow() {
	want := map[string]bool{filepath.Dir(w.path): true}
	if real, err := filepath.EvalSymlinks(w.path); err == nil {
		want[filepath.Dir(real)] = true
	}
	for dir := range want {
		if err := w.fs.Add(dir); err != nil {
			delete(want, dir)
		}
	}
	for dir := range w.dirs {
		if !want[dir] {
			_ = w.fs.Remove(dir) // an error means that it is gone already
		}
	}
	w.dirs = maps.Clone(want)
}

func (w *watch) differs() bool {
	data, p := readFile(w.path)
	if p != nil {
		return false
	}
	sum := xxhash.Sum64(data)
	if sum == w.digest {
		return false
	}
	w.digest = sum
	return true
}
