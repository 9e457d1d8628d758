package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

type compressor interface {
	io.WriteCloser
	Flush() error
}

// NewCompressor compresses what goes to w if name ends in .gz or .zst; else it returns w. What it returns, if not w, is
// an io.Closer that must be closed first; w stays open.
func NewCompressor(name string, w io.Writer) (io.Writer, error) {
	switch {
	case strings.HasSuffix(name, ".gz"):
		return gzip.NewWriter(w), nil
	case strings.HasSuffix(name, ".zst"):
		// One thread: a recording store has other things to do.
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20))
	}
	return w, nil
}

// WriteNew makes a new file of what write writes, compressed as the name says, and removes it again if that fails. An
// existing file is an error.
func WriteNew(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	w, err := NewCompressor(path, f)
	if err == nil {
		err = write(w)
		if c, ok := w.(compressor); ok {
			err = errors.Join(err, c.Close())
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Decompress returns the content of r, which may be compressed with gzip or zstd, told apart by how it begins. Memory
// is bounded whatever the file says. Close frees the decompressor and leaves r open.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 1<<16)
	begin, err := b.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(begin, []byte{0x1f, 0x8b}):
		return gzip.NewReader(b)
	case bytes.Equal(begin, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		d, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}
