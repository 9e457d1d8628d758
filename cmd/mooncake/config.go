package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/node"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check, show and describe the configuration"}
	cmd.AddCommand(newConfigCheckCommand(), newConfigShowCommand(), newConfigSchemaCommand())
	return cmd
}

// configFlags are the flags of every command that reads the configuration. They are its topmost layer.
type configFlags struct {
	path string
	set  []string
}

func (f *configFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.path, "config", "", "mooncake.json or .yaml; default: $"+config.ConfigPathVar+", else no file")
	cmd.Flags().StringArrayVar(&f.set, "set", nil, "set one key over file and environment: --set log.level=debug (may be repeated)")
}

// load reads the configuration; an argument names the file like --config does.
func (f *configFlags) load(args []string) (*config.Loaded, error) {
	path := f.path
	if len(args) > 0 {
		if path != "" && path != args[0] {
			return nil, errors.New("the file is given twice: as an argument and by --config")
		}
		path = args[0]
	}
	flags, err := f.layer()
	if err != nil {
		return nil, err
	}
	return config.Load(config.Options{Schema: node.Schema(), Path: path, Environ: os.Environ(), Flags: flags})
}

// layer turns --set key=value into the topmost layer of the configuration.
func (f *configFlags) layer() ([]config.Flag, error) {
	var out []config.Flag
	for _, s := range f.set {
		key, value, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("--set %q: write key=value, for example --set log.level=debug", s)
		}
		out = append(out, config.Flag{Name: "set " + key, Key: key, Value: value})
	}
	return out, nil
}

func newConfigCheckCommand() *cobra.Command {
	var flags configFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Read the configuration and report every problem; nothing is started",
		Long: `Read file, environment and flags as "mooncake node" would and report every problem at once,
each with its place: file:line:col: key: what. WebAssembly modules are compiled. Of parts of type external the
program and its files are looked at: there, executable, with the right digests. Nothing of a third party runs, so what
such a program itself says of its kind and its config is heard at the start only, or by mooncake plugin check.
Exit code 0 = nothing is wrong as far as that can be known.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := flags.load(args)
			if err == nil {
				err = node.CheckParts(cmd.Context(), l)
			}
			if werr := config.WriteCheck(cmd.OutOrStdout(), l, err, asJSON); werr != nil {
				return werr
			}
			if err != nil {
				return &exitError{1}
			}
			return nil
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON: {ok, file, errors, warnings}")
	return cmd
}

func newConfigShowCommand() *cobra.Command {
	var flags configFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show [FILE]",
		Short: "Print every key in use with its value and where the value came from",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := flags.load(args)
			if err != nil {
				return err
			}
			return config.WriteEffective(cmd.OutOrStdout(), l, asJSON)
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list of {key, value, source, live}")
	return cmd
}

func newConfigSchemaCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "schema",
		Short: "Print every key this binary knows: type, default, limits, meaning",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return config.WriteSchema(cmd.OutOrStdout(), node.Schema(), format)
		},
	}
	cmd.Flags().StringVar(&format, "format", "text", "text, json or markdown")
	cmd.Flags().BoolFunc("json", "same as --format json", func(string) error { format = "json"; return nil })
	return cmd
}
