package replay

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mooncake-agent/mooncake/eviction/trace"
)

// Format is a form in which traces are kept.
type Format string

// The formats.
const (
	Mooncake  Format = "mooncake"      // JSONL of the traces that Mooncake published
	Bailian   Format = "bailian"       // JSONL of the traces that Alibaba's Bailian published
	Oracle    Format = "oracleGeneral" // binary of libCacheSim
	CSV       Format = "csv"
	Compact   Format = "compact"   // see WriteCompact
	Recording Format = "recording" // of mooncake master --record, see package trace
)

// Formats lists them all.
var Formats = []Format{Mooncake, Bailian, Oracle, CSV, Compact, Recording}

// title is the format's name in messages.
func (f Format) title() string {
	switch f {
	case Mooncake:
		return "Mooncake JSONL"
	case Bailian:
		return "Bailian JSONL"
	}
	return string(f)
}

// ParseFormat reads the name of a format.
func ParseFormat(name string) (Format, error) {
	for _, f := range Formats {
		if strings.EqualFold(name, string(f)) {
			return f, nil
		}
	}
	return "", fmt.Errorf("no trace format %q; there are: %s", name, formatNames())
}

func formatNames() string {
	names := make([]string, len(Formats))
	for i, f := range Formats {
		names[i] = string(f)
	}
	return strings.Join(names, ", ")
}

// ReadOptions say what a trace file does not say itself.
type ReadOptions struct {
	// Format, if it cannot be told from the file.
	Format Format
	// CSV says which columns mean what; the zero value goes by the header line.
	CSV CSVSpec
	// BlockTokens replaces the number of tokens in a full block that the format implies.
	BlockTokens uint32
	// Sort puts requests in order of time. Without it a time that goes back is an error.
	Sort bool
}

// Open reads a trace file, compressed with gzip or zstd or not.
func Open(path string) (*Trace, error) { return OpenFiles([]string{path}, ReadOptions{}) }

// OpenFiles reads a trace file, or the parts of one recording in order.
func OpenFiles(paths []string, o ReadOptions) (*Trace, error) {
	if len(paths) == 0 {
		return nil, fmt.Errorf("no trace file: %w", ErrTrace)
	}
	sum := sha256.New()
	if len(paths) == 1 {
		t, err := openOne(paths[0], o, sum)
		if err == nil {
			t.SHA256 = hex.EncodeToString(sum.Sum(nil))
		}
		return t, err
	}
	rec := newRecording(paths[0] + " ...")
	for _, path := range paths {
		err := readFile(path, sum, func(name string, r *bufio.Reader) error {
			if f, err := detect(name, r, o); err != nil {
				return err
			} else if f != Recording {
				return fmt.Errorf("%s: several files can only be the parts of one recording: %w", name, ErrTrace)
			}
			return rec.read(name, r)
		})
		if err != nil {
			return nil, err
		}
	}
	t, err := rec.trace(o)
	if err == nil {
		t.SHA256 = hex.EncodeToString(sum.Sum(nil))
	}
	return t, err
}

func openOne(path string, o ReadOptions, sum hash.Hash) (t *Trace, err error) {
	err = readFile(path, sum, func(name string, r *bufio.Reader) error {
		t, err = read(name, r, o)
		return err
	})
	return t, err
}

// readFile hands the content of a file to f and its bytes to sum.
func readFile(path string, sum hash.Hash, f func(name string, r *bufio.Reader) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	raw := io.TeeReader(file, sum)
	d, err := trace.Decompress(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer d.Close()
	if err := f(path, bufio.NewReaderSize(d, 1<<16)); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, raw)
	return err
}

