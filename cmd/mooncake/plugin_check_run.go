package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/plugins/external"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

// pluginCheck is what is to be checked.
type pluginCheck struct {
	config   external.Config
	only     *regexp.Regexp // names of the contract's checks
	progress io.Writer      // what is being done
	log      *pluginLog
}

// run checks the plugin. An error is about the check itself, not about the plugin.
func (o *pluginCheck) run(ctx context.Context) (*pluginReport, error) {
	r := &pluginReport{}
	defer r.conclude()
	if err := o.resolve(); err != nil {
		return nil, err
	}
	r.Command, r.env, r.config = o.config.Command, o.config.Env, o.config.Config
	dir, err := os.MkdirTemp("", "mooncake-plugin-check")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	o.config.RunDir = filepath.Join(dir, "run")
	if r.SHA256, err = digests(o.config.Command); err != nil {
		return nil, err
	}
	o.config.SHA256 = r.SHA256
	o.log = &pluginLog{}

	o.say("start")
	begin := time.Now()
	g, err := external.Open(ctx, pluginv1.Kind_KIND_UNSPECIFIED, o.config, o.env())
	switch {
	case ctx.Err() != nil:
		return nil, errStopped
	case err != nil:
		r.add(levelFail, "program", "%v%s", err, o.log.lines())
		return r, nil
	}
	i := g.Info()
	r.Kind, r.Name, r.Version, r.Features = strings.ToLower(strings.TrimPrefix(i.Kind.String(), "KIND_")), i.Name, i.Version, i.Features
	r.StartMillis = millis(time.Since(begin))
	can := "no optional feature"
	if len(i.Features) > 0 {
		can = "features " + strings.Join(i.Features, ", ")
	}
	r.add(levelOK, "program", "%s %s, %s with %s; started and ended in %.0f ms", i.Name, i.Version, kindInWords[r.Kind], can, r.StartMillis)
	if !o.life(ctx, r, g) {
		return r, nil
	}
	switch i.Kind {
	case pluginv1.Kind_KIND_METADATA:
		err = o.metadata(ctx, r)
	case pluginv1.Kind_KIND_EVICTION:
		err = o.eviction(ctx, r)
	case pluginv1.Kind_KIND_TRANSPORT:
		err = o.transport(ctx, r)
	}
	if text := o.log.lines(); text != "" && slices.ContainsFunc(r.Findings, func(f policyFinding) bool { return f.Level == levelFail }) {
		r.add(levelNote, "log", "the last that the plugin wrote:%s", text)
	}
	return r, err
}

// life takes one process through its states: configured, killed and back, asked to end.
func (o *pluginCheck) life(ctx context.Context, r *pluginReport, g *external.Program) bool {
	p := g.Plugin()
	defer p.Stop()
	limited, cancel := context.WithTimeout(ctx, o.config.StartTimeout+time.Second)
	defer cancel()
	err := p.Run(limited, nil)
	if err != nil {
		if s := p.Status(); s.LastError != "" && !strings.Contains(err.Error(), s.LastError) {
			err = fmt.Errorf("%w: %s", err, s.LastError)
		}
		r.add(levelFail, "config", "%v%s", err, o.log.lines())
		return false
	}
	settings, err := json.Marshal(o.config.Config)
	if err != nil {
		settings = []byte(err.Error())
	}
	r.add(levelOK, "config", "it takes %s", settings)
	o.call(ctx, r, p)
	return o.restart(ctx, r, p) && o.end(r, p)
}

