package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/node"
)

// upDefaults are what "mooncake up" runs with when no file is named: configs/mooncake.json.
var upDefaults = map[string]string{
	"local_hostname":       "127.0.0.1",
	"metadata.type":        "memory",
	"metadata_http.listen": "127.0.0.1:8080",
	"protocol":             "tcp",
	"global_segment_size":  "256MB",
	"admin.listen":         "127.0.0.1:9004",
	"log.level":            "info",
}

// upMaster is what "mooncake up" adds where the configuration has no master.
var upMaster = map[string]string{"master.listen": "127.0.0.1:50051", "master.admin": "127.0.0.1:9003"}

func newUpCommand() *cobra.Command {
	var flags configFlags
	var hints bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a whole Store in one process: master, metadata, memory, admin",
		Long: `Run a Store in one process, until SIGTERM or Ctrl-C: a master on 127.0.0.1:50051 (its admin server on :9003), an HTTP
metadata server, a node that lends memory to it, and the node's admin server. Without --config everything is on
loopback, with 256 MB of memory. When it serves it prints one line of JSON on stdout:
{"ready":true,"segment":"127.0.0.1:15428",...,"master":"127.0.0.1:50051","mounted":true}. Logs go to stderr.

It is "mooncake node" with a section "master" in its configuration; other nodes join with master_server_address.`,
		Example: `  mooncake up
  echo hello | mooncake kv put greeting && mooncake kv get greeting
  mooncake up --set global_segment_size=4GB --set master.default_kv_lease_ttl=5s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			load := func() (*config.Loaded, error) { return loadUp(&flags) }
			l, err := load()
			if err != nil {
				return err
			}
			return node.Run(cmd.Context(), node.Options{
				Config: l, Reload: load, Stderr: cmd.ErrOrStderr(), Local: pluginEndpoints(),
				Ready: func(_ context.Context, s node.Status) {
					announceLine(cmd.OutOrStdout(), s)
					if hints || term.IsTerminal(int(os.Stdout.Fd())) {
						upHints(cmd.ErrOrStderr(), s)
					}
				},
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&hints, "hints", false, "also print what to try next on stderr, as at a terminal")
	return cmd
}

// loadUp reads the configuration and adds a master to one that has none. What the file, the environment or --set
// say goes before the defaults.
func loadUp(flags *configFlags) (*config.Loaded, error) {
	l, err := flags.load(nil)
	if err != nil {
		return nil, err
	}
	var add []config.Flag
	if cmp.Or(flags.path, os.Getenv(config.ConfigPathVar)) == "" {
		add = append(add, missing(l, upDefaults)...)
	}
	add = append(add, missing(l, upMaster)...)
	if len(add) == 0 {
		return l, nil
	}
	own, err := flags.layer()
	if err != nil {
		return nil, err
	}
	return config.Load(config.Options{Schema: node.Schema(), Path: flags.path, Environ: os.Environ(), Flags: append(add, own...)})
}

// missing are the defaults of keys that nobody has set.
func missing(l *config.Loaded, defaults map[string]string) []config.Flag {
	set := map[string]bool{}
	for _, v := range l.Effective() {
		set[v.Key] = v.Source != "default"
	}
	if set["metadata_server"] { // it says what metadata.type would say
		set["metadata.type"], set["metadata_http.listen"] = true, true
	}
	var out []config.Flag
	for key, value := range defaults {
		if !set[key] {
			out = append(out, config.Flag{Name: "mooncake up", Key: key, Value: value})
		}
	}
	return out
}

func upHints(w io.Writer, s node.Status) {
	fmt.Fprintf(w, `
The Store is ready.
  master    %s   (admin %s)
  memory    %s   (%s)
  metadata  %s
  admin     %s

From the command line:

  echo hello | mooncake kv put greeting && mooncake kv get greeting

With the unmodified wheel (pip install mooncake-transfer-engine-non-cuda), two lines of Python:

  from mooncake.store import MooncakeDistributedStore; s = MooncakeDistributedStore(); s.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", "%s")
  print(s.put("from-python", b"hello"), s.get("from-python"))

It prints 0 b'hello', and "mooncake kv get from-python" reads it back. Ctrl-C stops everything.
`, s.Master, orNone(s.MasterAdmin), s.Segment, s.Memory, s.MetadataText(), orNone(s.Admin), s.Master)
}
