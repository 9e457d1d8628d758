package external

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

// Program is a plugin's program that was accepted: files, digests, handshake, version, kind. It holds no process. All
// methods may be called concurrently.
type Program struct {
	cfg     Config
	kind    pluginv1.Kind
	name    string
	log     *slog.Logger
	metrics *metrics
	journal *journal
	info    *pluginv1.InfoResponse
}

// Open accepts a program: it checks the files and runs the program once, up to Info, for at most start_timeout. c must be
// valid. KIND_UNSPECIFIED takes any kind. An error that wraps [ErrRefused] will not go away by itself.
func Open(ctx context.Context, kind pluginv1.Kind, c Config, env module.Env) (*Program, error) {
	m, err := newMetrics(env.Metrics, kindName(kind), env.Name)
	if err != nil {
		return nil, err
	}
	log := env.Log.With("plugin", env.Name, "kind", kindName(kind))
	g := &Program{cfg: c, kind: kind, name: env.Name, log: log, metrics: m, journal: newJournal(log, m.silent)}
	if len(c.SHA256) == 0 {
		log.Warn("plugin has no digests (sha256): whoever may write to its files decides what the node runs", "command", c.Command[0])
	}
	if unset := unset(c.Env); len(unset) > 0 {
		log.Warn("plugin does not get variables that env passes on, because the node has none of that name", "names", unset)
	}
	ctx, cancel := context.WithTimeout(ctx, c.StartTimeout)
	defer cancel()
	p, err := g.startProcess(ctx, 0)
	if err != nil {
		return nil, err
	}
	g.info = p.info
	p.shutdown(ctx, c.Grace)
	p.destroy()
	return g, nil
}

// Info is what the program said of itself. It must not be changed.
func (g *Program) Info() *pluginv1.InfoResponse { return g.info }

// Has tells whether the program announced a feature.
func (g *Program) Has(feature string) bool { return slices.Contains(g.info.Features, feature) }

// Config is the section.
func (g *Program) Config() Config { return g.cfg }

// Log is where adapters log, with the plugin's name.
func (g *Program) Log() *slog.Logger { return g.log }

// Plugin keeps one process of a program running. All methods may be called concurrently.
type Plugin struct {
	program *Program
	sup     *supervisor[*Process]
	join    func(context.Context, *Process) error

	mu      sync.Mutex
	cancel  context.CancelFunc // nil before the start
	done    chan struct{}
	stopped bool
}

// Plugin returns a plugin that is not started.
func (g *Program) Plugin() *Plugin {
	p := &Plugin{program: g, done: make(chan struct{})}
	p.sup = newSupervisor(g.log, g.metrics, &g.cfg, p.launch)
	return p
}

// Program is what it runs.
func (p *Plugin) Program() *Program { return p.program }

// launch takes a new process through all states: started, known, configured, joined.
func (p *Plugin) launch(ctx context.Context, generation uint64) (*Process, error) {
	proc, err := p.program.startProcess(ctx, generation)
	if err != nil {
		return nil, err
	}
	err = func() error {
		if !slices.Equal(proc.info.Features, p.program.info.Features) {
			return fmt.Errorf("its features are %q, they were %q: a program that was replaced needs a restart of the node: %w", proc.info.Features, p.program.info.Features, ErrRefused)
		}
		if err := proc.configure(ctx, p.program); err != nil {
			return err
		}
		if p.join != nil {
			return p.join(ctx, proc)
		}
		return nil
	}()
	if err != nil {
		if f := proc.reasonNow(); f != nil {
			err = errors.Join(err, f)
		}
		proc.destroy()
		return nil, err
	}
	return proc, nil
}

// Start begins to run the plugin and does not wait. join, if it is not nil, is called for each new process after
// Configure and makes it ready: memory, the kind's own start. When it returns an error the process has failed to start.
// ctx of join ends with the time for a start.
func (p *Plugin) Start(join func(context.Context, *Process) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return fmt.Errorf("stopped: %w", ErrUnavailable)
	}
	if p.cancel != nil {
		return errors.New("external: a plugin was started twice")
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.join = cancel, join
	table.add(p)
	go func() {
		defer close(p.done)
		p.sup.run(ctx)
		table.remove(p)
	}()
	return nil
}