// call measures Info, which costs a plugin nothing: what is left is the way there and back.
func (o *pluginCheck) call(ctx context.Context, r *pluginReport, p *external.Plugin) {
	proc, err := p.Process(ctx)
	if err != nil {
		r.add(levelFail, "speed", "%v", err)
		return
	}
	base := pluginv1.NewBaseServiceClient(proc.Conn())
	const calls = 500
	took := make([]time.Duration, calls)
	for i := range took {
		begin := time.Now()
		if _, err := base.Info(ctx, &pluginv1.InfoRequest{}); err != nil {
			r.add(levelFail, "speed", "Info: %v", err)
			return
		}
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	r.CallMicros = float64(took[calls/2].Microseconds())
	r.add(levelOK, "speed", "a call takes %.0f µs in the middle, %d µs in 99 of 100", r.CallMicros, took[calls*99/100].Microseconds())
}

// restart kills the process and waits for the next one.
func (o *pluginCheck) restart(ctx context.Context, r *pluginReport, p *external.Plugin) bool {
	o.say("restart")
	before := p.Status()
	begin := time.Now()
	if err := unix.Kill(before.PID, unix.SIGKILL); err != nil {
		r.add(levelFail, "restart", "its process %d cannot be killed: %v", before.PID, err)
		return false
	}
	for limit := begin.Add(o.config.StartTimeout + 10*time.Second); time.Now().Before(limit) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		if s := p.Status(); s.Generation > before.Generation && s.State == external.StateReady {
			r.RestartMillis = millis(time.Since(begin))
			r.add(levelOK, "restart", "after SIGKILL it is back in %.0f ms, a second of which is the node's pause", r.RestartMillis)
			return true
		}
	}
	r.add(levelFail, "restart", "after SIGKILL it does not come back: %s", p.Status().LastError)
	return false
}

// end asks the process to end, and looks whether it had to be killed.
func (o *pluginCheck) end(r *pluginReport, p *external.Plugin) bool {
	begin := time.Now()
	_ = p.Stop()
	took := time.Since(begin)
	r.EndMillis = millis(took)
	if took >= o.config.Grace {
		r.add(levelNote, "end", "it did not end within %v of Shutdown and was killed: each stop of a node waits so long", o.config.Grace)
		return true
	}
	r.add(levelOK, "end", "it ends within %.0f ms of Shutdown", r.EndMillis)
	return true
}

// resolve makes the command's files absolute, as a configuration has them.
func (o *pluginCheck) resolve() error {
	cmd := slices.Clone(o.config.Command)
	path, err := exec.LookPath(cmd[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return err
	}
	cmd[0] = path
	for i, arg := range cmd {
		if st, err := os.Stat(arg); err == nil && st.Mode().IsRegular() {
			if cmd[i], err = filepath.Abs(arg); err != nil {
				return err
			}
		}
	}
	o.config.Command = cmd
	return o.config.Validate()
}

// digests are those of the program and of arguments that are files.
func digests(command []string) (map[string]string, error) {
	sums := map[string]string{}
	for _, name := range command {
		if st, err := os.Stat(name); err != nil || !st.Mode().IsRegular() || !filepath.IsAbs(name) {
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return nil, err
		}
		sums[name] = hex.EncodeToString(h.Sum(nil))
	}
	return sums, nil
}

// section is what the configuration of a node would say.
func (r *pluginReport) section() (string, error) {
	type section struct {
		Type    string            `json:"type"`
		Command []string          `json:"command"`
		SHA256  map[string]string `json:"sha256"`
		Env     []string          `json:"env,omitempty"`
		Config  map[string]any    `json:"config,omitempty"`
	}
	s := section{"external", r.Command, r.SHA256, r.env, r.config}
	var in any
	switch r.Kind {
	case "metadata":
		in = map[string]any{"metadata": s}
	case "eviction":
		in = map[string]any{"eviction": map[string]any{"*": s}}
	default:
		in = map[string]any{"transports": map[string]any{r.Name: s}}
	}
	b, err := json.MarshalIndent(in, "  ", "  ")
	return "  " + string(b), err
}

func (o *pluginCheck) env() module.Env {
	return module.Env{Name: "check", Log: slog.New(o.log), Metrics: prometheus.NewRegistry()}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// pluginLog keeps the last records that came from the plugin's processes.
type pluginLog struct {
	mu   sync.Mutex
	kept []string
}

const keptPluginLines = 15

// Enabled implements slog.Handler.
func (l *pluginLog) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler. Records with a generation are the plugin's own.
func (l *pluginLog) Handle(_ context.Context, r slog.Record) error {
	theirs := false
	r.Attrs(func(a slog.Attr) bool {
		theirs = a.Key == "generation"
		return !theirs
	})
	if !theirs || r.Message == "plugin is ready" {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept = append(l.kept, r.Message); len(l.kept) > keptPluginLines {
		l.kept = l.kept[1:]
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (l *pluginLog) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup implements slog.Handler.
func (l *pluginLog) WithGroup(string) slog.Handler { return l }

// lines are the records, each on a line of its own, and forgets them.
func (l *pluginLog) lines() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.kept) == 0 {
		return ""
	}
	text := "\n" + strings.Join(l.kept, "\n")
	l.kept = nil
	return text
}
