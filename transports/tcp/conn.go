package tcp

import (
	"errors"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/internal/spin"
	"github.com/mooncake-agent/mooncake/transports"
)

// inBufLen is how much of pipelined small requests one system call can bring.
const inBufLen = 64 << 10

// bigPayload is the size from which a payload is expected to be followed by another big one: then only
// firstRead bytes are read into the buffer ahead of a header, because the payload in it is copied once
// more.
const (
	bigPayload = 16 << 10
	firstRead  = 4 << 10
)

// scratch is what a connection needs while it works; idle ones have none.
type scratch struct {
	in  [inBufLen]byte
	out output
}

var scratches = sync.Pool{New: func() any {
	s := new(scratch)
	s.out.try = s.out.writeSome
	return s
}}

var (
	// errFault: region memory is not mapped.
	errFault = errors.New("memory of the region is not mapped")
	// errDone ends a connection whose last word was said, or cannot be.
	errDone = errors.New("done")
)

// conn is one served connection. Its goroutine reads a request, finds the region, lets the kernel move
// the payload into or out of it, and goes on; answers to small pipelined requests leave together, at the
// latest when the next read would wait. While it waits for a request it holds no buffer.
type conn struct {
	srv *server
	*sock
	host string

	busy      atomic.Bool   // in the middle of a request
	progress  atomic.Uint64 // grows with each system call that moved bytes
	idleSince atomic.Int64  // time.Duration on the transport's clock; valid while not busy
	watch     watch         // owned by the sweeper

	// Input: buf[r:w] was read ahead.
	s     *scratch
	buf   *[inBufLen]byte
	r, w  int
	ahead int    // how far to read ahead
	dst   []byte // region memory that the read in progress fills first
	n     int
	err   error
	iov   [2]unix.Iovec
	tryIn func(fd uintptr) bool

	// See look: how many looks in vain are left; without luck, how often the connection has slept since, and has to.
	luck, slept, rests int

	out *output

	mu   sync.Mutex
	held []*registration // regions in use, for uses
}

func (c *conn) init() {
	c.tryIn = c.readSome
	c.ahead = firstRead
	c.busy.Store(true)
}

func (c *conn) wakeUp() {
	c.s = scratches.Get().(*scratch)
	c.s.out.c = c
	c.buf, c.out = &c.s.in, &c.s.out
	c.r, c.w = 0, 0
}

// rest gives the scratch memory back. Nothing is waiting in it.
func (c *conn) rest() {
	if c.s == nil {
		return
	}
	c.out.release()
	c.out.c = nil
	scratches.Put(c.s)
	c.s, c.buf, c.out = nil, nil, nil
}

// serve answers requests until the peer leaves, breaks the protocol or the connection is closed.
func (c *conn) serve() {
	debug.SetPanicOnFault(true) // region memory may have been unmapped by a careless owner
	for {
		h, err := c.next()
		if err == nil {
			err = c.handle(h)
		}
		if err != nil {
			break
		}
	}
	c.Close()
	c.rest()
}

// next returns the next request header.
func (c *conn) next() (header, error) {
	for c.w-c.r < headerLen {
		if c.r > 0 {
			c.w = copy(c.buf[:], c.buf[c.r:c.w])
			c.r = 0
		}
		n, err := c.read(nil)
		if err != nil {
			return header{}, err
		}
		c.w += n
	}
	h := parseHeader(c.buf[c.r:])
	c.r += headerLen
	return h, nil
}

func (c *conn) handle(h header) error {
	ref, reg, reason := c.srv.claim(h)
	if reason != "" {
		return c.reject(h, reason)
	}
	c.hold(reg)
	if h.write() {
		err := c.sendBefore(ref.Data)
		if err == nil {
			err = c.receive(ref.Data)
		}
		c.drop(reg)
		ref.Release()
		if err == errFault {
			return c.reject(h, "fault")
		}
		if err != nil {
			return err
		}
		c.srv.t.m.moved(roleServer, true, h.size)
		if h.v2() {
			return c.out.status(statusOK)
		}
		return nil
	}
	if !probe(ref.Data) {
		c.drop(reg)
		ref.Release()
		return c.reject(h, "fault")
	}
	if h.v2() {
		if err := c.out.status(statusOK); err != nil {
			c.drop(reg)
			ref.Release()
			return err
		}
	}
	return c.out.payload(ref, reg)
}

