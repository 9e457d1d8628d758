package external

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"

	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

// handshakeLine is the longest first line of a plugin: it holds a certificate.
const handshakeLine = 16 << 10

// process is one start of a program, as go-plugin's runner.Runner: it hears of the handshake line only. What the program
// writes otherwise goes to the journal.
type process struct {
	cfg        *Config
	journal    *journal
	generation uint64
	cert       []byte // PEM, for the plugin
	side       *sideSocket

	far     *os.File
	dir     string // of all plugins of this process
	sockets string // the only folder that the plugin may name
	env     []string

	mu             sync.Mutex // guards child and cancelled until Start has returned
	cancelled      bool
	child          *child
	stdout, stderr *os.File
	first          *io.PipeReader // go-plugin reads the handshake line here
	silence        *io.PipeReader // and this for the standard error, until the end
	readers        sync.WaitGroup
}

var _ runner.Runner = (*process)(nil)

// make is go-plugin's RunnerFunc.
func (p *process) make(_ hclog.Logger, spec *exec.Cmd, socketDir string) (runner.Runner, error) {
	p.sockets = socketDir
	p.env = append(environment(p.cfg.Env), spec.Env...)
	p.env = append(p.env, "PLUGIN_CLIENT_CERT="+string(p.cert), pluginv1.EnvSideFD+"=3")
	return p, nil
}

// environment is what the configuration says, and a search path.
func environment(entries []string) []string {
	out := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	for _, e := range entries {
		if !strings.Contains(e, "=") {
			v, ok := os.LookupEnv(e)
			if !ok {
				continue
			}
			e += "=" + v
		}
		out = append(out, e) // a later one of the same name wins in execve's users
	}
	return dedup(out)
}

// unset lists the variables that are to be passed on and that this process does not have.
func unset(entries []string) (names []string) {
	for _, e := range entries {
		if _, ok := os.LookupEnv(e); !ok && !strings.Contains(e, "=") {
			names = append(names, e)
		}
	}
	return names
}

// dedup keeps the last entry of each name.
func dedup(env []string) []string {
	at := map[string]int{}
	var out []string
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if i, ok := at[name]; ok {
			out[i] = e
			continue
		}
		at[name] = len(out)
		out = append(out, e)
	}
	return out
}

// Start implements runner.Runner.
func (p *process) Start(context.Context) error {
	prog, err := openProgram(p.cfg)
	if err != nil {
		return err
	}
	defer prog.close()
	defer p.far.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	stdout, outW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer outW.Close()
	stderr, errW, err := os.Pipe()
	if err != nil {
		stdout.Close()
		return err
	}
	defer errW.Close()
	files := append([]*os.File{null, outW, errW, p.far}, prog.files...)
	p.mu.Lock()
	if p.cancelled {
		err = context.DeadlineExceeded
	} else {
		p.child, err = startChild(prog.argv, p.env, files, uint64(p.cfg.MemoryLimit), p.cfg.FileLimit)
	}
	p.mu.Unlock()
	if err != nil {
		stdout.Close()
		stderr.Close()
		return fmt.Errorf("command: start %s: %w: %w", p.cfg.Command[0], err, ErrRefused)
	}
	p.stdout, p.stderr = stdout, stderr
	p.read()
	return nil
}

// lastWords is how long the outputs of a dead program are read, if somebody else still holds them open.
const lastWords = 500 * time.Millisecond

// read follows both outputs until the program is dead.
func (p *process) read() {
	ctx, cancel := context.WithCancel(context.Background())
	first, firstW := io.Pipe()
	silence, silenceW := io.Pipe()
	p.first, p.silence = first, silence
	p.readers.Go(func() {
		defer silenceW.Close()
		p.journal.follow(ctx, p.generation, p.stderr)
	})
	p.readers.Go(func() {
		line := firstLine(p.stdout)
		_, _ = firstW.Write(line) // go-plugin reads it or has given up
		firstW.Close()
		p.journal.follow(ctx, p.generation, p.stdout)
	})
	p.readers.Go(func() {
		<-p.child.dead
		cancel() // what is left in the pipes is read at once
		end := time.Now().Add(lastWords)
		_ = p.stdout.SetReadDeadline(end)
		_ = p.stderr.SetReadDeadline(end)
	})
}

// firstLine reads a line byte by byte, so that the rest stays in the pipe.
func firstLine(r io.Reader) (line []byte) {
	for b := make([]byte, 1); len(line) < handshakeLine; {
		if _, err := r.Read(b); err != nil {
			break
		}
		line = append(line, b[0])
		if b[0] == '\n' {
			break
		}
	}
	return line
}

// Wait implements runner.Runner.
func (p *process) Wait(ctx context.Context) error {
	select {
	case <-p.child.dead:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.readers.Wait()
	p.stdout.Close()
	p.stderr.Close()
	return nil
}

// Kill implements runner.Runner.
func (p *process) Kill(context.Context) error {
	if p.child != nil {
		p.child.kill()
		<-p.child.dead
	}
	return nil
}

// Diagnose implements runner.Runner. What a program that fails at once has written is in the journal.
func (p *process) Diagnose(context.Context) string { return "" }

// Stdout implements runner.Runner.
func (p *process) Stdout() io.ReadCloser { return p.first }

// Stderr implements runner.Runner.
func (p *process) Stderr() io.ReadCloser { return p.silence }

// Name implements runner.Runner.
func (p *process) Name() string { return p.cfg.Command[0] }

// ID implements runner.Runner.
func (p *process) ID() string {
	if p.child == nil {
		return ""
	}
	return strconv.Itoa(p.child.proc.Pid)
}

// PluginToHost implements runner.Runner: a plugin listens in its own folder and nowhere else.
func (p *process) PluginToHost(network, addr string) (string, string, error) {
	if network != "unix" || filepath.Dir(addr) != p.sockets {
		return "", "", fmt.Errorf("the plugin listens on %s %s; a unix socket in PLUGIN_UNIX_SOCKET_DIR is wanted: %w", clean(network, 20), clean(addr, 200), ErrRefused)
	}
	return network, addr, nil
}

// HostToPlugin implements runner.Runner.
func (p *process) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}

var _ plugin.GRPCPlugin = kindPlugin{}
