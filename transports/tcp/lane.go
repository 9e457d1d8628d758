package tcp

import (
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// recheckAfter is the idle time after which a lane is looked at before it is used again. Its
	// reader notices a close by itself; this closes the gap before that goroutine has run.
	recheckAfter = 20 * time.Millisecond
	// v1Proof is how long a v1 peer must keep an idle connection open to show that it serves several
	// requests on it: those that do not close at once.
	v1Proof = time.Second
	// maxIov bounds what one system call gathers or scatters.
	maxIov = 128
	// writeBatch is the payload from which a gathering write takes no further request.
	writeBatch = 512 << 10
)

// lane is one connection to a peer. ring[head:tail] are its calls in wire order: those before sent are
// completely written, off bytes of the one at sent are. All fields but the receive buffers are guarded
// by the peer's lock.
//
// Local memory is touched by system calls of two goroutines only: the one that holds writing, and the
// one that holds inMu. That is the reader, or a caller who looks for its answer (poll). When the lane ends, the reader
// takes all calls out, after writing was given back.
type lane struct {
	p *Peer
	*sock
	gen  uint64
	ring []*call

	head, sent, tail uint64
	off              uint64
	bytes            uint64 // payload in ring
	unsent           uint64 // bytes of ring not yet written
	uses             uint64 // calls completed
	idleSince        time.Duration
	progress         atomic.Uint64
	watch            watch // owned by the sweeper

	dead   bool  // dropped: not in p.lanes
	broken bool  // a write failed; the reader will find out
	cause  cause // why it was dropped

	// Writing. wake hands the duty over to the writer goroutine.
	writing   bool
	inSyscall bool
	parked    bool // in writeWait, for the socket to drain
	wake      chan struct{}
	wiov      [maxIov]unix.Iovec
	wn        int    // iovecs in use
	wcalls    uint64 // calls in them
	solo      bool   // one call per system call, to find the one whose memory faults
	wgot      int    // result of the system call
	werr      unix.Errno
	tryOnce   func(fd uintptr) bool
	tryWait   func(fd uintptr) bool

	// Reading. got bytes of the head call's answer have arrived. inMu is taken before the peer's lock; it guards what
	// follows got.
	inMu    sync.Mutex
	polled  error // of poll, which leaves the end of the lane to the reader
	over    bool  // the reader has ended
	some    bool
	tryPoll func(fd uintptr)
	got     uint64
	status  [maxIov][statusLen]byte
	riov    [maxIov]unix.Iovec
	oneVec  bool // fill one iovec per system call
	rgot    int
	rerr    error
	extra   [1]byte
	tryRead func(fd uintptr) bool

	shut    bool // result of tryPeek: not open and silent, as an idle lane must be
	tryPeek func(fd uintptr)
	spare   bool // was opened when there was nothing to send any more
}

// addLane puts a new connection to use. p.mu is held.
func (p *Peer) addLane(s *sock) *lane {
	window := p.t.cfg.PipelineWindow
	if !p.to.v2 {
		window = 1
	}
	p.gen++
	l := &lane{p: p, sock: s, gen: p.gen, ring: make([]*call, window), wake: make(chan struct{}, 1), idleSince: p.t.now()}
	l.tryOnce, l.tryWait, l.tryRead, l.tryPeek = l.writeOnce, l.writeWait, l.readOrSleep, func(fd uintptr) { l.shut = l.peek(fd) != unix.EAGAIN }
	l.tryPoll = func(fd uintptr) { l.some = l.readSome(fd) }
	p.lanes = append(p.lanes, l)
	p.t.m.lanes.Inc()
	p.wg.Go(l.reader)
	p.wg.Go(l.writer)
	return l
}

func (l *lane) at(i uint64) *call { return l.ring[i%uint64(len(l.ring))] }

func (l *lane) idle() bool { return l.head == l.tail && !l.writing }

// once tells that the lane is for one request only.
func (l *lane) once() bool { return !l.p.t.cfg.ConnectionPool || (!l.p.to.v2 && l.p.single) }

