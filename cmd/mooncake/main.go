// Command mooncake is the node agent: one binary, one file a subcommand.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	_ "github.com/mooncake-agent/mooncake/eviction/all"
	_ "github.com/mooncake-agent/mooncake/metadata/all"
	_ "github.com/mooncake-agent/mooncake/plugins/external/backend"
	_ "github.com/mooncake-agent/mooncake/plugins/external/policy"
	_ "github.com/mooncake-agent/mooncake/plugins/external/transport"
	_ "github.com/mooncake-agent/mooncake/plugins/wasm"
	_ "github.com/mooncake-agent/mooncake/transports/all"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRootCommand()
	root.SetArgs(programArgs(os.Args))
	if err := root.ExecuteContext(ctx); err != nil {
		var quiet *exitError
		if !errors.As(err, &quiet) {
			fmt.Fprintln(os.Stderr, "mooncake:", err)
			os.Exit(1)
		}
		os.Exit(quiet.code)
	}
}

// exitError ends the process with a code after the command itself has told what went wrong.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit %d", e.code) }

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "mooncake",
		Short: "Node agent for Mooncake: moves KV cache between the memory of many machines",
		Long: `mooncake is a node agent that unmodified Mooncake clients talk to: it registers memory,
publishes it in etcd, redis, an HTTP metadata server or peer to peer, and moves bytes to and from it.

Start a Store:    mooncake up
Start a node:     mooncake node --config configs/mooncake.json
Start a master:   mooncake master
Check a config:   mooncake config check mooncake.json
Check a machine:  mooncake doctor --config mooncake.json
Try a policy:     mooncake replay --trace traffic.rec.zst
See what's in it: mooncake plugins ls`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newUpCommand(), newNodeCommand(), newConfigCommand(), newPluginsCommand(), newPluginCommand(), newSegmentsCommand(), newVersionCommand(), newBenchCommand(), newMasterCommand(), newPolicyCommand(), newReplayCommand(), newClientsCommand(), newKVCommand(), newDoctorCommand(), newDocsCommand())
	return root
}
