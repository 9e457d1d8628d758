package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/core/rpc"
	"github.com/mooncake-agent/mooncake/internal/procstat"
	"github.com/mooncake-agent/mooncake/internal/rawsock"
)

const (
	answerGrace   = 5 * time.Second // for the last answers
	pollInterval  = 100 * time.Millisecond
	firstReadSize = 64 << 10
	// Sequence numbers hold the slot, so that answers may come in any order.
	slotBits = 12
	slotMask = 1<<slotBits - 1
)

var _ = [1]struct{}{}[maxStoreDepth-1-slotMask] // every depth has its slots

// load is one measurement: threads that each drive their connections with epoll. Nothing in it is
// allocated for an operation, and a thread wakes up once for all answers that are there.
type load struct {
	s        *storeClient
	from, to time.Duration // of the measurement, on clock
	start    time.Time
	stop     atomic.Bool
}

func (l *load) clock() time.Duration { return time.Since(l.start) }

// loadThread is one thread of the generator. Its figures are read when it has ended.
type loadThread struct {
	l      *load
	conns  []*loadConn
	epoll  int
	hist   histogram
	ops    uint64
	errors uint64
	checks uint64
	first  error
}

// loadConn is one connection.
type loadConn struct {
	t        *loadThread
	fd       int
	requests storeRequests
	slots    []slot
	seq      uint32 // round of the sequence numbers, above the slot
	random   uint64
	inFlight int
	in       []byte
	have     int // bytes in in
	out      []byte
	sent     int  // bytes of out that have left
	waiting  bool // for room to write
}

// slot is one place for an operation of a connection.
type slot struct {
	request *storeRequest
	seq     uint32
	space   uint32 // of the keys that it puts
	next    uint64 // number of its next new key
	begin   time.Duration
}