// takes tells whether the lane may carry c now.
func (l *lane) takes(c *call) bool {
	n := l.tail - l.head
	if l.dead || l.broken || n == uint64(len(l.ring)) || l.gen <= c.minGen {
		return false
	}
	if n > 0 && l.bytes+uint64(len(c.data)) > uint64(l.p.t.cfg.PipelineBytes) {
		return false
	}
	if used := l.uses+n > 0; used {
		if l.once() {
			return false
		}
		if !l.p.to.v2 && c.write && !l.p.multi {
			// A v1 write gets no answer. To a server that closes after each request it would be lost.
			if l.p.t.now()-l.idleSince < v1Proof || !l.fresh() {
				return false
			}
			l.p.multi = true
		}
	}
	return true
}

// fresh tells whether a lane that has been idle for a while is still open.
func (l *lane) fresh() bool {
	if l.head != l.tail || l.p.t.now()-l.idleSince < recheckAfter {
		return true
	}
	l.shut = false
	return l.rc.Control(l.tryPeek) == nil && !l.shut
}

// peek looks for a byte without taking it: 0 = there is one, EAGAIN = none, EPIPE = end of file.
func (l *lane) peek(fd uintptr) unix.Errno {
	for {
		n, _, e := unix.Syscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&l.extra[0])), 1, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
		switch {
		case e == unix.EINTR:
		case e == 0 && n == 0:
			return unix.EPIPE
		default:
			return e
		}
	}
}

func (l *lane) push(c *call) {
	c.reused = l.uses > 0 || l.spare
	l.ring[l.tail%uint64(len(l.ring))] = c
	l.tail++
	l.bytes += uint64(len(c.data))
	l.unsent += c.wireLen()
}

// pop completes the head call.
func (l *lane) pop(now time.Duration, fin *finishedList) {
	c := l.at(l.head)
	l.ring[l.head%uint64(len(l.ring))] = nil
	l.head++
	l.got = 0
	l.uses++
	l.bytes -= uint64(len(c.data))
	l.p.end(c, nil, "", fin)
	if l.head == l.tail {
		l.idleSince = now
		if l.once() && !l.dead {
			l.drop(cause{kind: causeIdle})
		}
	}
}

func (l *lane) carries(hit func(*call) bool) bool {
	for i := l.head; i < l.tail; i++ {
		if hit(l.at(i)) {
			return true
		}
	}
	return false
}

// awaitsStatus tells that the head call was sent and nothing of its answer has come.
func (l *lane) awaitsStatus() bool { return l.head < l.sent && l.got == 0 }

// drop ends the lane: its reader completes or requeues what it carries and closes the socket. Unless everything is answered,
// the connection is reset so that as little as possible of the abandoned bytes arrives; never with v1,
// where completed writes may still be under way. p.mu is held.
func (l *lane) drop(why cause) {
	if l.dead {
		return
	}
	l.dead, l.cause = true, why
	l.p.spent += l.progress.Load()
	if i := slices.Index(l.p.lanes, l); i >= 0 {
		l.p.lanes = slices.Delete(l.p.lanes, i, i+1)
	}
	l.p.t.m.lanes.Dec()
	if l.p.to.v2 && l.head != l.tail {
		l.abort()
	}
	l.kick()
}

// gather describes the next bytes to write. p.mu is held.
func (l *lane) gather() {
	n, bytes, off := 0, 0, l.off
	i := l.sent
	for ; i < l.tail && n+2 <= maxIov && bytes < writeBatch && (n == 0 || !l.solo); i++ {
		c := l.at(i)
		if off < headerLen {
			l.wiov[n] = iovec(c.hdr[off:])
			n++
			off = headerLen
		}
		if c.write {
			l.wiov[n] = iovec(c.data[off-headerLen:])
			n++
			bytes += len(c.data)
		}
		off = 0
	}
	l.wn, l.wcalls, l.wgot, l.werr = n, i-l.sent, 0, 0
	l.inSyscall = true
}

