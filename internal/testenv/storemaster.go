package testenv

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// MasterReady is how long a Store master may take to serve on a busy machine.
const MasterReady = 60 * time.Second

// StoreMaster is a running Store master, ours or a wheel's, on 127.0.0.1. It keeps its ports over
// [StoreMaster.Restart].
type StoreMaster struct {
	*Process
	// Addr is the RPC address, Admin the base URL of the admin server.
	Addr, Admin string
	// Wheel is the release that it comes from; nil for our own.
	Wheel *StoreWheelEnv

	t    testing.TB
	argv []string
	env  []string
}

// StartMaster runs "mooncake master" with flags on free ports and waits until it serves. Without that
// command in the binary the test is skipped (see [MustNotSkip]).
func StartMaster(t testing.TB, flags ...string) *StoreMaster {
	t.Helper()
	if err := hasMaster(t); err != nil {
		MustNotSkip(t, "%v", err)
	}
	rpc, admin := FreePort(t), FreePort(t)
	m := &StoreMaster{
		Addr: fmt.Sprintf("127.0.0.1:%d", rpc), Admin: fmt.Sprintf("http://127.0.0.1:%d", admin), t: t, env: CleanEnv(),
		argv: append([]string{Mooncake(t), "master", "--rpc_address=127.0.0.1", fmt.Sprintf("--port=%d", rpc),
			"--metrics_host=127.0.0.1", fmt.Sprintf("--metrics_port=%d", admin)}, flags...),
	}
	m.Start()
	return m
}

var masterHelp sync.Map // binary -> error

// hasMaster reports why the binary under test cannot be a master, or nil. An unknown command shows
// the general help, with status 0.
func hasMaster(t testing.TB) error {
	bin := Mooncake(t)
	if err, ok := masterHelp.Load(bin); ok {
		return asError(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), MasterReady)
	defer cancel()
	out, err := exec.CommandContext(ctx, bin, "master", "--help").CombinedOutput()
	if err == nil && !strings.Contains(string(out), "master") {
		err = fmt.Errorf("no such command")
	}
	if err != nil {
		err = fmt.Errorf("this build of mooncake has no command \"master\": %w", err)
	}
	masterHelp.Store(bin, err)
	return err
}

func asError(v any) error {
	err, _ := v.(error)
	return err
}

// StartWheelMaster runs the wheel's own mooncake_master with flags on free ports and waits until it
// serves. Releases before 0.3.13 serve HTTP on all addresses, whatever they are told.
func StartWheelMaster(t testing.TB, w *StoreWheelEnv, flags ...string) *StoreMaster {
	t.Helper()
	rpc, admin := FreePort(t), FreePort(t)
	m := &StoreMaster{
		Addr: fmt.Sprintf("127.0.0.1:%d", rpc), Admin: fmt.Sprintf("http://127.0.0.1:%d", admin), Wheel: w, t: t, env: w.Env(),
		argv: []string{w.Master(), "--rpc_address=127.0.0.1", fmt.Sprintf("--rpc_port=%d", rpc), fmt.Sprintf("--metrics_port=%d", admin)},
	}
	if w.AtLeast("0.3.13") {
		m.argv = append(m.argv, "--metrics_host=127.0.0.1")
	}
	m.argv = append(m.argv, flags...)
	m.Start()
	return m
}

// Start runs a master that was killed or stopped again, with the same ports and flags and an empty
// memory, and waits until it serves.
func (m *StoreMaster) Start() {
	m.t.Helper()
	cmd := exec.Command(m.argv[0], m.argv[1:]...)
	cmd.Env = slices.Clone(m.env)
	m.Process = StartCmd(m.t, cmd)
	if m.Wheel == nil {
		var ready struct {
			Ready  bool
			Master string
		}
		m.JSON(MasterReady, &ready)
		if !ready.Ready || ready.Master != m.Addr {
			m.t.Fatalf("first line of mooncake master: %+v, want it ready at %s\n%s", ready, m.Addr, m.Stderr())
		}
	}
	Eventually(m.t, MasterReady, func() error {
		select {
		case <-m.Exited():
			m.t.Fatalf("master ended: %v\n%s", m.Process.Wait(0), m.Stderr())
		default:
		}
		for _, addr := range []string{m.Addr, strings.TrimPrefix(m.Admin, "http://")} {
			c, err := net.DialTimeout("tcp", addr, time.Second)
			if err != nil {
				return err
			}
			c.Close()
		}
		return nil
	})
}

// Restart kills the master and starts an empty one in its place.
func (m *StoreMaster) Restart() {
	m.t.Helper()
	m.Kill()
	m.Start()
}

// Get reads a path of the admin server and returns the status and the body.
func (m *StoreMaster) Get(path string) (int, string, error) {
	c := http.Client{Timeout: 30 * time.Second}
	r, err := c.Get(m.Admin + path)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	body, err := readAll(r.Body)
	return r.StatusCode, body, err
}

// Metric returns the value of a metric without labels, or the sum over its labels, from /metrics.
func (m *StoreMaster) Metric(name string) (float64, error) {
	status, body, err := m.Get("/metrics")
	if err != nil {
		return 0, err
	}
	if status != http.StatusOK {
		return 0, fmt.Errorf("%s/metrics: status %d", m.Admin, status)
	}
	return sumMetric(body, name)
}
