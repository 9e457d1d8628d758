package store

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// relay stands between one client and the master. It gives the client an IP address of its own, as on
// separate hosts, and counts its connections. When one side hangs up, so does the other, at once.
type relay struct {
	addr     string
	accepted atomic.Int64

	ln     net.Listener
	target string
	source net.IP
	wg     sync.WaitGroup
	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
}

var nextHost atomic.Uint32

// startRelay relays to target, which sees connections from an address in 127.1.0.0/16.
func startRelay(t testing.TB, target string) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := nextHost.Add(1)
	r := &relay{addr: ln.Addr().String(), ln: ln, target: target, source: net.IPv4(127, 1, byte(n>>8), byte(n)), open: map[net.Conn]bool{}}
	r.wg.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

func (r *relay) accept() {
	for {
		c, err := r.ln.Accept()
		if err != nil {
			return
		}
		r.accepted.Add(1)
		r.wg.Go(func() { r.serve(c) })
	}
}

func (r *relay) serve(c net.Conn) {
	defer c.Close()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: r.source}, Timeout: 10 * time.Second}
	m, err := d.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer m.Close()
	if !r.track(c, m) {
		return
	}
	defer r.untrack(c, m)
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(c, m) // the end of either side ends both
		c.Close()
	}()
	_, _ = io.Copy(m, c)
	m.Close()
	<-back
}

func (r *relay) track(cs ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range cs {
		r.open[c] = true
	}
	return !r.closed
}

func (r *relay) untrack(cs ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range cs {
		delete(r.open, c)
	}
}

func (r *relay) close() {
	r.ln.Close()
	r.mu.Lock()
	r.closed = true
	for c := range r.open {
		c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}
