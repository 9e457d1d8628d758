package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mooncake-agent/mooncake/core/master/flags"
	"github.com/mooncake-agent/mooncake/core/master/policies"
	"github.com/mooncake-agent/mooncake/core/master/record"
	"github.com/mooncake-agent/mooncake/core/master/serve"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/telemetry"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/plugins/external"
)

// masterName is upstream's program: a link of this name to this binary is "mooncake master".
const masterName = "mooncake_master"

// programArgs are the arguments after the program's name, as if it had been called mooncake.
func programArgs(argv []string) []string {
	if len(argv) > 0 && filepath.Base(argv[0]) == masterName {
		return append([]string{"master"}, argv[1:]...)
	}
	if len(argv) == 0 {
		return nil
	}
	return argv[1:]
}

func newMasterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "master [flags]",
		Short: "Run a Store master, in place of mooncake_master",
		Long: `Run the master of the object store until SIGTERM or Ctrl-C. It takes the flags and the config file of
mooncake_master 0.3.13 and serves unmodified clients of 0.3.8 to 0.3.13 on one port at the same time; clients of
0.3.7 need a port of their own: --rpc_compat=0.3.7:50057.

When it serves it prints one line of JSON on stdout:
{"ready":true,"master":"127.0.0.1:50051","admin":"http://127.0.0.1:9003"}. Logs go to stderr.

Flags may be written --name=value, --name value, with one dash, with dashes instead of underscores, and --noname for
switches. SIGHUP reads the config file again and applies log_level, eviction_policy and eviction_module_dir.`,
		Example: `  mooncake master --port 50051
  mooncake master --config_path=/etc/mooncake/master.yaml --rpc_compat=0.3.7:50057
  curl http://127.0.0.1:9003/metrics`,
		DisableFlagParsing: true, // gflags' forms, see package flags
		RunE: func(cmd *cobra.Command, args []string) error {
			return runMaster(cmd, args)
		},
	}
	addMasterFlags(cmd.Flags())
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) { masterHelp(cmd.OutOrStdout(), cmd) })
	return cmd
}

// addMasterFlags lists the flags for completion and the reference page; they are parsed by package flags.
func addMasterFlags(fs *pflag.FlagSet) {
	for _, f := range flags.All() {
		if f.Group == flags.Logging {
			continue
		}
		fs.Var(&shownFlag{def: f.Default, typ: f.Type}, f.Name, f.Doc+inertNote(f))
		if f.IsBool() {
			fs.Lookup(f.Name).NoOptDefVal = "true"
		}
	}
}

func inertNote(f flags.Flag) string {
	switch {
	case f.Off != "":
		return " (not in this version: refused when on)"
	case f.Group == flags.Inert:
		return " (not in this version: no effect)"
	}
	return ""
}

// shownFlag is a flag that is only shown.
type shownFlag struct{ def, typ string }

func (s *shownFlag) String() string     { return s.def }
func (s *shownFlag) Set(v string) error { s.def = v; return nil }
func (s *shownFlag) Type() string       { return s.typ }

func masterHelp(w io.Writer, cmd *cobra.Command) {
	fmt.Fprintf(w, "%s\n\nUsage:\n  %s\n\nExamples:\n%s\n", cmd.Long, cmd.UseLine(), cmd.Example)
	group := flags.Group("")
	for _, f := range flags.All() {
		if f.Group != group {
			group = f.Group
			fmt.Fprintf(w, "\n%s:\n", group)
		}
		def := ""
		if f.Default != "" {
			def = " (default " + f.Default + ")"
		}
		note := ""
		if f.Off != "" {
			note = "; refused when on"
		}
		alias := ""
		if f.Alias != "" {
			alias = ", --" + f.Alias
		}
		fmt.Fprintf(w, "  --%s%s %s%s\n      %s%s\n", f.Name, alias, f.Type, def, f.Doc, note)
	}
}