// measure runs the operations and fills in r.
func (s *storeClient) measure(ctx context.Context, r *StoreResult) error {
	l := &load{s: s, start: time.Now()}
	threads := make([]*loadThread, min(s.o.Threads, s.o.Connections))
	for i := range threads {
		threads[i] = &loadThread{l: l, epoll: -1}
	}
	defer func() {
		for _, t := range threads {
			t.close()
		}
	}()
	for i := range s.o.Connections {
		if err := threads[i%len(threads)].connect(i); err != nil {
			return err
		}
	}
	l.from = l.clock() + s.o.warmUp
	l.to = l.from + s.o.Duration
	unhook := context.AfterFunc(ctx, func() { l.stop.Store(true) })
	defer unhook()
	errs := make([]error, len(threads)+1)
	var wg sync.WaitGroup
	var cpu time.Duration
	if s.o.PID != 0 {
		wg.Go(func() { cpu, r.MasterRSS, errs[len(threads)] = l.watch(s.o.PID) })
	}
	for i, t := range threads {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if errs[i] = t.run(); errs[i] != nil {
				l.stop.Store(true)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var hist histogram
	var ops uint64
	for _, t := range threads {
		hist.merge(&t.hist)
		ops += t.ops
		r.Errors += t.errors
		if r.FirstError == nil {
			r.FirstError = t.first
		}
	}
	if ops == 0 && r.FirstError != nil {
		return fmt.Errorf("no operation succeeded: %w", r.FirstError)
	}
	r.Seconds = max(min(l.clock(), l.to)-l.from, 0).Seconds()
	if r.Seconds > 0 {
		r.OpsPerSecond = float64(ops) / r.Seconds
	}
	r.LatencyUS = hist.latency()
	if all := ops + r.Errors; all > 0 {
		r.MasterCPU = float64(cpu.Microseconds()) / float64(all)
	}
	return nil
}

// watch measures the processor time that a process uses during the measurement, and its memory at the end.
func (l *load) watch(pid int) (time.Duration, uint64, error) {
	until := func(at time.Duration) {
		for l.clock() < at && !l.stop.Load() {
			time.Sleep(min(at-l.clock(), pollInterval))
		}
	}
	until(l.from)
	before, err := procstat.Read(pid)
	if err != nil {
		return 0, 0, err
	}
	until(l.to)
	after, err := procstat.Read(pid)
	return after.CPU - before.CPU, after.RSS, err
}

// connect adds a connection. All its slots are idle.
func (t *loadThread) connect(number int) error {
	o := t.l.s.o
	fd, err := dialTCP(o.Master)
	if err != nil {
		return err
	}
	c := &loadConn{t: t, fd: fd, slots: make([]slot, o.Depth), in: make([]byte, firstReadSize), random: scramble(uint64(t.l.s.space)<<32+uint64(number)) | 1}
	t.conns = append(t.conns, c)
	for i := range c.slots {
		c.slots[i].space = t.l.s.space + 1 + uint32(number*o.Depth+i)
	}
	if c.requests, err = t.l.s.requests(); err != nil {
		return err
	}
	return nil
}

func (t *loadThread) close() {
	for _, c := range t.conns {
		_ = unix.Close(c.fd)
	}
	if t.epoll >= 0 {
		_ = unix.Close(t.epoll)
	}
}

func dialTCP(address string) (int, error) {
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return -1, err
	}
	family, to := unix.AF_INET6, unix.Sockaddr(nil)
	if ip := a.IP.To4(); ip != nil {
		sa := &unix.SockaddrInet4{Port: a.Port}
		copy(sa.Addr[:], ip)
		family, to = unix.AF_INET, sa
	} else {
		sa := &unix.SockaddrInet6{Port: a.Port}
		copy(sa.Addr[:], a.IP.To16())
		to = sa
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = unix.Connect(fd, to)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("connect to %s: %w", address, err)
	}
	return fd, nil
}

// run drives the connections until the end of the measurement and of what is then in flight.
func (t *loadThread) run() error {
	if len(t.conns) == 1 && len(t.conns[0].slots) == 1 {
		return t.runBlocking()
	}
	var err error
	if t.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	for i, c := range t.conns {
		if err := unix.SetNonblock(c.fd, true); err != nil {
			return err
		}
		if err := unix.EpollCtl(t.epoll, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}); err != nil {
			return err
		}
	}
	for i, c := range t.conns {
		if err := c.begin(i); err != nil {
			return err
		}
	}
	events := make([]unix.EpollEvent, min(len(t.conns), 512))
	for t.inFlight() {
		n, err := unix.EpollWait(t.epoll, events, int(pollInterval.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n <= 0 && t.l.clock() > t.l.to+answerGrace {
			return fmt.Errorf("%d answers did not come", t.missing())
		}
		for i := range max(n, 0) {
			c := t.conns[events[i].Fd]
			if events[i].Events&unix.EPOLLOUT != 0 {
				if err := c.flush(int(events[i].Fd)); err != nil {
					return err
				}
			}
			if events[i].Events&^unix.EPOLLOUT == 0 {
				continue
			}
			if err := c.read(int(events[i].Fd)); err != nil {
				return err
			}
		}
	}
	return nil
}

// runBlocking drives one connection with one request in flight: without epoll there is one system call less.
func (t *loadThread) runBlocking() error {
	c := t.conns[0]
	tv := unix.NsecToTimeval(pollInterval.Nanoseconds())
	if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return err
	}
	if err := c.begin(-1); err != nil {
		return err
	}
	for c.inFlight > 0 {
		if err := c.read(-1); err != nil {
			return err
		}
		if t.l.clock() > t.l.to+answerGrace {
			return errors.New("the answer did not come")
		}
	}
	return nil
}

func (t *loadThread) inFlight() bool { return t.missing() > 0 }

func (t *loadThread) missing() (n int) {
	for _, c := range t.conns {
		if n += c.inFlight; n > 0 {
			return n
		}
	}
	return n
}

// begin starts an operation on each slot.
func (c *loadConn) begin(index int) error {
	now := c.t.l.clock()
	for i := range c.slots {
		c.issue(i, now)
	}
	return c.flush(index)
}

// issue appends the next operation of an idle slot to the output.
func (c *loadConn) issue(i int, now time.Duration) {
	s := &c.slots[i]
	s.request, s.begin = c.choose(), now
	c.inFlight++
	c.append(i)
}

// choose returns the kind of the next operation.
func (c *loadConn) choose() *storeRequest {
	rs := &c.requests
	switch c.t.l.s.o.Op {
	case "exist":
		return rs.exist
	case "get":
		return rs.get
	case "putstart-end":
		return rs.putStart
	case "batchexist":
		return rs.batchExist
	case "batchget":
		return rs.batchGet
	case "ping":
		return rs.ping
	}
	switch n := c.rand() % 10; { // mixed
	case n < 7:
		return rs.get
	case n < 9:
		return rs.exist
	}
	return rs.putStart
}

// rand is xorshift64.
func (c *loadConn) rand() uint64 {
	c.random ^= c.random << 13
	c.random ^= c.random >> 7
	c.random ^= c.random << 17
	return c.random
}

// append writes the request of a slot to the output.
func (c *loadConn) append(i int) {
	s := &c.slots[i]
	c.seq += 1 << slotBits
	s.seq = c.seq | uint32(i)
	f := s.request.frame
	binary.LittleEndian.PutUint32(f[4:], s.seq)
	switch s.request {
	case c.requests.putStart, c.requests.putEnd:
		keyAt(f[s.request.keyAt[0]:], s.space, s.next)
	default:
		for _, at := range s.request.keyAt {
			keyAt(f[at:], c.t.l.s.space, c.rand()%c.t.l.s.o.Keys)
		}
	}
	c.out = append(c.out, f...)
}

// flush writes what is in the output. index is the connection's number in the epoll set; a negative one
// means that the socket blocks.
func (c *loadConn) flush(index int) error {
	send := rawsock.Send
	if index < 0 {
		send = unix.Write
	}
	for c.sent < len(c.out) {
		n, err := send(c.fd, c.out[c.sent:])
		switch {
		case err == nil:
			c.sent += n
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return c.wait(index, true)
		default:
			return fmt.Errorf("write: %w", err)
		}
	}
	c.out, c.sent = c.out[:0], 0
	return c.wait(index, false)
}

// wait has epoll report room to write, or no longer.
func (c *loadConn) wait(index int, waiting bool) error {
	if c.waiting == waiting || index < 0 {
		return nil
	}
	c.waiting = waiting
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(index)}
	if waiting {
		ev.Events |= unix.EPOLLOUT
	}
	return unix.EpollCtl(c.t.epoll, unix.EPOLL_CTL_MOD, c.fd, &ev)
}

