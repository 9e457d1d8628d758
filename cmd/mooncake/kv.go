package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/node"
	"github.com/mooncake-agent/mooncake/core/units"
)

func newKVCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "Put, read and remove objects of a Store",
		Long: `Put, read and remove objects of a Store, upstream's or our own.

The master is --master, else master_server_address of the configuration, else 127.0.0.1:50051. Without --config
only the environment counts (MOONCAKE_CONFIG_PATH, MOONCAKE_MASTER, ...).

Exit codes: 0 done, 1 failed, 3 not found, 4 exists already, 5 no space, 6 in use by readers, 7 master unavailable.`,
		Example: `  echo hello | mooncake kv put greeting
  mooncake kv get greeting
  mooncake kv put model /data/model.bin --replicas 2 --hard-pin
  mooncake kv ls 'layer-'  --master 10.0.0.1:50051`,
	}
	cmd.AddCommand(newKVPutCommand(), newKVGetCommand(), newKVExistsCommand(), newKVListCommand(), newKVRemoveCommand(), newKVStatCommand())
	return cmd
}

// kvFlags are those of every kv command.
type kvFlags struct {
	configFlags
	master   string
	metadata string
	tenant   string
	verbose  bool
	json     bool
	lend     units.Size // memory for the Store; no flag of most commands
}

func (f *kvFlags) add(cmd *cobra.Command) {
	f.configFlags.add(cmd)
	cmd.Flags().StringVar(&f.master, "master", "", "host:port of the master, several with commas between them, or etcd://... where masters elect one")
	cmd.Flags().StringVar(&f.metadata, "metadata", "", "metadata service of the segments, as metadata_server in mooncake.json (default P2PHANDSHAKE)")
	cmd.Flags().StringVar(&f.tenant, "tenant", "", "tenant of the objects")
	cmd.Flags().BoolVar(&f.verbose, "verbose", false, "show the log")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
}

// run connects, calls do and turns its error into an exit code.
func (f *kvFlags) run(cmd *cobra.Command, do func(ctx context.Context, c *client.Client) error) error {
	log := slog.New(slog.DiscardHandler)
	if f.verbose {
		log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	}
	err := f.connect(cmd.Context(), log, do)
	if err == nil {
		return nil
	}
	var quiet *exitError
	if errors.As(err, &quiet) {
		return quiet
	}
	if code := kvExitCode(err); code != 1 {
		fmt.Fprintln(cmd.ErrOrStderr(), "mooncake:", err)
		return &exitError{code}
	}
	return err
}

func (f *kvFlags) connect(ctx context.Context, log *slog.Logger, do func(ctx context.Context, c *client.Client) error) (err error) {
	flags, err := f.layer()
	if err != nil {
		return err
	}
	if f.metadata != "" {
		flags = append(flags, config.Flag{Name: "metadata", Key: "metadata_server", Value: f.metadata})
	}
	l, err := config.Load(config.Options{Schema: node.Schema(), Path: f.path, Environ: os.Environ(), Flags: flags})
	if err != nil {
		return err
	}
	c, err := node.Connect(ctx, l, node.ConnectOptions{Master: f.master, Tenant: f.tenant, Lend: f.lend, Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return do(ctx, c.Client)
}

// kvExitCode is what the manual says.
func kvExitCode(err error) int {
	switch {
	case errors.Is(err, client.ErrNotFound):
		return 3
	case errors.Is(err, client.ErrExists):
		return 4
	case errors.Is(err, client.ErrNoSpace):
		return 5
	case errors.Is(err, client.ErrLeased), errors.Is(err, client.ErrBusy):
		return 6
	case errors.Is(err, client.ErrUnavailable):
		return 7
	}
	return 1
}

// barFrom is the size from which on a progress bar is worth its line.
const barFrom = 16 << 20

// kvBar shows progress on stderr if that is a terminal; else it is nil, and all its methods do nothing.
type kvBar struct{ bar *progressbar.ProgressBar }

func newKVBar(cmd *cobra.Command, total int64, what string) *kvBar {
	f, ok := cmd.ErrOrStderr().(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || total >= 0 && total < barFrom {
		return nil
	}
	return &kvBar{progressbar.NewOptions64(total, progressbar.OptionSetWriter(f), progressbar.OptionShowBytes(true),
		progressbar.OptionSetWidth(24), progressbar.OptionSetDescription(what), progressbar.OptionClearOnFinish())}
}

func (b *kvBar) set(n int64) {
	if b != nil {
		_ = b.bar.Set64(n)
	}
}

func (b *kvBar) add(n int) {
	if b != nil {
		_ = b.bar.Add(n)
	}
}

func (b *kvBar) finish() {
	if b != nil {
		_ = b.bar.Clear()
	}
}

// counted is a writer whose bytes show on a bar.
type counted struct {
	w   io.Writer
	bar *kvBar
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.bar.add(n)
	return n, err
}