// sendBefore sends waiting answers that come from memory which a request now overwrites: requests take
// effect in their order.
func (c *conn) sendBefore(dst []byte) error {
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(dst)))
	for i := range c.out.nr {
		r := c.out.refs[i].Data
		from := uintptr(unsafe.Pointer(unsafe.SliceData(r)))
		if from < lo+uintptr(len(dst)) && lo < from+uintptr(len(r)) {
			return c.out.flush()
		}
	}
	return nil
}

// receive fills dst with the next bytes of the stream.
func (c *conn) receive(dst []byte) error {
	c.ahead = inBufLen
	if len(dst) >= bigPayload {
		c.ahead = firstRead
	}
	if n := min(len(dst), c.w-c.r); n > 0 {
		if !guardedCopy(dst[:n], c.buf[c.r:c.r+n]) {
			return errFault
		}
		c.r += n
		dst = dst[n:]
	}
	if len(dst) >= bigPayload {
		// The answers to earlier requests need not wait for this one.
		if err := c.out.flush(); err != nil {
			return err
		}
	}
	for len(dst) > 0 {
		c.r, c.w = 0, 0
		n, err := c.read(dst)
		if err != nil {
			return err
		}
		if n > len(dst) {
			c.w = n - len(dst)
			n = len(dst)
		}
		dst = dst[n:]
	}
	return nil
}

// read waits for bytes and reads them into dst, then into buf[w:]. It returns how many there were.
func (c *conn) read(dst []byte) (int, error) {
	c.dst, c.n, c.err = dst, 0, nil
	if err := c.rc.Read(c.tryIn); err != nil {
		return 0, err
	}
	return c.n, c.err
}

// readSome is the closure of read; false = wait until the socket is readable.
func (c *conn) readSome(fd uintptr) bool {
	if c.s == nil {
		c.wakeUp()
	}
	iov := c.iov[:0]
	if len(c.dst) > 0 {
		iov = append(iov, iovec(c.dst))
	}
	if free := c.buf[c.w:min(c.w+c.ahead, inBufLen)]; len(free) > 0 {
		iov = append(iov, iovec(free))
	}
	n, e := readv(fd, iov)
	switch {
	case n > 0:
		c.n = n
		c.progress.Add(1)
		if !c.busy.Load() {
			c.busy.Store(true)
		}
		return true
	case e == unix.EAGAIN:
		if c.err = c.out.flush(); c.err != nil {
			return true
		}
		if c.look(fd, iov) {
			return true
		}
		if c.w == 0 && c.dst == nil {
			c.rest()
			c.idleSince.Store(int64(c.srv.t.now()))
			c.busy.Store(false)
		}
		return false
	case e == unix.EFAULT:
		c.err = errFault
	case e != 0:
		c.err = e
	default:
		c.err = io.EOF
		c.out.flush()
	}
	return true
}

// look waits a moment for the next bytes without going to sleep, where that has paid lately. It is true when some have
// been read. On a machine that has nothing else to do, waking a sleeping processor takes longer than most answers; on one
// that is busy, whoever looks gives the processor away and gets it back late.
func (c *conn) look(fd uintptr, iov []unix.Iovec) (got bool) {
	if c.luck <= 0 {
		if c.slept++; c.slept < c.rests {
			return false
		}
		c.luck, c.slept, c.rests = 1, 0, min(max(2*c.rests, restsLeast), restsMost)
	}
	if !spin.Enter() {
		return false
	}
	begin := time.Now()
	found := spin.Until(func() bool {
		n, e := readv(fd, iov)
		c.n = n
		return n > 0 || e != unix.EAGAIN
	})
	spin.Leave()
	switch {
	case time.Since(begin) > lateAfter:
		c.luck = 0
	case found:
		c.luck, c.rests = luckMost, restsLeast
	default:
		c.luck--
	}
	if !found || c.n == 0 { // an error or the end is found again by the next read
		return false
	}
	c.progress.Add(1)
	if !c.busy.Load() {
		c.busy.Store(true)
	}
	return true
}

const (
	luckMost   = 4  // looks in vain before a connection goes to sleep at once
	restsLeast = 64 // sleeps before it looks again; doubles while that does not pay
	restsMost  = 4096
	lateAfter  = 2 * spin.Limit // a look that took longer was held up by other programs
)

// reject answers a refused request and ends the connection. A v2 peer gets a status frame and time to
// read it: closing with its payload unread would reset the connection and destroy the frame.
func (c *conn) reject(h header, reason string) error {
	t := c.srv.t
	t.m.rejected.WithLabelValues(reason).Inc()
	t.logs.warn("request refused", "reason", reason, "op", h.opName(), "addr", hexAddr(h.addr), "bytes", h.size, "peer", c.RemoteAddr())
	if !h.v2() {
		c.out.flush()
		return errDone
	}
	if c.out.status(statusRejected) != nil || c.out.flush() != nil {
		return errDone
	}
	c.closeWrite()
	c.drain()
	return errDone
}

