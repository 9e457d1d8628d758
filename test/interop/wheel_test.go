package interop

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// p2p is the connection string for peers that ask each other instead of a metadata service.
const p2p = "P2PHANDSHAKE"

// wheelDriver is testdata/wheel.py, absolute because commands may run elsewhere.
func wheelDriver(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("testdata/wheel.py")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// wheel is an engine of the real wheel in a process of its own.
type wheel struct {
	*testenv.Process
	t        *testing.T
	openName string
	addr     uint64
	rpcPort  int
}

// answer holds the fields of all answers of the driver.
type answer struct {
	Ready    bool
	Name     string
	Base     uint64
	Port     int
	RC       int
	Error    string
	Addr     uint64
	First    uint64
	Batch    uint64
	SHA256   string
	Hex      string
	Notifies [][2]string
}

// wheelCommand runs the driver; env are additional KEY=value pairs.
func wheelCommand(t *testing.T, name, meta string, size int, env ...string) *exec.Cmd {
	t.Helper()
	w := testenv.Wheel(t)
	cmd := w.Command("-u", wheelDriver(t), name, meta, fmt.Sprint(size))
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// startWheel starts an engine with size bytes registered and waits until it is ready.
func startWheel(t *testing.T, name, meta string, size int, env ...string) *wheel {
	t.Helper()
	w, a := tryWheel(t, name, meta, size, env...)
	if !a.Ready {
		t.Fatalf("wheel %s on %s: initialize: %d\n%s", name, meta, a.RC, w.Stderr())
	}
	return w
}

// tryWheel starts an engine that may refuse to start: then Ready is false and RC tells why.
func tryWheel(t *testing.T, name, meta string, size int, env ...string) (*wheel, answer) {
	t.Helper()
	p := testenv.StartCmd(t, wheelCommand(t, name, meta, size, env...))
	var a answer
	p.JSON(2*soon, &a)
	return &wheel{Process: p, t: t, openName: a.Name, addr: a.Base, rpcPort: a.Port}, a
}

// args are the arguments of one driver command.
type args map[string]any

// call runs one command; the driver's exceptions fail the test.
func (w *wheel) call(cmd string, a args) answer {
	w.t.Helper()
	r := w.try(soon, cmd, a)
	if r.Error != "" {
		w.t.Fatalf("wheel %s: %s: %s", w.openName, cmd, r.Error)
	}
	return r
}

func (w *wheel) try(within time.Duration, cmd string, a args) answer {
	w.t.Helper()
	w.send(cmd, a)
	var r answer
	w.JSON(within, &r)
	return r
}

// send starts a command whose answer is read later.
func (w *wheel) send(cmd string, a args) {
	w.t.Helper()
	m := args{"cmd": cmd}
	for k, v := range a {
		m[k] = v
	}
	line, err := json.Marshal(m)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Send("%s", line)
}

func (w *wheel) name() string { return w.openName }
func (w *wheel) base() uint64 { return w.addr }
func (w *wheel) port() int    { return w.rpcPort }

func (w *wheel) fill(off, n int, seed string) {
	w.t.Helper()
	w.call("fill", args{"off": off, "len": n, "seed": seed})
}

func (w *wheel) zero(off, n int) {
	w.t.Helper()
	w.call("zero", args{"off": off, "len": n})
}

func (w *wheel) sha(off, n int) string {
	w.t.Helper()
	return w.call("sha", args{"off": off, "len": n}).SHA256
}

func (w *wheel) move(target string, write bool, ops ...op) error {
	w.t.Helper()
	var r answer
	if len(ops) == 1 {
		o := ops[0]
		r = w.try(soon, "transfer", args{"target": target, "write": write, "local": o.local, "remote": o.remote, "len": o.n})
	} else {
		r = w.try(soon, "batch", batchArgs(target, write, ops))
	}
	if r.RC != 0 {
		return fmt.Errorf("wheel: transfer: %d %s", r.RC, r.Error)
	}
	return nil
}

func batchArgs(target string, write bool, ops []op) args {
	local, remote, n := make([]int, len(ops)), make([]uint64, len(ops)), make([]int, len(ops))
	for i, o := range ops {
		local[i], remote[i], n[i] = o.local, o.remote, o.n
	}
	return args{"target": target, "write": write, "local": local, "remote": remote, "len": n}
}

// notify writes one byte and sends a notification with it.
func (w *wheel) notify(target string, remote uint64, sender, msg string) error {
	w.t.Helper()
	r := w.try(soon, "transfer", args{"target": target, "write": true, "local": 0, "remote": remote, "len": 1, "notify": []string{sender, msg}})
	if r.RC != 0 {
		return fmt.Errorf("wheel: notify: %d %s", r.RC, r.Error)
	}
	return nil
}