func runMaster(cmd *cobra.Command, args []string) error {
	line, err := flags.Parse(args)
	if err != nil {
		return err
	}
	switch {
	case line.Help:
		return cmd.Help()
	case line.Version:
		v := telemetry.BuildVersion()
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s version %s (git: %s)\n", masterName, v.Version, v.Commit)
		return err
	}
	conf, err := flags.Load(line, os.Getenv)
	if err != nil {
		return err
	}
	logging, err := telemetry.NewLogging(conf.Settings.Log, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer logging.Close()
	log := logging.Logger()
	for _, w := range conf.Warnings {
		log.Warn("configuration: " + w)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(conf.Settings.GCPercent)
	}
	version := telemetry.BuildVersion()
	s, err := newMaster(cmd.Context(), &conf.Settings, log, telemetry.NewRegistry(version), version)
	if err != nil {
		return err
	}
	startCtx, cancel := context.WithTimeout(cmd.Context(), masterStart)
	defer cancel()
	if err := s.Start(startCtx); err != nil {
		return errors.Join(err, s.Close(cmd.Context()))
	}
	err = announceMaster(cmd.OutOrStdout(), s)
	if err == nil {
		waitMaster(cmd.Context(), s, line, conf, logging)
	}
	log.Info("master: stopping")
	stopCtx, cancelStop := context.WithTimeout(context.WithoutCancel(cmd.Context()), masterStop)
	defer cancelStop()
	return errors.Join(err, s.Close(stopCtx))
}

const (
	masterStart = time.Minute
	masterStop  = 15 * time.Second
)

// newMaster composes the master of a command line.
func newMaster(ctx context.Context, f *flags.Settings, log *slog.Logger, reg *telemetry.Registry, version telemetry.Version) (*serve.Server, error) {
	o := serve.Options{Local: map[string]http.Handler{}, Master: f.Master, Log: log, Metrics: reg, Version: version, Probe: handshake.Probe, Config: serve.Config{
		RPC: f.RPC, Listen: serve.Listener{Key: f.PortKey, Addr: f.RPCListen()}, Admin: serve.Listener{Key: "metrics_port", Addr: f.AdminListen()},
		Metadata:  serve.Listener{Key: "http_metadata_server_port", Addr: f.MetadataListen()},
		QuotaFile: f.QuotaFile,
	}}
	for _, r := range external.Routes() {
		o.Local[r.Pattern] = r.Handler
	}
	for _, c := range f.Compat {
		o.Config.Compat = append(o.Config.Compat, serve.Compat{Version: c.Version, Listener: serve.Listener{Key: "rpc_compat", Addr: c.Listen(f.Address)}})
	}
	if f.Reporting {
		o.Config.Report = flags.ReportInterval
	}
	if f.MetadataServer {
		b, err := metadata.Kind.Build(ctx, "memory", module.Env{Name: "memory", Log: log, Metrics: reg}, module.NoConfig{})
		if err != nil {
			return nil, fmt.Errorf("enable_http_metadata_server: %w", err)
		}
		o.Metadata = b
	}
	var err error
	if o.Policies, err = policies.BuildAll(ctx, policies.WithDefault(f.Policies), module.Env{Log: log, Metrics: reg}); err != nil {
		return nil, fmt.Errorf("eviction_policy: %w", err)
	}
	o.Config.Record = record.Options{Dir: f.RecordDir, PartBytes: uint64(f.PartBytes), Parts: f.Parts, Source: "mooncake " + version.Version}
	o.Config.RecordFile, o.Config.ModuleDir = f.Record, f.ModuleDir
	return serve.New(o)
}

// masterReady is the line for programs.
type masterReady struct {
	Ready    bool     `json:"ready"`
	Master   string   `json:"master"`
	Admin    string   `json:"admin,omitempty"`
	Compat   []string `json:"compat,omitempty"`
	Metadata string   `json:"metadata_http,omitempty"`
}

func announceMaster(w io.Writer, s *serve.Server) error {
	line, err := json.Marshal(masterReady{Ready: true, Master: s.Addr(), Admin: s.AdminURL(), Compat: s.CompatAddrs(), Metadata: s.MetadataURL()})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", line)
	return err
}

// waitMaster waits for the end and reloads after SIGHUP.
func waitMaster(ctx context.Context, s *serve.Server, line *flags.Line, conf *flags.Result, logging *telemetry.Logging) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			reloadMaster(ctx, s, line, conf, logging)
		}
	}
}

// reloadMaster reads the configuration again. The log level and the eviction policies can change in a running
// master. A policy that was set by hand stays as long as the file says about it what it said before.
func reloadMaster(ctx context.Context, s *serve.Server, line *flags.Line, conf *flags.Result, logging *telemetry.Logging) {
	log := logging.Logger()
	next, err := flags.Load(line, os.Getenv)
	if err != nil {
		log.Error("SIGHUP: the configuration is not usable, nothing was changed", "error", err)
		return
	}
	if err := logging.SetLevel(next.Settings.Log.Level); err != nil {
		log.Error("SIGHUP: log_level", "error", err)
		return
	}
	domains, err := s.Policies().Reload(ctx, policies.WithDefault(conf.Settings.Policies), policies.WithDefault(next.Settings.Policies))
	if err != nil {
		log.Error("SIGHUP: eviction_policy", "error", err)
	} else {
		conf.Settings.Policies = next.Settings.Policies
	}
	s.Policies().SetModuleDir(next.Settings.ModuleDir)
	conf.Settings.ModuleDir = next.Settings.ModuleDir
	if len(domains) > 0 {
		log.Info("SIGHUP: eviction policies changed", "domains", strings.Join(domains, ", "))
	}
	changed := flags.Changed(&conf.Settings, &next.Settings)
	if len(changed) > 0 {
		log.Warn("SIGHUP: these need a restart", "flags", strings.Join(changed, ", "))
	}
	log.Info("SIGHUP: configuration read again", "log_level", logging.Level())
}
