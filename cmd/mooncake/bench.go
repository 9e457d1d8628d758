package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mooncake-agent/mooncake/core/bench"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/metadata"
)

func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "bench", Short: "Measure the Transfer Engine or a Store master"}
	cmd.AddCommand(newBenchTransferCommand(), newBenchStoreCommand(), newBenchKVCommand(), newBenchTargetCommand())
	return cmd
}

func newBenchTransferCommand() *cobra.Command {
	o := bench.Options{Op: "read", Batch: 32, Threads: 1, Duration: 10 * time.Second}
	e := bench.Endpoint{Transport: "tcp", Metadata: metadata.P2P}
	block := 64 * units.KiB
	var target string
	var asJSON, verbose bool
	cmd := &cobra.Command{
		Use:   "transfer",
		Short: "Throughput, latency and CPU cost of the Transfer Engine",
		Long: `Moves blocks between this process and a target and prints throughput, latency and CPU cost.

Without --target it starts its own target in a second process on loopback. With --target NAME it uses a
running engine, ours or the Mooncake wheel's: --op write and --verify then OVERWRITE memory of that
engine. Each thread keeps one batch in flight. Ctrl-C stops early and still prints the result.
GB is 10^9 bytes; latency is that of one batch.`,
		Example: `  mooncake bench transfer
  mooncake bench transfer --op write --block 1MB --batch 8 --threads 4 --duration 5s
  mooncake bench transfer --transport shm --block 16MB --batch 1
  mooncake bench transfer --target 127.0.0.1:15428 --verify
  mooncake bench transfer --metadata http://127.0.0.1:8080/metadata --target node-A --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Transport, o.Block = e.Transport, uint64(block)
			if verbose {
				e.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			}
			finish := func() {}
			if f, ok := cmd.ErrOrStderr().(*os.File); ok && term.IsTerminal(int(f.Fd())) {
				o.Progress, finish = bench.Progress(f, o)
			}
			r, err := bench.Transfer(cmd.Context(), o, e, target, func(size uint64) *exec.Cmd {
				return targetCommand(e, size)
			})
			finish()
			if err != nil {
				return err
			}
			if asJSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			} else {
				err = r.WriteText(cmd.OutOrStdout())
			}
			if err == nil && r.Errors > 0 {
				if asJSON {
					fmt.Fprintln(cmd.ErrOrStderr(), "mooncake: bench:", r.Errors, "failed batches, the first:", r.FirstError)
				}
				return &exitError{1}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&e.Transport, "transport", e.Transport, "transport to measure: tcp or shm")
	f.StringVar(&o.Op, "op", o.Op, "read or write")
	f.TextVar(&block, "block", block, "bytes of one block: 4096, 64KB, 1MB")
	f.IntVar(&o.Batch, "batch", o.Batch, "blocks of one batch")
	f.IntVar(&o.Threads, "threads", o.Threads, "threads, each with one batch in flight")
	f.DurationVar(&o.Duration, "duration", o.Duration, "length of the measurement")
	f.BoolVar(&o.Verify, "verify", false, "check the content of every block (not part of the measured time)")
	f.StringVar(&target, "target", "", "segment name of a running engine (default: start one)")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
	f.BoolVar(&verbose, "verbose", false, "show the engine's log")
	addEndpointFlags(cmd, &e)
	return cmd
}

func addEndpointFlags(cmd *cobra.Command, e *bench.Endpoint) {
	f := cmd.Flags()
	f.StringVar(&e.Metadata, "metadata", e.Metadata, "metadata service, as metadata_server in mooncake.json")
	f.StringVar(&e.Name, "local-hostname", "", "name of the engine, as local_hostname in mooncake.json (default: made up)")
	f.StringVar(&e.Host, "host", "127.0.0.1", "address that the engine advertises and binds")
}

// newBenchTargetCommand is the second process of a benchmark; see bench.ServeTarget.
func newBenchTargetCommand() *cobra.Command {
	e := bench.Endpoint{Transport: "tcp", Metadata: metadata.P2P}
	var size uint64
	cmd := &cobra.Command{
		Use:    "transfer-target",
		Short:  "The target of bench transfer; ends with its stdin",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
			return bench.ServeTarget(cmd.Context(), e, size, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&e.Transport, "transport", e.Transport, "transport")
	cmd.Flags().Uint64Var(&size, "bytes", 64<<20, "size of the region")
	addEndpointFlags(cmd, &e)
	return cmd
}

// targetCommand runs this same binary as the target of e.
func targetCommand(e bench.Endpoint, size uint64) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return exec.Command(self, "bench", "transfer-target", "--transport", e.Transport, "--metadata", e.Metadata,
		"--host", e.Host, "--bytes", strconv.FormatUint(size, 10))
}