var errClosedByMaster = errors.New("the master closed a connection")

// read takes what has arrived, completes operations and starts the next ones.
func (c *loadConn) read(index int) error {
	receive := rawsock.Recv
	if index < 0 {
		receive = unix.Read
	}
	n, err := receive(c.fd, c.in[c.have:])
	switch {
	case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
		return nil
	case err != nil:
		return fmt.Errorf("read: %w", err)
	case n == 0:
		return errClosedByMaster
	}
	c.have += n
	now := c.t.l.clock()
	ended := c.t.l.stop.Load() || now >= c.t.l.to
	used := 0
	for c.have-used >= rpc.ResponseHeaderSize {
		h, ok := parseAnswer(c.in[used:])
		if !ok {
			return fmt.Errorf("not an answer: %x", c.in[used:used+rpc.ResponseHeaderSize])
		}
		whole := rpc.ResponseHeaderSize + h.size
		if c.have-used < whole {
			if whole > len(c.in) {
				c.in = append(c.in, make([]byte, whole-len(c.in))...)
			}
			break
		}
		if err := c.answer(h, c.in[used+rpc.ResponseHeaderSize:used+whole], now, ended); err != nil {
			return err
		}
		used += whole
	}
	copy(c.in, c.in[used:c.have])
	c.have -= used
	if len(c.out) == 0 {
		return nil
	}
	return c.flush(index)
}

// answer completes the request of a slot.
func (c *loadConn) answer(h answerHeader, body []byte, now time.Duration, ended bool) error {
	i := int(h.seq & slotMask)
	if i >= len(c.slots) || c.slots[i].seq != h.seq {
		return fmt.Errorf("an answer with sequence number %d, which is not in flight", h.seq)
	}
	s, t := &c.slots[i], c.t
	t.checks++
	err := s.request.check(h, body, t.checks%verifyEvery == 0)
	if s.request == c.requests.putStart && err == nil {
		s.request = c.requests.putEnd
		c.append(i)
		return nil
	}
	if s.request == c.requests.putStart || s.request == c.requests.putEnd {
		s.next++
	}
	c.inFlight--
	s.seq = 0
	if now >= t.l.from && now < t.l.to {
		if err == nil {
			t.ops++
			t.hist.add(now - s.begin)
		} else {
			t.errors++
		}
	}
	if err != nil && t.first == nil {
		t.first = err
	}
	if !ended {
		c.issue(i, now)
	}
	return nil
}
