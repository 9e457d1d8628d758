package bench

import (
	"fmt"
	"io"

	"github.com/schollz/progressbar/v3"
)

// Progress shows a running measurement as one line on a terminal: the rate of the last moment and the
// time left. show goes into Options.Progress; finish clears the line.
func Progress(terminal io.Writer, o Options) (show func(Snapshot), finish func()) {
	bar := progressbar.NewOptions64(o.Duration.Milliseconds(),
		progressbar.OptionSetWriter(terminal),
		progressbar.OptionSetWidth(24),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetElapsedTime(true),
		progressbar.OptionShowElapsedTimeOnFinish(),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetRenderBlankState(true),
	)
	var last Snapshot
	show = func(s Snapshot) {
		rate := 0.0
		if d := (s.Elapsed - last.Elapsed).Seconds(); d > 0 {
			rate = float64(s.Bytes-last.Bytes) / d
		}
		last = s
		text := fmt.Sprintf("%s %s %s x %d  %s/s", o.Transport, o.Op, Bytes(o.Block), o.Batch, decimal(rate))
		if s.Errors > 0 {
			text += fmt.Sprintf("  %d errors", s.Errors)
		}
		bar.Describe(text)
		_ = bar.Set64(min(s.Elapsed, o.Duration).Milliseconds()) // a terminal that is gone needs no line
	}
	return show, func() { _ = bar.Clear() }
}
