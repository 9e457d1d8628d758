package rdma

import (
	"crypto/sha256"
	"crypto/sha3"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// p2p is the connection string for peers that ask each other instead of a metadata service.
const p2p = "P2PHANDSHAKE"

// memSize is the memory of each peer: the biggest transfer, a batch, and guards.
const memSize = 4 << 20

// driver is an engine in a process of its own, ours or the wheel's: both are driven alike.
type driver struct {
	*testenv.Process
	t       *testing.T
	name    string // that peers open
	base    uint64
	command func() *exec.Cmd
}

// answer holds the fields of all answers of the drivers.
type answer struct {
	Ready  bool   `json:"ready,omitempty"`
	Name   string `json:"name,omitempty"`
	Base   uint64 `json:"base,omitempty"`
	RC     int    `json:"rc"`
	Error  string `json:"error,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

type args map[string]any

// side starts a driver.
type side struct {
	name  string
	start func(t *testing.T, name, meta string) *driver
}

var (
	ours = side{"ours", func(t *testing.T, name, meta string) *driver { return startOurs(t, name, meta, "rxe0") }}
	// The wheel's handshake daemon listens on all addresses; what it publishes is on loopback.
	wheel = side{"wheel", func(t *testing.T, name, meta string) *driver {
		script, err := filepath.Abs("../interop/testdata/wheel.py")
		if err != nil {
			t.Fatal(err)
		}
		w := testenv.Wheel(t)
		return startDriver(t, func() *exec.Cmd { return w.Command("-u", script, name, meta, fmt.Sprint(memSize), "rdma", "rxe0") })
	}}
)

// startOurs starts a peer of ours with some devices, separated by commas.
func startOurs(t *testing.T, name, meta, devices string) *driver {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startDriver(t, func() *exec.Cmd {
		cmd := exec.Command(self, name, meta, fmt.Sprint(memSize), devices)
		cmd.Env = append(testenv.CleanEnv(), peerVariable+"=1")
		return cmd
	})
}

func startDriver(t *testing.T, command func() *exec.Cmd) *driver {
	t.Helper()
	d := &driver{t: t, command: command}
	d.restart()
	return d
}

// restart starts the process, again after it was killed.
func (d *driver) restart() {
	d.t.Helper()
	d.Process = testenv.StartCmd(d.t, d.command())
	var a answer
	d.JSON(soon, &a)
	if !a.Ready {
		d.t.Fatalf("%v: initialize: %d %s\n%s", d.Cmd.Args, a.RC, a.Error, d.Stderr())
	}
	d.name, d.base = a.Name, a.Base
}

// try runs one command.
func (d *driver) try(cmd string, a args) answer {
	d.t.Helper()
	m := args{"cmd": cmd}
	for k, v := range a {
		m[k] = v
	}
	line, err := json.Marshal(m)
	if err != nil {
		d.t.Fatal(err)
	}
	d.Send("%s", line)
	var r answer
	d.JSON(soon, &r)
	return r
}

// call runs a command that must succeed.
func (d *driver) call(cmd string, a args) answer {
	d.t.Helper()
	r := d.try(cmd, a)
	if r.RC != 0 || r.Error != "" {
		d.t.Fatalf("%s: %s %v: %d %s\n%s", d.name, cmd, a, r.RC, r.Error, d.Stderr())
	}
	return r
}

func (d *driver) fill(off, n int, seed string) {
	d.t.Helper()
	d.call("fill", args{"off": off, "len": n, "seed": seed})
}

func (d *driver) zero(off, n int) {
	d.t.Helper()
	d.call("zero", args{"off": off, "len": n})
}

// op is one range of a transfer; both are offsets in the memory of their peers.
type op struct{ local, remote, n int }

func (d *driver) move(to *driver, write bool, ops ...op) error {
	d.t.Helper()
	var r answer
	if len(ops) == 1 {
		o := ops[0]
		r = d.try("transfer", args{"target": to.name, "write": write, "local": o.local, "remote": to.base + uint64(o.remote), "len": o.n})
	} else {
		local, remote, n := make([]int, len(ops)), make([]uint64, len(ops)), make([]int, len(ops))
		for i, o := range ops {
			local[i], remote[i], n[i] = o.local, to.base+uint64(o.remote), o.n
		}
		r = d.try("batch", args{"target": to.name, "write": write, "local": local, "remote": remote, "len": n})
	}
	if r.RC != 0 {
		return fmt.Errorf("transfer: %d %s", r.RC, r.Error)
	}
	return nil
}

// guard is how many bytes before and after each range are checked to be untouched.
const guard = 64

// check compares a range, with its guards, to the pattern between zeros.
func (d *driver) check(off, n int, seed string) error {
	d.t.Helper()
	z := make([]byte, guard)
	if got, want := d.call("sha", args{"off": off - guard, "len": n + 2*guard}).SHA256, sum(z, pattern(seed, n), z); got != want {
		return fmt.Errorf("content of %d bytes at offset %d: SHA-256 %s, want %s", n, off, got, want)
	}
	return nil
}

// pattern is the first n bytes of the SHAKE-128 stream of seed; wheel.py knows it too.
func pattern(seed string, n int) []byte {
	b := make([]byte, n)
	h := sha3.NewSHAKE128()
	h.Write([]byte(seed))
	h.Read(b)
	return b
}

// sum is the SHA-256 of the parts, in hex.
func sum(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}
