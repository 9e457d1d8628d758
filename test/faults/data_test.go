package faults

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/internal/testenv/rawte"
)

// S1: requests outside of registered memory are refused with a status frame, not served and not
// answered by silence; the connection ends, the memory around is untouched, others go on.
func TestDataRejectsBadRanges(t *testing.T) {
	v := startVictim(t, nil)
	base, end := v.base(), v.base()+v.size()
	want := pattern("untouched", 4096)
	d := v.dial()
	for _, at := range []uint64{base, end - 4096} {
		if err := d.WriteAt(want, at); err != nil {
			t.Fatal(err)
		}
	}
	rejected := v.metric("mooncake_tcp_rejected_total", "")
	tries := 0
	for _, c := range []struct {
		name       string
		addr, size uint64
	}{
		{"outside of any buffer", base + 1<<46, 64},
		{"address 0", 0, 64},
		{"one byte past the end", end - 63, 64},
		{"one byte before the start", base - 1, 64},
		{"address + length wraps", 1<<64 - 32, 64},
		{"length wraps to the start", base, 1<<64 - 1},
		{"length 0", base, 0},
		{"length 2^63", base, 1 << 63},
		{"the whole segment and one more", base, v.size() + 1},
	} {
		for _, op := range []byte{rawte.Read, rawte.Write, 0x7f, 0x02} {
			t.Run(fmt.Sprintf("%s op %#x", c.name, op), func(t *testing.T) {
				tries += 2
				v2 := v.dial()
				v2.Write(rawte.Header(op|rawte.Ack, c.addr, c.size))
				var se *rawte.StatusError
				if err := rawte.ReadStatus(v2); !errors.As(err, &se) || se.Code != rawte.Rejected {
					t.Errorf("v2: %v, want status %d", err, rawte.Rejected)
				}
				if n, err := io.Copy(io.Discard, v2); n != 0 || err != nil && !isReset(err) {
					t.Errorf("v2: %d more bytes, %v; want the end of the connection", n, err)
				}
				v1 := v.dial()
				v1.Write(rawte.Header(op, c.addr, c.size))
				if n, err := io.Copy(io.Discard, v1); n != 0 || err != nil && !isReset(err) {
					t.Errorf("v1: %d bytes, %v; want the end of the connection", n, err)
				}
			})
		}
	}
	if got := v.metric("mooncake_tcp_rejected_total", "") - rejected; got != float64(tries) {
		t.Errorf("%v rejections counted, want %d", got, tries)
	}
	got := make([]byte, 4096)
	for _, at := range []uint64{base, end - 4096} {
		if err := d.ReadAt(got, at); err != nil {
			t.Fatalf("the connection of another client was hit: %v", err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("memory at %#x changed", at)
		}
	}
	v.serves()
}

// S1 (f): headers that never become complete.
func TestDataHeaderCut(t *testing.T) {
	v := startVictim(t, nil)
	before := v.files()
	var held []net.Conn
	for n := range 24 {
		c := v.dial()
		c.Write(rawte.Header(rawte.Write|rawte.Ack, v.base(), 100)[:n])
		if n%2 == 0 {
			c.Close()
		} else {
			held = append(held, c)
		}
	}
	v.serves()
	for _, c := range held {
		c.Close()
	}
	v.filesBackTo(before)
}

// A rejected write whose body is on its way: the client that first sends everything must still find
// the status, and neither side may wait for the other for ever.
func TestDataRejectsLargeWrites(t *testing.T) {
	v := startVictim(t, nil)
	const size = 1 << 20
	for i := range 20 {
		c := v.dial()
		sent := make(chan error, 1)
		go func() {
			if _, err := c.Write(rawte.Header(rawte.Write|rawte.Ack, v.base()+v.size(), 64<<20)); err != nil {
				sent <- err
				return
			}
			var err error
			for n := 0; n < 64<<20 && err == nil; n += size {
				_, err = c.Write(make([]byte, size))
			}
			sent <- err
		}()
		var se *rawte.StatusError
		if err := rawte.ReadStatus(c); !errors.As(err, &se) {
			t.Errorf("try %d: %v, want a status", i, err)
		}
		c.Close()
		<-sent
	}
	v.serves()
}

// S2: an acknowledged write is in memory when the acknowledgement arrives: a second connection sees
// all of it.
func TestDataAcknowledgesAfterApplying(t *testing.T) {
	v := startVictim(t, nil)
	const size = 2_400_000
	w, r := v.dial(), v.dial()
	got := make([]byte, size)
	for i := range 100 {
		want := pattern(fmt.Sprint(i), size)
		if err := w.WriteAt(want, v.base()+uint64(i)); err != nil {
			t.Fatal(err)
		}
		if err := r.ReadAt(got, v.base()+uint64(i)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("write %d was acknowledged before it was applied", i)
		}
	}
}

// S4: clients that vanish in the middle of a request, a thousand times, by reset and by end of
// stream, with debug logs on.
func TestDataClientsVanish(t *testing.T) {
	v := startVictim(t, testenv.Config{"log": testenv.Config{"level": "debug"}})
	before := v.files()
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 250 {
				d, err := rawte.DialData(v.desc.DataAddr(), soon)
				if err != nil {
					t.Error(err)
					return
				}
				op, size := byte(rawte.Write), uint64(4<<20)
				if i%2 == 0 {
					op = rawte.Read
				}
				d.Write(rawte.Header(op|rawte.Ack, v.base()+uint64(g)<<21, size))
				if op == rawte.Write {
					d.Write(make([]byte, 1000*i))
				} else {
					io.CopyN(io.Discard, d, int64(1000*i))
				}
				if i%3 == 0 {
					d.Conn.(*net.TCPConn).SetLinger(0)
				}
				d.Close()
			}
		})
	}
	wg.Wait()
	v.serves()
	v.Alive(t)
	v.filesBackTo(before)
}

// S3: idle connections up to the limit of open files do not lock a new client out: the longest-idle
// ones of the greediest address make room. Connections in use stay.
func TestDataIdleConnectionsMakeRoom(t *testing.T) {
	path := testenv.WriteConfig(t, nil)
	node := testenv.NodeCommand(t, path)
	cmd := exec.Command("sh", append([]string{"-c", `ulimit -n 256 && exec "$@"`, "sh"}, node.Args...)...)
	cmd.Env = node.Env
	n := testenv.StartNodeCmd(t, cmd, path)
	v := &victim{n, t, open(t, n.Segment)}

	busy, err := rawte.DialData(v.desc.DataAddr(), 10*soon)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	busy.Write(rawte.Header(rawte.Write|rawte.Ack, v.base(), 100)) // in the middle of a request
	for range 600 {
		v.dial()
	}
	v.serves()
	if _, err := busy.Write(make([]byte, 100)); err != nil {
		t.Error(err)
	}
	if err := rawte.ReadStatus(busy); err != nil {
		t.Errorf("a connection in use was dropped: %v", err)
	}
	if got := v.metric("mooncake_tcp_connections_evicted_total", ""); got < 300 {
		t.Errorf("%v connections evicted", got)
	}
	if lines := strings.Count(v.Stderr(), "\n"); lines > 100 {
		t.Errorf("%d lines of log about it", lines)
	}
	v.Alive(t)
}
