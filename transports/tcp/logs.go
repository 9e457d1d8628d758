package tcp

import (
	"log/slog"
	"strconv"
	"sync"
	"time"
)

// logLimit lets one line per message text and second through: peers must not be able to fill the log.
type logLimit struct {
	log  *slog.Logger
	mu   sync.Mutex
	last map[string]*logState
}

type logState struct {
	at         time.Time
	suppressed int
}

func newLogLimit(log *slog.Logger) *logLimit {
	return &logLimit{log: log, last: map[string]*logState{}}
}

// warn logs msg, which must be a constant, with the number of lines left out before it.
func (l *logLimit) warn(msg string, args ...any) {
	l.mu.Lock()
	st := l.last[msg]
	if st == nil {
		st = &logState{}
		l.last[msg] = st
	}
	if time.Since(st.at) < time.Second {
		st.suppressed++
		l.mu.Unlock()
		return
	}
	if st.suppressed > 0 {
		args = append(args, "not_shown_before", st.suppressed)
	}
	st.at, st.suppressed = time.Now(), 0
	l.mu.Unlock()
	l.log.Warn(msg, args...)
}

// hexAddr shows addresses as people compare them.
type hexAddr uint64

// LogValue implements slog.LogValuer.
func (a hexAddr) LogValue() slog.Value {
	return slog.StringValue("0x" + strconv.FormatUint(uint64(a), 16))
}
