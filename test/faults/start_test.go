package faults

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/internal/testenv/rawte"
)

// refuses runs a node that must not start, and returns what it says on stderr.
func refuses(t *testing.T, c testenv.Config, env ...string) string {
	t.Helper()
	p := testenv.StartCmd(t, testenv.NodeCommand(t, testenv.WriteConfig(t, c), env...))
	err := p.Wait(2 * soon)
	var ee *exec.ExitError
	if !errors.As(err, &ee) || ee.ExitCode() < 1 {
		t.Fatalf("exit: %v, want a status above 0\n%s", err, p.Stderr())
	}
	if line, err := p.NextLine(soon); err == nil {
		t.Errorf("stdout: %q, want nothing", line)
	}
	if s := p.Stderr(); strings.Contains(s, "panic") || strings.Contains(s, "goroutine ") || strings.Contains(s, "fx.") {
		t.Errorf("not a message for users:\n%s", s)
	}
	return p.Stderr()
}

// mentions fails unless the message holds all the words.
func mentions(t *testing.T, msg string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(msg, w) {
			t.Errorf("the message lacks %q:\n%s", w, msg)
		}
	}
}

// occupy listens on a port until the test ends.
func occupy(t *testing.T, port int) {
	t.Helper()
	ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
}

func portRange(lo, hi int) []string {
	return []string{fmt.Sprintf("MC_MIN_RPC_PORT=%d", lo), fmt.Sprintf("MC_MAX_RPC_PORT=%d", hi)}
}

func TestPortsInUse(t *testing.T) {
	t.Run("admin", func(t *testing.T) {
		port := testenv.FreePort(t)
		occupy(t, port)
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		msg := refuses(t, testenv.Config{"admin": testenv.Config{"listen": addr}})
		mentions(t, msg, addr, "address already in use", "admin")
	})
	t.Run("whole range", func(t *testing.T) {
		lo := testenv.FreePorts(t, 3)
		for i := range 3 {
			occupy(t, lo+i)
		}
		msg := refuses(t, nil, portRange(lo, lo+2)...)
		mentions(t, msg, fmt.Sprint(lo), fmt.Sprint(lo+2), "port")
	})
	t.Run("one port where two are needed", func(t *testing.T) {
		lo := testenv.FreePorts(t, 3)
		occupy(t, lo)
		occupy(t, lo+2)
		msg := refuses(t, nil, portRange(lo, lo+2)...)
		mentions(t, msg, fmt.Sprint(lo), "port")
	})
	t.Run("two free ones are found", func(t *testing.T) {
		lo := testenv.FreePorts(t, 6)
		for _, i := range []int{0, 1, 3, 5} {
			occupy(t, lo+i)
		}
		v := startVictim(t, nil, portRange(lo, lo+5)...)
		for _, at := range []string{v.Segment, v.desc.DataAddr()} {
			if at != fmt.Sprintf("127.0.0.1:%d", lo+2) && at != fmt.Sprintf("127.0.0.1:%d", lo+4) {
				t.Errorf("listens on %s, free were %d and %d", at, lo+2, lo+4)
			}
		}
	})
}

// 32 nodes of one host start at the same moment and draw their ports from one small range.
func TestManyNodesAtOnce(t *testing.T) {
	const n = 32
	lo := testenv.FreePorts(t, 3*n)
	testenv.Mooncake(t) // build it before the race begins
	procs := make([]*testenv.Process, n)
	for i := range n {
		path := testenv.WriteConfig(t, testenv.Config{"global_segment_size": "1MB"})
		procs[i] = testenv.StartCmd(t, testenv.NodeCommand(t, path, portRange(lo, lo+3*n-1)...))
	}
	var ready [n]struct{ Segment string }
	for i, p := range procs {
		p.JSON(2*testenv.NodeReady, &ready[i])
	}
	seen := map[string]bool{}
	for _, r := range ready {
		d := open(t, r.Segment)
		for _, at := range []string{r.Segment, d.DataAddr()} {
			if seen[at] {
				t.Errorf("%s twice", at)
			}
			seen[at] = true
		}
		c, err := rawte.DialData(d.DataAddr(), soon)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.WriteAt([]byte(r.Segment), d.Buffers[0].Addr); err != nil {
			t.Error(err)
		}
		c.Close()
	}
	var wg sync.WaitGroup
	for _, p := range procs {
		wg.Go(func() {
			p.Signal(syscall.SIGTERM)
			if err := p.Wait(soon); err != nil {
				t.Errorf("stop: %v\n%s", err, p.Stderr())
			}
		})
	}
	wg.Wait()
}

// S18: literals of IPv6 in all spellings.
func TestIPv6(t *testing.T) {
	if ln, err := net.Listen("tcp", "[::1]:0"); err != nil {
		testenv.MustNotSkip(t, "IPv6 on loopback: %v", err)
	} else {
		ln.Close()
	}
	for _, name := range []string{"::1", "[::1]", "[::1]:9000"} {
		t.Run(name, func(t *testing.T) {
			v := startVictim(t, testenv.Config{"local_hostname": name, "bind_address": nil, "advertise_host": nil})
			if !strings.HasPrefix(v.Segment, "[::1]:") {
				t.Errorf("segment %q", v.Segment)
			}
			if v.desc.TCPDataHost != "::1" || v.desc.Name != v.Segment {
				t.Errorf("document: name %q, tcp_data_host %q", v.desc.Name, v.desc.TCPDataHost)
			}
			v.serves()
		})
	}
	for name, want := range map[string]string{
		"127.0.0.1:99999": "99999",
		"[::1":            "[::1",
		"[::1]:x":         "[::1]:x",
		"127.0.0.1:-1":    "-1",
	} {
		t.Run("bad "+name, func(t *testing.T) {
			mentions(t, refuses(t, testenv.Config{"local_hostname": name}), "local_hostname", want)
		})
	}
}

// S16: connection strings of services that this binary lacks, or that nobody has.
func TestUnknownMetadataServices(t *testing.T) {
	for server, words := range map[string][]string{
		"consul://127.0.0.1:8500": {"consul", "etcd", "redis", "http"},
		"p2phandshake":            {"P2PHANDSHAKE"},
		"://x":                    {"metadata_server"},
		"ftp://127.0.0.1":         {"ftp", "etcd"},
		"http://":                 {"metadata_server"},
		"etcd://":                 {"metadata_server"},
	} {
		t.Run(server, func(t *testing.T) {
			mentions(t, refuses(t, testenv.Config{"metadata_server": server}), append(words, "metadata_server")...)
		})
	}
}

// S11: a wrong value in the environment is named with its variable, never guessed at.
func TestBadEnvironment(t *testing.T) {
	for _, kv := range []string{
		"MC_MIN_RPC_PORT=abc", "MC_MAX_RPC_PORT=0", "MC_MAX_RPC_PORT=65536", "MC_TCP_LANES_PER_PEER=0",
		"MC_TCP_LANES_PER_PEER=64K", "MC_HANDSHAKE_CONNECT_TIMEOUT=-1", "MC_TCP_PROTO=7",
		"MC_HANDSHAKE_MAX_LENGTH=9223372036854775808", "MC_TCP_PROGRESS_TIMEOUT_SEC=30 ",
	} {
		t.Run(kv, func(t *testing.T) {
			name, value, _ := strings.Cut(kv, "=")
			msg := refuses(t, nil, kv)
			mentions(t, msg, name, strings.TrimSpace(value))
		})
	}
}
