package external

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// maxRunDir leaves room in the 107 bytes of a Unix socket's name for what go-plugin appends.
const maxRunDir = 56

// runDirs holds the private folder of this process below each base folder, with its lock.
var runDirs struct {
	mu   sync.Mutex
	held map[string]*heldDir
}

type heldDir struct {
	path  string
	lock  *os.File
	users int
}

// openRunDir returns a folder of mode 0700 for the sockets of this process's plugins. Folders of processes that have
// ended are removed: whoever lives holds a lock in his own. The caller owes a closeRunDir.
func openRunDir(base string) (path string, err error) {
	base = runDirOf(base)
	if err := checkName(base); err != nil {
		return "", err
	}
	r := &runDirs
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.held[base]; h != nil {
		h.users++
		return h.path, nil
	}
	if err := os.MkdirAll(base, 0o700); err != nil {
		return "", fmt.Errorf("run_dir: %w", err)
	}
	if err := checkFolder(base); err != nil {
		return "", err
	}
	removeStale(base)
	for range 3 { // another process may take it for stale before it is locked
		path, lock, err := makeRunDir(base)
		if err != nil {
			return "", fmt.Errorf("run_dir: %w", err)
		}
		if lock == nil {
			continue
		}
		if r.held == nil {
			r.held = map[string]*heldDir{}
		}
		r.held[base] = &heldDir{path: path, lock: lock, users: 1}
		return path, nil
	}
	return "", fmt.Errorf("run_dir: folders below %s vanish as soon as they are made", base)
}

// runDirOf is the base folder that run_dir means.
func runDirOf(base string) string {
	if base == "" {
		base = filepath.Join(os.TempDir(), fmt.Sprintf("mooncake-plugins-%d", os.Getuid()))
	}
	return absolute(base)
}

func checkName(base string) error {
	if len(base) > maxRunDir {
		return fmt.Errorf("run_dir: %s has %d bytes, at most %d fit into the name of a socket; name a shorter one", base, len(base), maxRunDir)
	}
	return nil
}

func checkFolder(base string) error {
	var st unix.Stat_t
	if err := unix.Lstat(base, &st); err != nil {
		return fmt.Errorf("run_dir: %s: %w", base, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Getuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("run_dir: %s must be a folder of this user with mode 0700 (chmod 700)", base)
	}
	return nil
}

// makeRunDir makes a folder and locks it; lock is nil if it was removed before it was locked.
func makeRunDir(base string) (path string, lock *os.File, err error) {
	path, err = os.MkdirTemp(base, "")
	if err != nil {
		return "", nil, err
	}
	name := filepath.Join(path, lockName)
	lock, err = os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(path))
	}
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		if _, err := os.Lstat(name); err == nil {
			return path, lock, nil
		}
	}
	lock.Close()
	return "", nil, nil
}

const lockName = ".lock"

// removeStale removes the folders whose owner has ended. Those without a lock are left: one is just being made.
func removeStale(base string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(base, e.Name())
		lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(path)
		}
		lock.Close()
	}
}

// closeRunDir gives a folder back; it is removed with the last user.
func closeRunDir(path string) {
	r := &runDirs
	r.mu.Lock()
	defer r.mu.Unlock()
	for base, h := range r.held {
		if h.path != path {
			continue
		}
		if h.users--; h.users == 0 {
			_ = os.RemoveAll(h.path)
			h.lock.Close()
			delete(r.held, base)
		}
		return
	}
}