// wrote accounts for the system call after gather. p.mu is held.
func (l *lane) wrote(fin *finishedList) {
	l.inSyscall, l.parked = false, false
	n := uint64(l.wgot)
	if n > 0 {
		l.progress.Add(1)
	}
	l.unsent -= n
	for n > 0 {
		c := l.at(l.sent)
		rest := c.wireLen() - l.off
		if n < rest {
			l.off += n
			break
		}
		n -= rest
		l.off = 0
		l.sent++
		if c.write && !l.p.to.v2 {
			l.pop(l.p.t.now(), fin) // v1: sent is all that can be known
		}
	}
	l.p.signal()
}

// writeOnce is one attempt that does not wait.
func (l *lane) writeOnce(fd uintptr) bool {
	l.wgot, l.werr = writev(fd, l.wiov[:l.wn])
	return true
}

// writeWait waits until something could be written. While it is parked inSyscall is false: what was
// accounted so far is all that is on the wire.
func (l *lane) writeWait(fd uintptr) bool {
	if l.parked {
		l.park(false)
	}
	l.wgot, l.werr = writev(fd, l.wiov[:l.wn])
	if l.werr != unix.EAGAIN {
		return true
	}
	l.park(true)
	return false
}

func (l *lane) park(on bool) {
	l.p.mu.Lock()
	l.parked, l.inSyscall = on, !on
	l.p.signal()
	l.p.mu.Unlock()
}

// writeNow writes from the calling goroutine as long as the socket takes everything; the rest is left to
// the writer. The caller holds p.mu, which is released meanwhile, and has set writing.
func (l *lane) writeNow(fin *finishedList) {
	for l.sent < l.tail && !l.dead {
		l.gather()
		want := 0
		for _, v := range l.wiov[:l.wn] {
			want += int(v.Len)
		}
		l.p.mu.Unlock()
		err := l.rc.Write(l.tryOnce)
		l.p.mu.Lock()
		l.wrote(fin)
		if l.failed(err) {
			break
		}
		if l.wgot < want && !l.dead {
			l.wake <- struct{}{}
			return
		}
	}
	l.stopWriting()
}

// failed looks at the outcome of a write. p.mu is held.
func (l *lane) failed(err error) bool {
	switch {
	case err != nil: // the lane was dropped
	case l.werr == 0 || l.werr == unix.EAGAIN:
		return false
	case l.werr == unix.EFAULT && l.wcalls > 1:
		l.solo = true
		return false
	case l.werr == unix.EFAULT:
		l.drop(cause{kind: causeFault, seq: l.sent})
	}
	// Otherwise the peer has closed, perhaps after a last word that the reader is about to read.
	l.broken = true
	return true
}

func (l *lane) stopWriting() {
	l.writing = false
	l.p.signal()
}

// writer goes on where the socket was full, or where there is much to write.
func (l *lane) writer() {
	var fin finishedList
	p := l.p
	for range l.wake {
		p.mu.Lock()
		for l.sent < l.tail && !l.dead {
			l.gather()
			p.mu.Unlock()
			err := l.rc.Write(l.tryWait)
			p.mu.Lock()
			l.wrote(&fin)
			if l.failed(err) {
				break
			}
		}
		l.stopWriting()
		p.pump(&fin)
		p.mu.Unlock()
		fin.run(p.t)
	}
}

// reader takes the answers until the connection ends.
func (l *lane) reader() {
	var fin finishedList
	p := l.p
	for {
		err := l.rc.Read(l.tryRead)
		if err == nil {
			err = l.rerr
		} else {
			l.inMu.Lock()
		}
		if l.polled != nil {
			err = l.polled
		}
		p.mu.Lock()
		if err == nil {
			err = l.answers(l.rgot, &fin)
		}
		if err != nil {
			l.teardown(err, &fin)
			l.over = true
		}
		p.pump(&fin)
		p.mu.Unlock()
		l.inMu.Unlock()
		fin.run(p.t)
		if err != nil {
			return
		}
	}
}

// readOrSleep is readSome in the reader; if it is true, inMu is held on return.
func (l *lane) readOrSleep(fd uintptr) bool {
	l.inMu.Lock()
	l.rgot, l.rerr = 0, l.polled
	if l.rerr == nil && !l.readSome(fd) {
		l.inMu.Unlock()
		return false
	}
	return true
}

