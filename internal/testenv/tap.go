package testenv

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Tap is a TCP relay on 127.0.0.1 between a client under test and a server, which can be slowed down, held up and
// cut. It ends with the test.
type Tap struct {
	// Addr is where clients connect.
	Addr string

	ln   net.Listener
	to   string
	wg   sync.WaitGroup
	mu   sync.Mutex
	rate int // bytes per second towards the client, 0 = all there are
	held chan struct{}
	cut  bool
	open map[net.Conn]bool
	down atomic.Int64
}

// NewTap starts a relay to a server.
func NewTap(t testing.TB, to string) *Tap {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Tap{Addr: ln.Addr().String(), ln: ln, to: to, open: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		p.ln.Close()
		p.Release()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Slow limits what the server's side sends to the client, on each connection, to so many bytes per second.
func (p *Tap) Slow(rate int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = rate
}

// Hold stops everything in both directions until Release; connections stay open, and new ones are accepted.
func (p *Tap) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		p.held = make(chan struct{})
	}
}

// Release ends Hold.
func (p *Tap) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held != nil {
		close(p.held)
		p.held = nil
	}
}

// Cut breaks all connections, and each new one at once, until Mend.
func (p *Tap) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.open {
		c.Close()
	}
}

// Passed is how many bytes went to clients so far.
func (p *Tap) Passed() int64 { return p.down.Load() }

// Mend ends Cut.
func (p *Tap) Mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
}

func (p *Tap) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.relay(c) })
	}
}

func (p *Tap) relay(c net.Conn) {
	defer p.drop(c)
	if !p.add(c) {
		return
	}
	s, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer p.drop(s)
	if !p.add(s) {
		return
	}
	var wg sync.WaitGroup
	for _, d := range []struct {
		dst, src net.Conn
		down     bool
	}{{s, c, false}, {c, s, true}} {
		wg.Go(func() {
			p.copy(d.dst, d.src, d.down)
			d.dst.Close() // one direction is no connection
			d.src.Close()
		})
	}
	wg.Wait()
}

func (p *Tap) add(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cut {
		p.open[c] = true
	}
	return !p.cut
}

func (p *Tap) drop(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

// step is how often a slowed connection passes something on.
const tapStep = 5 * time.Millisecond

func (p *Tap) copy(dst io.Writer, src io.Reader, down bool) {
	buf := make([]byte, 64<<10)
	for {
		p.mu.Lock()
		rate, held := p.rate, p.held
		p.mu.Unlock()
		b := buf
		if down && rate > 0 {
			b = buf[:min(max(rate/int(time.Second/tapStep), 1), len(buf))]
		}
		n, err := src.Read(b)
		if held == nil {
			p.mu.Lock()
			held = p.held
			p.mu.Unlock()
		}
		if held != nil {
			<-held
		}
		if n > 0 {
			if down && rate > 0 {
				time.Sleep(time.Duration(n) * time.Second / time.Duration(rate))
			}
			if _, err := dst.Write(b[:n]); err != nil {
				return
			}
			if down {
				p.down.Add(int64(n))
			}
		}
		if err != nil {
			return
		}
	}
}
