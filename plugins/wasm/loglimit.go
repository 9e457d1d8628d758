package wasm

import (
	"context"
	"log/slog"
)

// A guest may write so many lines in so many ms of its host's now_ms.
const (
	logLines  = 20
	logWindow = 10_000
)

// logLimit writes a guest's lines to the log, not too many of them.
type logLimit struct {
	log     *slog.Logger
	since   uint64
	lines   int
	dropped int
}

func (l *logLimit) say(now uint64, level slog.Level, text string) {
	if now >= l.since+logWindow {
		l.since, l.lines = now, 0
	}
	if l.lines >= logLines {
		l.dropped++
		return
	}
	text = clean(text, maxText)
	if text == "" {
		return
	}
	l.lines++
	attrs := []slog.Attr{slog.String("text", text)}
	if l.dropped > 0 {
		attrs = append(attrs, slog.Int("lines_left_out", l.dropped))
		l.dropped = 0
	}
	l.log.LogAttrs(context.Background(), level, "eviction policy guest says", attrs...)
}