// poll takes answers that are there already in the goroutine of a caller, and tells whether there were some. The reader
// is woken by them as well, and finds the rest or nothing. Errors are the reader's business.
func (l *lane) poll(fin *finishedList) bool {
	if !l.inMu.TryLock() {
		return false
	}
	defer l.inMu.Unlock()
	if l.over || l.polled != nil {
		return false
	}
	l.rgot, l.rerr, l.some = 0, nil, false
	if l.rc.Control(l.tryPoll) != nil || !l.some || l.rerr != nil {
		return false
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if err := l.answers(l.rgot, fin); err != nil {
		l.polled = err
		l.kick()
		return true
	}
	l.p.pump(fin)
	return true
}

// readSome reads once, straight to where the expected answers belong: status frames into their slots,
// payload into local memory. While nothing is due it only looks: a request may be sent and answered
// before the system call runs, and that answer must not go elsewhere.
func (l *lane) readSome(fd uintptr) bool {
	for looked := false; ; {
		l.p.mu.Lock()
		iov := l.scatter()
		l.p.mu.Unlock()
		if len(iov) == 0 {
			e := l.peek(fd)
			switch {
			case e == unix.EAGAIN:
				return false
			case e == 0 && !looked:
				looked = true
				continue
			case e == 0:
				l.rerr = protocolError("bytes that answer no request")
			case e == unix.EPIPE:
				l.rerr = io.EOF
			default:
				l.rerr = e
			}
			return true
		}
		if l.oneVec {
			iov = iov[:1]
		}
		n, e := readv(fd, iov)
		switch {
		case n > 0:
			l.rgot = n
		case e == unix.EAGAIN:
			return false
		case e == unix.EFAULT && len(iov) > 1:
			l.oneVec = true // to find the call whose memory faults
			continue
		case e == unix.EFAULT:
			l.rerr = errFault
		case e != 0:
			l.rerr = e
		default:
			l.rerr = io.EOF
		}
		return true
	}
}

// scatter describes the answers to the calls that are on the wire. p.mu is held.
func (l *lane) scatter() []unix.Iovec {
	n, got := 0, l.got
	for i := l.head; i < l.tail && i <= l.sent && n+2 <= maxIov && i-l.head < maxIov; i++ {
		c := l.at(i)
		if l.p.to.v2 {
			if got < statusLen {
				v := iovec(l.status[i%maxIov][got:])
				if n > 0 && uintptr(unsafe.Pointer(l.riov[n-1].Base))+uintptr(l.riov[n-1].Len) == uintptr(unsafe.Pointer(v.Base)) {
					l.riov[n-1].Len += v.Len
				} else {
					l.riov[n] = v
					n++
				}
				got = 0
			} else {
				got -= statusLen
			}
		}
		if !c.write {
			l.riov[n] = iovec(c.data[got:])
			n++
		}
		got = 0
	}
	return l.riov[:n]
}

// answers accounts for n bytes that readSome has put in place. p.mu is held.
func (l *lane) answers(n int, fin *finishedList) error {
	l.progress.Add(1)
	p := l.p
	now := p.t.now()
	for left := uint64(n); left > 0; {
		if l.head == l.tail {
			return protocolError("bytes that answer no request")
		}
		for l.head >= l.sent && l.inSyscall {
			p.wait() // the write has been done, but is not accounted yet
		}
		c := l.at(l.head)
		want := uint64(0)
		if p.to.v2 {
			want = statusLen
			if l.got < statusLen {
				k := min(statusLen-l.got, left)
				l.got += k
				left -= k
				if l.got < statusLen {
					return nil
				}
				code, ok := parseStatus(l.status[l.head%maxIov][:])
				if !ok {
					return protocolError("an answer without the magic of a status frame")
				}
				if code != statusOK {
					return &rejection{code: code}
				}
			}
		}
		if l.head >= l.sent {
			return protocolError("an answer to a request that is not completely sent")
		}
		if !c.write {
			want += uint64(len(c.data))
			k := min(want-l.got, left)
			l.got += k
			left -= k
		}
		if l.got < want {
			return nil
		}
		if !p.to.v2 && l.uses > 0 {
			p.multi = true
		}
		l.pop(now, fin)
		if l.dead {
			return io.EOF
		}
	}
	return nil
}
