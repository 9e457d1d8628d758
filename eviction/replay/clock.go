package replay

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// stopwatch measures the processor time of the calling goroutine, which keeps its thread meanwhile: the time of
// a run does not depend on what else the machine does, nor on other runs beside it.
type stopwatch struct{ start time.Duration }

func startWatch() stopwatch {
	runtime.LockOSThread()
	return stopwatch{threadTime()}
}

// stop returns the time since startWatch. It is called once, by the same goroutine.
func (w stopwatch) stop() time.Duration {
	d := threadTime() - w.start
	runtime.UnlockOSThread()
	return max(0, d)
}

func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