// Read reads a trace that is not in a file. name is used in errors, and its suffix may tell the format.
func Read(name string, r io.Reader, o ReadOptions) (*Trace, error) {
	d, err := trace.Decompress(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer d.Close()
	return read(name, bufio.NewReaderSize(d, 1<<16), o)
}

func read(name string, r *bufio.Reader, o ReadOptions) (*Trace, error) {
	f, err := detect(name, r, o)
	if err != nil {
		return nil, err
	}
	b := NewBuilder(name, o.BlockTokens)
	b.sort = o.Sort
	switch f {
	case Compact:
		t, err := ReadCompact(name, r)
		if err == nil && o.BlockTokens != 0 {
			t.BlockTokens = o.BlockTokens
		}
		return t, err
	case Recording:
		rec := newRecording(name)
		if err := rec.read(name, r); err != nil {
			return nil, err
		}
		return rec.trace(o)
	case Oracle:
		err = readOracle(name, r, b)
	case CSV:
		err = readCSV(name, r, o.CSV, b)
	case Bailian:
		err = readBailian(name, r, b)
	default:
		err = readMooncake(name, r, b)
	}
	if err != nil {
		return nil, err
	}
	if b.requests() == 0 {
		return nil, fmt.Errorf("%s: %s: no request in it: %w", name, f.title(), ErrTrace)
	}
	return b.finish()
}

// detect tells the format from how the content begins and, where that says nothing, from the name.
func detect(name string, r *bufio.Reader, o ReadOptions) (Format, error) {
	if o.Format != "" {
		return o.Format, nil
	}
	begin, err := r.Peek(4096)
	if err != nil && len(begin) == 0 && err != io.EOF {
		return "", fmt.Errorf("%s: %w", name, err) // a later error is found again where it is
	}
	switch text := bytes.TrimLeft(begin, " \t\r\n"); {
	case bytes.HasPrefix(begin, []byte(compactMagic)):
		return Compact, nil
	case trace.IsRecording(begin):
		return Recording, nil
	case len(text) > 0 && text[0] == '{':
		line, _, _ := bytes.Cut(text, []byte("\n"))
		if bytes.Contains(line, []byte(`"chat_id"`)) {
			return Bailian, nil
		}
		return Mooncake, nil
	}
	if f := formatOf(name); f != "" {
		return f, nil
	}
	if o.CSV != (CSVSpec{}) {
		return CSV, nil
	}
	return "", fmt.Errorf("%s: cannot tell what form this trace has: name one of %s: %w", name, formatNames(), ErrTrace)
}

// FormatOf tells the format from a file's name, "" if the name says nothing.
func FormatOf(name string) Format { return formatOf(name) }

func formatOf(name string) Format {
	base := strings.ToLower(filepath.Base(name))
	base = strings.TrimSuffix(strings.TrimSuffix(base, ".gz"), ".zst")
	switch {
	case strings.HasSuffix(base, ".csv"):
		return CSV
	case strings.HasSuffix(base, ".jsonl"):
		return Mooncake
	case strings.Contains(base, ".oraclegeneral"):
		return Oracle
	case strings.HasSuffix(base, ".trace"):
		return Compact
	case strings.HasSuffix(base, ".rec"):
		return Recording
	}
	return ""
}

// finish makes the trace, in order of time if that was wanted.
func (b *Builder) finish() (*Trace, error) {
	if b.sort {
		slices.SortStableFunc(b.later, func(x, y laterRequest) int {
			switch {
			case x.TimeMS < y.TimeMS:
				return -1
			case x.TimeMS > y.TimeMS:
				return 1
			}
			return 0
		})
		b.sort = false
		for i, l := range b.later {
			if err := b.AddRequest(l.Request, l.names, l.sizes); err != nil {
				return nil, fmt.Errorf("%s: request %d in order of time: %w", b.t.Name, i+1, err)
			}
		}
		b.later = nil
	}
	return b.Trace(), nil
}

func (b *Builder) requests() int { return len(b.t.Requests) + len(b.later) }

// eachLine calls f for the lines of a JSONL file that are not empty, with their number.
func eachLine(name string, form Format, r io.Reader, f func(line []byte) error) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 1<<16), maxLine)
	line := 1
	for ; sc.Scan(); line++ {
		if len(bytes.TrimSpace(sc.Bytes())) == 0 {
			continue
		}
		if err := f(sc.Bytes()); err != nil {
			return fmt.Errorf("%s:%d: %s: %w", name, line, form.title(), explain(err))
		}
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("%s:%d: %s: %w", name, line, form.title(), err)
	}
	return nil
}

// explain adds what was expected to errors of the JSON decoder.
func explain(err error) error {
	var typ *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &typ):
		return fmt.Errorf("%s: want %s, got %s: %w", typ.Field, kindName(typ.Type.Kind().String()), typ.Value, ErrTrace)
	case errors.As(err, &syntax), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("want one JSON object: %w: %w", err, ErrTrace)
	}
	return err
}

func kindName(kind string) string {
	switch kind {
	case "uint64", "uint32":
		return "a whole number, not negative"
	case "float64", "int64":
		return "a number"
	case "slice":
		return "a list of numbers"
	}
	return kind
}
