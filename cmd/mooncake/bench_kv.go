package main

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/core/bench"
	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/units"
)

func newBenchKVCommand() *cobra.Command {
	var f kvFlags
	o := bench.KVOptions{Op: "get", Batch: 1, Objects: 16, Duration: 5 * time.Second}
	size := units.MiB
	var lend units.Size
	var prefer string
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "Throughput and latency of puts and gets in a Store",
		Long: `Puts objects into a Store and measures one operation on them, one call after the other. The objects are
removed at the end. With --lend this process lends memory and the objects lie there: reads are copies.

Operations: ` + strings.Join(bench.KVOps, ", ") + `. get allocates memory for each object,
get-buffer uses memory again, get-into reads into memory of its own.`,
		Example: `  mooncake bench kv --master 127.0.0.1:50051 --op put --size 16MB
  mooncake bench kv --op get --size 64KB --batch 100`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Size = uint64(size)
			f.lend = lend
			return f.run(cmd, func(ctx context.Context, c *client.Client) error {
				if lend > 0 {
					prefer = c.Engine().Name()
				}
				if prefer != "" {
					o.Put = append(o.Put, client.Prefer(prefer))
				}
				r, err := bench.KV(ctx, c, o)
				if err != nil {
					return err
				}
				if f.json {
					return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
				}
				return r.WriteText(cmd.OutOrStdout())
			})
		},
	}
	f.add(cmd)
	fs := cmd.Flags()
	fs.StringVar(&o.Op, "op", o.Op, "operation")
	fs.TextVar(&size, "size", size, "bytes of an object: 4096, 64KB, 1MB")
	fs.IntVar(&o.Batch, "batch", o.Batch, "objects of one call")
	fs.IntVar(&o.Objects, "objects", o.Objects, "objects that are read in turn")
	fs.DurationVar(&o.Duration, "duration", o.Duration, "length of the measurement")
	fs.TextVar(&lend, "lend", lend, "memory that this process lends to the Store")
	fs.StringVar(&prefer, "prefer", "", "segment for the objects")
	return cmd
}
