package external

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What a plugin may log. Lines beyond the rate are counted and left out; bytes beyond the rate are not read, so that a
// plugin that floods waits at its own pipe and costs the host next to nothing.
const (
	maxLine      = 4 << 10
	linesPerSec  = 100
	lineBurst    = 500
	bytesPerSec  = 1 << 20
	byteBurst    = 1 << 20
	keptLines    = 1000 // for mooncake plugins logs
	maxAttrCount = 32
)

// Line is one line that a plugin wrote.
type Line struct {
	Time       time.Time  `json:"time"`
	Level      slog.Level `json:"level"`
	Generation uint64     `json:"generation"`
	Text       string     `json:"text"`
}

// journal takes what the processes of one plugin write and passes it on as log records.
type journal struct {
	log     *slog.Logger
	dropped prometheus.Counter

	mu     sync.Mutex
	kept   []Line // a ring once it is full
	next   int
	lines  bucket
	bytes  bucket
	silent uint64 // lines left out since the last record
}

func newJournal(log *slog.Logger, dropped prometheus.Counter) *journal {
	return &journal{log: log, dropped: dropped, lines: bucket{rate: linesPerSec, burst: lineBurst}, bytes: bucket{rate: bytesPerSec, burst: byteBurst}}
}

// bucket is a token bucket; its owner locks.
type bucket struct {
	rate, burst float64
	level       float64
	at          time.Time
}

// take returns how long to wait until n tokens are there; they are taken at once. A bucket begins full.
func (b *bucket) take(n float64, now time.Time) time.Duration {
	if b.at.IsZero() {
		b.level = b.burst
	} else {
		b.level = min(b.burst, b.level+b.rate*now.Sub(b.at).Seconds())
	}
	b.at = now
	b.level -= n
	if b.level >= 0 {
		return 0
	}
	return time.Duration(-b.level / b.rate * float64(time.Second))
}

// has takes n tokens only if they are there.
func (b *bucket) has(n float64, now time.Time) bool {
	if b.take(n, now) == 0 {
		return true
	}
	b.level += n
	return false
}

// follow reads lines until the end of r; once ctx has ended as fast as it can.
func (j *journal) follow(ctx context.Context, generation uint64, r io.Reader) {
	in := bufio.NewReaderSize(r, maxLine)
	rest := false // in the middle of a line that was too long
	for {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 {
			if !rest {
				j.take(generation, line)
			}
			rest = errors.Is(err, bufio.ErrBufferFull)
			j.breathe(ctx, len(line))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// breathe waits until n more bytes may be read, or ctx ends.
func (j *journal) breathe(ctx context.Context, n int) {
	j.mu.Lock()
	wait := j.bytes.take(float64(n), time.Now())
	j.mu.Unlock()
	if wait == 0 {
		return
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// take keeps a line and logs it, unless there were too many.
func (j *journal) take(generation uint64, raw []byte) {
	text, level, attrs := parseLine(raw)
	if text == "" {
		return
	}
	now := time.Now()
	j.mu.Lock()
	ok := j.lines.has(1, now)
	silent := j.silent
	if ok {
		j.silent = 0
		line := Line{Time: now, Level: level, Generation: generation, Text: text}
		if len(j.kept) < keptLines {
			j.kept = append(j.kept, line)
		} else {
			j.kept[j.next] = line
			j.next = (j.next + 1) % keptLines
		}
	} else {
		j.silent++
	}
	j.mu.Unlock()
	if !ok {
		j.dropped.Inc()
		return
	}
	if silent > 0 {
		j.log.Warn("the plugin wrote too many lines; some were left out", "left_out", silent)
	}
	j.log.LogAttrs(context.Background(), level, text, append(attrs, slog.Uint64("generation", generation))...)
}

// last returns the newest n lines, oldest first.
func (j *journal) last(n int) []Line {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := slices.Concat(j.kept[j.next:], j.kept[:j.next])
	return all[max(0, len(all)-n):]
}

// lastWord is the line that tells most of why a process ended: of a program in Go that panics the first, otherwise the
// last, as of an exception in Python.
func (j *journal) lastWord(generation uint64) string {
	word := ""
	for _, l := range j.last(keptLines) {
		if l.Generation != generation {
			continue
		}
		word = l.Text
		if strings.HasPrefix(word, "panic: ") || strings.HasPrefix(word, "fatal error: ") {
			break
		}
	}
	if word == "" {
		return "nothing"
	}
	return strconv.Quote(clean(word, 200))
}

// parseLine understands the JSON of hclog and plain text.
func parseLine(raw []byte) (text string, level slog.Level, attrs []slog.Attr) {
	raw = bytes.TrimRight(raw, "\r\n")
	var fields map[string]any
	if len(raw) > 0 && raw[0] == '{' && json.Unmarshal(raw, &fields) == nil {
		if m, ok := fields["@message"].(string); ok {
			name, _ := fields["@level"].(string)
			for _, k := range slices.Sorted(maps.Keys(fields)) {
				if strings.HasPrefix(k, "@") || len(attrs) == maxAttrCount {
					continue
				}
				v := fields[k]
				if s, ok := v.(string); ok {
					v = clean(s, maxLine)
				}
				attrs = append(attrs, slog.Any(clean(k, 64), v))
			}
			return clean(m, maxLine), levelOf(name), attrs
		}
	}
	return clean(string(raw), maxLine), slog.LevelInfo, nil
}

func levelOf(name string) slog.Level {
	switch strings.ToLower(name) {
	case "trace", "debug":
		return slog.LevelDebug
	case "warn", "warning":
		return slog.LevelWarn
	case "error", "fatal", "critical":
		return slog.LevelError
	}
	return slog.LevelInfo
}

// journalWriter follows what is written to it, as what go-plugin passes on from a plugin in Go. Writes wait as reads do.
type journalWriter struct {
	j          *journal
	ctx        context.Context
	generation uint64

	mu   sync.Mutex
	part []byte // of a line
}

func (w *journalWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		if room := maxLine - len(w.part); room > 0 {
			w.part = append(w.part, line[:min(room, len(line))]...)
		}
		if whole {
			w.j.take(w.generation, w.part)
			w.part = w.part[:0]
		}
		rest = after
	}
	w.j.breathe(w.ctx, len(p))
	return len(p), w.ctx.Err()
}