// Run is Start, and waits for the first process to be ready. It returns ctx's error when that takes longer, and then the
// plugin is still being started. Any other error is for good: the plugin refused its configuration or was stopped.
func (p *Plugin) Run(ctx context.Context, join func(context.Context, *Process) error) error {
	if err := p.Start(join); err != nil {
		return err
	}
	return p.sup.ready(ctx)
}

// Process returns the ready process. While there is none the answer is [ErrUnavailable], at once; only the very first
// start is waited for, until ctx ends. The process may end at any time: calls on it then fail, and [Process.Dead] is
// closed. What goes wrong with a process is to be reported to it by [Process.Fault], so that it counts once.
func (p *Plugin) Process(ctx context.Context) (*Process, error) { return p.sup.current(ctx) }

// Restart ends the process, with its time to finish, and starts a new one; failures before it are forgotten.
func (p *Plugin) Restart() {
	select {
	case p.sup.restart <- struct{}{}:
	default: // one is asked for already
	}
}

// Stop lets the process finish, kills it after grace, and returns when it is dead. Calls answer ErrUnavailable from now
// on. It may be called before Start, and again.
func (p *Plugin) Stop() error {
	p.mu.Lock()
	started, cancel := p.cancel != nil, p.cancel
	p.stopped = true
	p.mu.Unlock()
	if started {
		cancel()
		<-p.done
	}
	return nil
}

// Status describes a plugin for people.
type Status struct {
	Kind        string    `json:"kind"`
	Name        string    `json:"name"` // of the config section
	Program     string    `json:"program"`
	Plugin      string    `json:"plugin"` // what it calls itself
	Version     string    `json:"version"`
	Features    []string  `json:"features"`
	State       State     `json:"state"`
	Since       time.Time `json:"since"`
	Generation  uint64    `json:"generation"`
	PID         int       `json:"pid,omitempty"`
	RetryAt     time.Time `json:"retry_at,omitzero"`
	Problem     string    `json:"problem,omitempty"`    // what the plugin says it lacks
	LastError   string    `json:"last_error,omitempty"` // since an operator has restarted it
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
}

// Status returns the plugin's state.
func (p *Plugin) Status() Status {
	g, s := p.program, p.sup
	out := Status{
		Kind: kindName(g.kind), Name: g.name, Program: g.cfg.Command[0], Plugin: g.info.GetName(), Version: g.info.GetVersion(),
		Features: g.info.GetFeatures(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out.State, out.Since, out.Generation, out.Problem = s.state, s.since, s.gen, s.problem
	if s.state == StateReady {
		out.PID = s.cur.PID()
	}
	if s.state == StateBackoff || s.state == StateTripped {
		out.RetryAt = s.retryAt
	}
	if s.last != nil {
		out.LastError, out.LastErrorAt = clean(s.last.Error(), 1000), s.lastAt
	}
	return out
}

// Logs returns the last n lines that the plugin's processes wrote, oldest first.
func (p *Plugin) Logs(n int) []Line { return p.program.journal.last(n) }

// table holds the plugins of this process that are running.
var table plugins

type plugins struct {
	mu  sync.Mutex
	all []*Plugin
}

func (t *plugins) add(p *Plugin) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, p)
}

func (t *plugins) remove(p *Plugin) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = slices.DeleteFunc(t.all, func(o *Plugin) bool { return o == p })
}

// Running returns the plugins of this process that were started and not stopped, by kind and name.
func Running() []*Plugin {
	table.mu.Lock()
	out := slices.Clone(table.all)
	table.mu.Unlock()
	slices.SortStableFunc(out, func(a, b *Plugin) int {
		return cmp.Or(cmp.Compare(a.program.kind, b.program.kind), cmp.Compare(a.program.name, b.program.name))
	})
	return out
}
