package wasm

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/cpu"

	"github.com/mooncake-agent/mooncake/plugins/wasm/meter"
)

// cache is the folder of compiled code: one entry, a folder, for each module and machine. What lies in it is
// executed, so it must belong to this user and to nobody else.
type cache struct{ dir string }

const (
	keepEntries = 32            // older ones go
	staleAfter  = 2 * time.Hour // unfinished entries of processes that ended
	entryFile   = "entry.json"
	partPrefix  = "part-"
)

// entry is what a finished entry says of itself.
type entry struct {
	Metered   string `json:"metered_sha256"` // of the rewritten module
	CodeBytes uint64 `json:"code_bytes"`     // of the files with machine code
}

// openCache makes and checks the folder. An empty name is the default place.
func openCache(dir string) (*cache, error) {
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil { // a service without a home
			base = filepath.Join(os.TempDir(), fmt.Sprintf("mooncake-%d", os.Geteuid()))
		}
		dir = filepath.Join(base, "mooncake", "wasm")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("cache_dir: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cache_dir: %w; name a folder that this user may write", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, fmt.Errorf("cache_dir: %w", err)
	}
	return &cache{dir}, checkFolder(dir, info)
}

// checkFolder refuses a folder to which anybody else could write machine code.
func checkFolder(dir string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("cache_dir: %s is %s, not a folder", dir, info.Mode().Type())
	case !ok:
		return fmt.Errorf("cache_dir: the owner of %s is not known", dir)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("cache_dir: %s belongs to user %d, this is user %d: compiled code is only taken from a folder of one's own", dir, st.Uid, os.Geteuid())
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("cache_dir: others may enter %s (mode %#o): chmod 700, and remove what is in it if you did not put it there", dir, info.Mode().Perm())
	}
	return nil
}

// key names the entry of a module: its own bytes and all that its machine code depends on.
func (c *cache) key(module [32]byte) string {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOOS, runtime.GOARCH, engineVersion(), meter.ReserveExport, meter.Slice, cpu.X86, cpu.ARM64)
	return hex.EncodeToString(module[:]) + "-" + hex.EncodeToString(h.Sum(nil)[:6])
}

// engineVersion is wazero's version in this binary.
func engineVersion() string {
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, d := range b.Deps {
			if d.Path == "github.com/tetratelabs/wazero" {
				return d.Version
			}
		}
	}
	return "unknown"
}

func (c *cache) path(key string) string { return filepath.Join(c.dir, key) }

// find returns the entry if it is finished and its code is there.
func (c *cache) find(key string) (*entry, bool) {
	b, err := os.ReadFile(filepath.Join(c.path(key), entryFile))
	if err != nil {
		return nil, false
	}
	var e entry
	if json.Unmarshal(b, &e) != nil || e.CodeBytes == 0 || e.CodeBytes != codeBytes(c.path(key)) {
		return nil, false
	}
	now := time.Now()
	_ = os.Chtimes(c.path(key), now, now) // used: only its place in the queue to be removed depends on it
	return &e, true
}

// codeBytes adds up the files that wazero has written into an entry.
func codeBytes(dir string) (n uint64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error { // what cannot be read does not count
		if err == nil && d.Type().IsRegular() && d.Name() != entryFile {
			if i, err := d.Info(); err == nil {
				n += uint64(i.Size())
			}
		}
		return nil
	})
	return n
}

// begin makes the folder of an unfinished entry.
func (c *cache) begin() (string, error) {
	dir, err := os.MkdirTemp(c.dir, partPrefix)
	if err != nil {
		return "", fmt.Errorf("cache_dir: %w", err)
	}
	return dir, nil
}

// finish turns an unfinished entry into the entry of key. One that somebody else has finished meanwhile stays: it may
// be in use, and is the same.
func (c *cache) finish(part, key string, e entry) error {
	e.CodeBytes = codeBytes(part)
	b, err := json.Marshal(e)
	if err == nil {
		err = os.WriteFile(filepath.Join(part, entryFile), append(b, '\n'), 0o600)
	}
	if err == nil {
		if err = os.Rename(part, c.path(key)); errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
			if there, ok := c.find(key); ok && there.Metered == e.Metered {
				return nil
			}
			if err = os.RemoveAll(c.path(key)); err == nil {
				err = os.Rename(part, c.path(key))
			}
		}
	}
	if err != nil {
		return fmt.Errorf("cache_dir: %w", err)
	}
	c.prune(key)
	return nil
}

// prune removes the entries that were not used for the longest time, and unfinished ones that nobody finishes.
func (c *cache) prune(keep string) {
	list, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	type aged struct {
		name string
		at   time.Time
	}
	var entries []aged
	for _, d := range list {
		info, err := d.Info()
		if err != nil || !d.IsDir() || d.Name() == keep {
			continue
		}
		if strings.HasPrefix(d.Name(), partPrefix) {
			if time.Since(info.ModTime()) > staleAfter {
				_ = os.RemoveAll(c.path(d.Name())) // tried again next time
			}
			continue
		}
		entries = append(entries, aged{d.Name(), info.ModTime()})
	}
	slices.SortFunc(entries, func(a, b aged) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.name, b.name)) })
	for _, e := range entries[min(len(entries), keepEntries-1):] {
		_ = os.RemoveAll(c.path(e.name)) // tried again next time
	}
}
