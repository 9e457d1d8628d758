package rpc

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/internal/rawsock"
)

const (
	lookTime  = 30 * time.Microsecond // that a loop looks for requests before it sleeps
	maxMisses = 8
)

// lookout decides whether a loop that has nothing to do looks for requests for a moment or sleeps at once. Going to
// sleep and being woken costs both sides more than a small request does, so looking pays while requests
// follow closely. After looking in vain it waits out 1, 3, 7 ... and at most 255 sleeps before the next try.
type lookout struct {
	off    bool // nobody else could run meanwhile
	misses int  // in a row
	skip   int  // sleeps before the next try
}

func newLookout() lookout { return lookout{off: runtime.GOMAXPROCS(0) < 2} }

// pays reports whether to look now.
func (o *lookout) pays() bool {
	if o.skip > 0 {
		o.skip--
		return false
	}
	return !o.off
}

func (o *lookout) found(yes bool) {
	if yes {
		o.misses = 0
		return
	}
	o.misses = min(o.misses+1, maxMisses)
	o.skip = 1<<o.misses - 1
}

// wait fills l.events with what is ready, for as long as l.timeout says.
func (l *loop) wait() (int, error) {
	if l.lookout.pays() {
		for until := l.server.clock() + int64(lookTime); ; {
			n, err := rawsock.Poll(l.ep, l.events[:])
			if n > 0 || err != nil {
				l.lookout.found(true)
				return n, err
			}
			if l.server.clock() >= until {
				break
			}
			rawsock.Yield() // to the client, if it shares the processor
		}
		l.lookout.found(false)
	}
	return unix.EpollWait(l.ep, l.events[:], l.timeout())
}