// drainPeriods bounds how long a rejected peer that keeps sending can hold its connection.
const drainPeriods = 16

// drain discards what the peer still sends, until it closes or is silent for drain_timeout.
func (c *conn) drain() {
	for range drainPeriods {
		c.SetReadDeadline(time.Now().Add(c.srv.t.cfg.DrainTimeout))
		got := 0
		for {
			if c.kicked.Load() {
				return
			}
			n, err := c.Conn.Read(c.buf[:])
			got += n
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return
			}
		}
		if got == 0 {
			return
		}
	}
}

func (c *conn) hold(r *registration) {
	c.mu.Lock()
	c.held = append(c.held, r)
	c.mu.Unlock()
}

// drop gives one use of r back.
func (c *conn) drop(r *registration) {
	c.mu.Lock()
	for i, o := range c.held {
		if o == r {
			last := len(c.held) - 1
			c.held[i], c.held[last] = c.held[last], nil
			c.held = c.held[:last]
			break
		}
	}
	c.mu.Unlock()
	r.release()
}

func (c *conn) uses(r *registration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.held {
		if o == r {
			return true
		}
	}
	return false
}

// maxFrames is how many answers leave in one system call at most.
const maxFrames = 64

// flushBytes is the amount of waiting payload that is sent without waiting for more.
const flushBytes = 256 << 10

// output collects answers: status frames and ranges of region memory, which stay held until sent.
type output struct {
	c      *conn
	iov    [2 * maxFrames]unix.Iovec
	rest   []unix.Iovec // of iov, what flush has not sent yet
	n      int          // used in iov
	bytes  int          // payload in iov
	frames [maxFrames][statusLen]byte
	nf     int
	refs   [maxFrames]transports.Ref
	regs   [maxFrames]*registration
	nr     int
	broken bool
	try    func(fd uintptr) bool
}

// status adds a status frame.
func (o *output) status(code uint32) error {
	if o.nf == maxFrames {
		if err := o.flush(); err != nil {
			return err
		}
	}
	f := &o.frames[o.nf]
	putStatus(f[:], code)
	if last := max(o.n-1, 0); o.n > 0 && uintptr(unsafe.Pointer(o.iov[last].Base))+uintptr(o.iov[last].Len) == uintptr(unsafe.Pointer(&f[0])) {
		o.iov[last].Len += statusLen // the frames lie side by side
	} else {
		o.iov[o.n] = iovec(f[:])
		o.n++
	}
	o.nf++
	return nil
}

// payload adds ref's bytes and takes ref and reg over.
func (o *output) payload(ref transports.Ref, reg *registration) error {
	o.iov[o.n] = iovec(ref.Data)
	o.n++
	o.refs[o.nr], o.regs[o.nr] = ref, reg
	o.nr++
	o.bytes += len(ref.Data)
	if o.bytes >= flushBytes || o.nr == maxFrames || o.n == len(o.iov) {
		return o.flush()
	}
	return nil
}

// flush sends everything and gives the regions back.
func (o *output) flush() error {
	if o.n == 0 {
		return nil
	}
	if o.broken {
		return errDone
	}
	o.rest = o.iov[:o.n]
	if err := o.c.rc.Write(o.try); err != nil || len(o.rest) > 0 {
		o.broken = true // what is left must not be sent again from its start
		return errDone
	}
	for i := range o.nr {
		o.c.srv.t.m.moved(roleServer, false, uint64(len(o.refs[i].Data)))
	}
	o.release()
	return nil
}

// writeSome is the closure of flush.
func (o *output) writeSome(fd uintptr) bool {
	for len(o.rest) > 0 {
		n, e := writev(fd, o.rest)
		switch e {
		case 0:
			o.c.progress.Add(1)
			o.rest = advance(o.rest, n)
		case unix.EAGAIN:
			return false
		default:
			return true // the peer has gone, or memory in the middle of a range is not mapped
		}
	}
	return true
}

// release drops whatever was not sent and gives the regions back.
func (o *output) release() {
	for i := range o.nr {
		o.c.drop(o.regs[i])
		o.refs[i].Release()
		o.refs[i], o.regs[i] = transports.Ref{}, nil
	}
	o.n, o.nf, o.nr, o.bytes, o.rest, o.broken = 0, 0, 0, 0, nil, false
}
