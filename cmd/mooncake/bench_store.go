package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/core/bench"
)

func newBenchStoreCommand() *cobra.Command {
	o := bench.DefaultStoreOptions()
	var asJSON, hold bool
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Throughput and latency of a Store master, ours or upstream's",
		Long: `Puts keys into a Store master and measures one operation on them. It speaks the wire of 0.3.13 with the
type literals that the wheels send, so it drives upstream's mooncake_master too.

DO NOT RUN IT AGAINST A MASTER IN USE: it lends the master a segment of memory that does not exist, where
other clients' objects would be placed too.

Operations: ` + strings.Join(bench.StoreOps, ", ") + `.
putstart-end is PutStart and PutEnd of a new key, counted as one; mixed is seven gets, two exists and one put
of ten; batchexist and batchget take 100 keys a call, counted as one. Ctrl-C stops early and still prints
the result.`,
		Example: `  mooncake bench store --master 127.0.0.1:50051 --op get --connections 8
  mooncake bench store --op mixed --connections 64 --depth 4 --keys 1000000 --duration 10s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Ready = func(r *bench.StoreResult) error {
				if asJSON {
					return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
				}
				return r.WriteText(cmd.OutOrStdout())
			}
			if hold {
				o.Hold = cmd.InOrStdin()
			}
			r, err := bench.Store(cmd.Context(), o)
			if err != nil {
				return err
			}
			if r.Errors > 0 {
				if asJSON {
					fmt.Fprintln(cmd.ErrOrStderr(), "mooncake: bench:", r.Errors, "failed operations, the first:", r.FirstError)
				}
				return &exitError{1}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Master, "master", o.Master, "address of the master")
	f.StringVar(&o.Op, "op", o.Op, "operation")
	f.IntVar(&o.Connections, "connections", o.Connections, "TCP connections")
	f.IntVar(&o.Depth, "depth", o.Depth, "requests in flight on each connection")
	f.Uint64Var(&o.Keys, "keys", o.Keys, "keys that are put before the measurement")
	f.DurationVar(&o.Duration, "duration", o.Duration, "length of the measurement")
	f.IntVar(&o.Threads, "threads", o.Threads, "threads of the load generator")
	f.TextVar(&o.Value, "value", o.Value, "size of each object")
	f.TextVar(&o.Segment, "segment", o.Segment, "size of the segment; 0 = room for everything")
	f.IntVar(&o.PID, "pid", 0, "process id of the master on this machine: measure its processor time and memory too")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
	f.BoolVar(&hold, "hold", false, "keep the keys after the result until stdin ends")
	return cmd
}
