package testenv

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Server is a metadata service that a test started: one process on 127.0.0.1 that can be stopped, started
// again on the same address with the same data directory, and signalled. Its methods belong to the test's
// goroutine.
type Server struct {
	// Addr is host:port for clients. It stays the same over restarts.
	Addr string
	// Dir is the data directory.
	Dir string

	t     testing.TB
	argv  []string
	ready func() error
	proc  *Process
	// metrics is where an etcd member serves /health and /metrics.
	metrics string
}

// Start starts a stopped server and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	s.launch()
	s.await()
}

func (s *Server) launch() {
	s.t.Helper()
	cmd := exec.Command(s.argv[0], s.argv[1:]...)
	cmd.Env = append(CleanEnv(), "LC_ALL=C")
	cmd.Dir = s.Dir
	s.proc = StartCmd(s.t, cmd)
}

func (s *Server) await() {
	s.t.Helper()
	Eventually(s.t, 60*time.Second, func() error {
		select {
		case <-s.proc.Exited():
			s.t.Fatalf("%s ended at start: %v\n%s", s.argv[0], s.proc.Cmd.ProcessState, s.Output())
		default:
		}
		return s.ready()
	})
}

// Stop kills the server, as a crash would. It does nothing if it is already down.
func (s *Server) Stop() {
	s.t.Helper()
	s.proc.Kill()
}

// Restart is Stop and Start.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.Start()
}

// Signal sends a signal. After SIGSTOP it waits until all threads of the server have stopped.
func (s *Server) Signal(sig syscall.Signal) {
	s.t.Helper()
	if sig == syscall.SIGSTOP {
		Freeze(s.t, s.proc.PID())
	} else if err := s.proc.Signal(sig); err != nil {
		s.t.Fatalf("signal %v to %s: %v", sig, s.argv[0], err)
	}
}

func stopped(pid int) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return err
	}
	for _, t := range threads {
		stat, err := os.ReadFile(t)
		if err != nil {
			continue // the thread has ended
		}
		_, after, _ := bytes.Cut(stat, []byte(") "))
		if !bytes.HasPrefix(after, []byte("T")) {
			return fmt.Errorf("a thread of process %d is in state %.1s", pid, after)
		}
	}
	return nil
}

// Output is the last part of what the server printed on standard error.
func (s *Server) Output() string { return s.proc.Stderr() }

// Etcd starts a single etcd with further command line arguments. Its timers are short, so that a lease of
// one second is possible.
func Etcd(t testing.TB, args ...string) *Server {
	t.Helper()
	return etcds(t, 1, append([]string{"--heartbeat-interval=50", "--election-timeout=500"}, args...))[0]
}

// EtcdCluster starts n etcd members with etcd's own default timers that form one cluster.
func EtcdCluster(t testing.TB, n int, args ...string) []*Server {
	t.Helper()
	return etcds(t, n, args)
}

func etcds(t testing.TB, n int, args []string) []*Server {
	t.Helper()
	bin, err := exec.LookPath("etcd")
	if err != nil {
		MustNotSkip(t, "etcd: %v (make setup installs it)", err)
	}
	scheme := "http"
	for _, a := range args {
		if strings.HasPrefix(a, "--cert-file") {
			scheme = "https"
		}
	}
	var initial []string
	servers := make([]*Server, n)
	for i := range servers {
		client, peer, metrics := localAddr(t), "http://"+localAddr(t), "http://"+localAddr(t)
		name := fmt.Sprintf("m%d", i)
		initial = append(initial, name+"="+peer)
		dir := t.TempDir()
		servers[i] = &Server{
			Addr: client, Dir: dir, t: t, metrics: metrics,
			argv: append([]string{
				bin, "--name=" + name, "--data-dir=" + filepath.Join(dir, "data"), "--log-level=error",
				"--listen-client-urls=" + scheme + "://" + client, "--advertise-client-urls=" + scheme + "://" + client,
				"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
				"--listen-metrics-urls=" + metrics, "--initial-cluster-state=new",
			}, args...),
			ready: func() error { return etcdHealthy(metrics) },
		}
	}
	for _, s := range servers {
		s.argv = append(s.argv, "--initial-cluster="+strings.Join(initial, ","))
		s.launch()
	}
	for _, s := range servers {
		s.await()
	}
	return servers
}

// Leader returns the member that leads the cluster, waiting for an election if needed. Members in except
// are not asked: a stopped one would answer nothing.
func Leader(t testing.TB, cluster []*Server, except ...*Server) *Server {
	t.Helper()
	var leader *Server
	Eventually(t, 30*time.Second, func() error {
		for _, s := range cluster {
			if slices.Contains(except, s) {
				continue
			}
			text, err := fetch(s.metrics + "/metrics")
			if err == nil && strings.Contains(text, "\netcd_server_is_leader 1") {
				leader = s
				return nil
			}
		}
		return fmt.Errorf("no etcd member says that it leads")
	})
	return leader
}

func etcdHealthy(base string) error {
	text, err := fetch(base + "/health")
	if err == nil && !strings.Contains(text, `"health":"true"`) {
		err = fmt.Errorf("etcd is not healthy: %s", text)
	}
	return err
}

func fetch(url string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	tr := &http.Transport{DisableKeepAlives: true} // nothing stays behind for leak checks
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// Redis starts a redis-server without persistence and with further command line arguments, for example
// "--requirepass", "x". With "--tls-port" among them (its value is replaced by the server's port) it speaks
// TLS only.
func Redis(t testing.TB, args ...string) *Server {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		MustNotSkip(t, "redis-server: %v (make setup installs it)", err)
	}
	addr := localAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	s := &Server{Addr: addr, Dir: t.TempDir(), t: t}
	plain := true
	for i := range args {
		if args[i] == "--tls-port" && i+1 < len(args) {
			args[i+1], plain = port, false
		}
	}
	if !plain {
		port = "0"
	}
	s.argv = append([]string{
		bin, "--bind", "127.0.0.1", "--port", port, "--dir", s.Dir, "--save", "", "--appendonly", "no", "--logfile", "",
	}, args...)
	s.ready = func() error { return redisReady(addr, plain) }
	s.Start()
	return s
}

// RedisSupports tells whether the redis-server here knows an option, for example "tls-port".
func RedisSupports(t testing.TB, option string) bool {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		MustNotSkip(t, "redis-server: %v (make setup installs it)", err)
	}
	// An unknown directive is an error at start; a bad value of a known one is another.
	cmd := exec.Command(bin, "--port", "0", "--"+option, "no-such-value")
	cmd.Dir = t.TempDir()
	out, _ := cmd.CombinedOutput()
	return !strings.Contains(string(out), "Bad directive")
}

func redisReady(addr string, plain bool) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil || !plain {
		if err == nil {
			conn.Close()
		}
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && !strings.HasPrefix(line, "+PONG") && !strings.HasPrefix(line, "-NOAUTH") {
		err = fmt.Errorf("redis-server answers %q", line)
	}
	return err
}

func localAddr(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", FreePort(t))
}
