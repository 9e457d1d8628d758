// Command external-metadata is a metadata backend that keeps each key in a file of its own in one folder, for the nodes
// of one machine or of a shared file system. Its configuration: {"folder": "/var/lib/mooncake/meta"}.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/plugins/sdk/external"
)

func main() {
	err := external.ServeMetadata(external.About{Name: "folder", Version: "1.0"}, open)
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// open takes the configuration. An error here refuses it.
func open(c external.Config) (*folder, error) {
	var config struct {
		Folder string `json:"folder"`
	}
	if err := c.Decode(&config); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(config.Folder) {
		return nil, fmt.Errorf("folder: %q is no path from the root", config.Folder)
	}
	if err := os.MkdirAll(config.Folder, 0o700); err != nil {
		return nil, fmt.Errorf("folder: %w", err)
	}
	return &folder{dir: config.Folder}, nil
}

// folder is the backend. A file holds its key's length, a line feed, the key and the value.
type folder struct {
	dir    string
	closed atomic.Bool
}

// folder can list, too. It has no Commit: two files cannot be replaced in one step.
var _ metadata.Lister = (*folder)(nil)

// Get implements metadata.Backend.
func (f *folder) Get(ctx context.Context, key string) (metadata.Entry, error) {
	if err := f.check(ctx, key); err != nil {
		return metadata.Entry{}, err
	}
	return f.read(f.file(key))
}

// Put implements metadata.Backend. A reader sees the old value or the new one, since a rename is one step.
func (f *folder) Put(ctx context.Context, key string, value []byte) error {
	if err := f.check(ctx, key); err != nil {
		return err
	}
	t, err := os.CreateTemp(f.dir, ".put-*")
	if err != nil {
		return unavailable(err)
	}
	defer os.Remove(t.Name()) // gone already after the rename
	_, err = fmt.Fprintf(t, "%d\n%s%s", len(key), key, value)
	if err = errors.Join(err, t.Close()); err != nil {
		return unavailable(err)
	}
	if err := os.Rename(t.Name(), f.file(key)); err != nil {
		return unavailable(err)
	}
	return nil
}

// Delete implements metadata.Backend.
func (f *folder) Delete(ctx context.Context, key string) error {
	if err := f.check(ctx, key); err != nil {
		return err
	}
	if err := os.Remove(f.file(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unavailable(err)
	}
	return nil
}

// List implements metadata.Lister.
func (f *folder) List(ctx context.Context, prefix string) ([]metadata.Entry, error) {
	if err := f.check(ctx, "any"); err != nil {
		return nil, err
	}
	names, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, unavailable(err)
	}
	var all []metadata.Entry
	for _, n := range names {
		if strings.HasPrefix(n.Name(), ".") {
			continue
		}
		e, err := f.read(filepath.Join(f.dir, n.Name()))
		if errors.Is(err, metadata.ErrNotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(e.Key, prefix) {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b metadata.Entry) int { return strings.Compare(a.Key, b.Key) })
	return all, nil
}

// Close implements metadata.Backend.
func (f *folder) Close() error {
	f.closed.Store(true)
	return nil
}

// check says why a call cannot be made.
func (f *folder) check(ctx context.Context, key string) error {
	switch {
	case f.closed.Load():
		return metadata.ErrClosed
	case ctx.Err() != nil:
		return fmt.Errorf("folder: %w: %w", metadata.ErrUnavailable, ctx.Err())
	case key == "":
		return fmt.Errorf("folder: the key is empty: %w", metadata.ErrRefused)
	}
	return nil
}

// file is where a key is: under a hash, because a key may hold any bytes and be longer than a file's name.
func (f *folder) file(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(f.dir, hex.EncodeToString(sum[:]))
}

func (f *folder) read(file string) (metadata.Entry, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return metadata.Entry{}, fmt.Errorf("folder: %w", metadata.ErrNotFound)
	}
	if err != nil {
		return metadata.Entry{}, unavailable(err)
	}
	var n int
	length, rest, ok := bytes.Cut(text, []byte("\n"))
	if _, err := fmt.Sscan(string(length), &n); !ok || err != nil || n < 1 || n > len(rest) {
		return metadata.Entry{}, unavailable(fmt.Errorf("%s is no file of this backend", file))
	}
	return metadata.Entry{Key: string(rest[:n]), Value: rest[n:]}, nil
}

func unavailable(err error) error { return fmt.Errorf("folder: %w: %w", metadata.ErrUnavailable, err) }
