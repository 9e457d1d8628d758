package telemetry

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/term"
	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/mooncake-agent/mooncake/core/units"
)

// Logging is the process's log. All methods may be called concurrently.
type Logging struct {
	level slog.LevelVar
	log   *slog.Logger
	file  *lumberjack.Logger // nil without a log file
}

// NewLogging opens the log. stderr is where lines go when no file is configured, and where they go when
// the file cannot be written (full disk): a line is never lost silently. A file that cannot be opened
// is an error now.
func NewLogging(c LogConfig, stderr io.Writer) (*Logging, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	l := &Logging{}
	if err := l.SetLevel(c.Level); err != nil {
		return nil, err
	}
	out := stderr
	if c.File != "" {
		if err := l.openFile(c); err != nil {
			return nil, err
		}
		out = &fallback{to: l.file, or: stderr}
	}
	opts := &slog.HandlerOptions{Level: &l.level, ReplaceAttr: redact}
	switch {
	case c.Format == "json", c.Format == "auto" && (c.File != "" || !isTerminal(stderr)):
		l.log = slog.New(slog.NewJSONHandler(out, opts))
	case c.File == "" && isTerminal(stderr):
		l.log = slog.New(newConsole(out, opts))
	default:
		l.log = slog.New(slog.NewTextHandler(out, opts))
	}
	return l, nil
}

func (l *Logging) openFile(c LogConfig) error {
	if err := os.MkdirAll(filepath.Dir(c.File), 0o755); err != nil {
		return fmt.Errorf("log.file: %w", err)
	}
	f, err := os.OpenFile(c.File, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640) // the library opens at the first line only
	if err != nil {
		return fmt.Errorf("log.file: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("log.file: %w", err)
	}
	const day = 24 * time.Hour
	l.file = &lumberjack.Logger{
		Filename:   c.File,
		MaxSize:    int(max(c.MaxSize/units.MiB, 1)),
		MaxBackups: c.MaxBackups,
		MaxAge:     int((c.MaxAge + day - 1) / day),
		Compress:   c.Compress,
	}
	return nil
}

// Logger returns the root logger.
func (l *Logging) Logger() *slog.Logger { return l.log }

// Level returns the current level's name in lower case: the form that the config key takes.
func (l *Logging) Level() string {
	for _, n := range []string{"debug", "info", "warn"} {
		if v, _ := ParseLevel(n); l.level.Level() <= v {
			return n
		}
	}
	return "error"
}

// SetLevel changes the level from the next record on.
func (l *Logging) SetLevel(name string) error {
	v, err := ParseLevel(name)
	if err != nil {
		return fmt.Errorf("log.level: %w", err)
	}
	l.level.Set(v)
	return nil
}

// Close closes the log file. Later lines open it again.
func (l *Logging) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// fallback writes to another place what the first refused.
type fallback struct {
	to, or io.Writer
	once   sync.Once
}

func (f *fallback) Write(p []byte) (int, error) {
	if n, err := f.to.Write(p); err != nil {
		f.once.Do(func() { fmt.Fprintf(f.or, "log.file cannot be written, lines go here meanwhile: %v\n", err) })
		return f.or.Write(p[n:])
	}
	return len(p), nil
}

// console writes lines for people at a terminal: time of day, level, message, then key=value. The
// attributes are formatted by slog's own text handler.
type console struct {
	mu    *sync.Mutex
	out   io.Writer
	buf   *bytes.Buffer
	attrs slog.Handler // writes into buf
}

func newConsole(out io.Writer, o *slog.HandlerOptions) *console {
	buf := &bytes.Buffer{}
	return &console{mu: &sync.Mutex{}, out: out, buf: buf, attrs: slog.NewTextHandler(buf, &slog.HandlerOptions{
		Level: o.Level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if _, own := a.Value.Any().(slog.Level); len(groups) == 0 && (own || a.Key == slog.MessageKey) {
				return slog.Attr{} // already written
			}
			return redact(groups, a)
		},
	})}
}

func (c *console) Enabled(ctx context.Context, l slog.Level) bool { return c.attrs.Enabled(ctx, l) }

func (c *console) Handle(ctx context.Context, r slog.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf.Reset()
	fmt.Fprintf(c.buf, "%s %-5s %s ", r.Time.Format("15:04:05.000"), r.Level, scrub(r.Message))
	r.Time = time.Time{} // the text handler leaves a zero time out
	if err := c.attrs.Handle(ctx, r); err != nil {
		return err
	}
	_, err := c.out.Write(append(bytes.TrimRight(c.buf.Bytes(), " \n"), '\n'))
	return err
}

func (c *console) WithAttrs(as []slog.Attr) slog.Handler {
	d := *c
	d.attrs = c.attrs.WithAttrs(as)
	return &d
}

func (c *console) WithGroup(name string) slog.Handler {
	d := *c
	d.attrs = c.attrs.WithGroup(name)
	return &d
}
