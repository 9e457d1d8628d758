package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/core/client"
)

func newKVExistsCommand() *cobra.Command {
	var f kvFlags
	cmd := &cobra.Command{
		Use:   "exists KEY...",
		Short: "Tell whether objects exist; exit code 3 if one does not",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, func(ctx context.Context, c *client.Client) error {
				oks, err := c.ExistsBatch(ctx, args)
				if err != nil {
					return err
				}
				all, byKey := true, map[string]bool{}
				for i, k := range args {
					all, byKey[k] = all && oks[i], oks[i]
					if !f.json {
						fmt.Fprintf(cmd.OutOrStdout(), "%s\t%v\n", k, oks[i])
					}
				}
				if f.json {
					if err := json.NewEncoder(cmd.OutOrStdout()).Encode(byKey); err != nil {
						return err
					}
				}
				if !all {
					return &exitError{3}
				}
				return nil
			})
		},
	}
	f.add(cmd)
	return cmd
}

func newKVListCommand() *cobra.Command {
	var f kvFlags
	var asRegex bool
	cmd := &cobra.Command{
		Use:   "ls [PREFIX]",
		Short: "List objects: size, replicas, key",
		Long: `List the readable objects whose key begins with PREFIX, or with --regex those that contain a match of it. The
master looks at every object and protects those it lists from eviction for the time of a lease.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pattern := "^" + regexp.QuoteMeta(strings.Join(args, ""))
			if asRegex {
				pattern = strings.Join(args, "")
			}
			return f.run(cmd, func(ctx context.Context, c *client.Client) error {
				list, err := c.List(ctx, pattern)
				if err != nil {
					return err
				}
				if f.json {
					out := make([]kvObject, len(list))
					for i, o := range list {
						out[i] = describeObject(o)
					}
					return json.NewEncoder(cmd.OutOrStdout()).Encode(out)
				}
				t := newTable(cmd.OutOrStdout())
				t.AppendHeader(table.Row{"Bytes", "Replicas", "Key"})
				for _, o := range list {
					t.AppendRow(table.Row{o.Size, len(o.Replicas), o.Key})
				}
				t.Render()
				return nil
			})
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&asRegex, "regex", false, "the argument is a regular expression")
	return cmd
}

// kvObject is an object in JSON.
type kvObject struct {
	Key      string      `json:"key"`
	Bytes    uint64      `json:"bytes"`
	Replicas []kvReplica `json:"replicas"`
	Checksum string      `json:"checksum,omitempty"` // CRC-64, hexadecimal
	LeaseMS  int64       `json:"lease_ms,omitempty"`
}

type kvReplica struct {
	ID       uint64 `json:"id"`
	Kind     string `json:"kind"`
	Endpoint string `json:"endpoint,omitempty"`
	Address  string `json:"address,omitempty"`
	Path     string `json:"path,omitempty"`
}

func describeObject(i client.Info) kvObject {
	o := kvObject{Key: i.Key, Bytes: i.Size, Replicas: make([]kvReplica, len(i.Replicas)), LeaseMS: i.Lease.Milliseconds()}
	for n, r := range i.Replicas {
		o.Replicas[n] = kvReplica{ID: r.ID, Kind: r.Kind, Endpoint: r.Endpoint, Path: r.Path}
		if r.Address != 0 {
			o.Replicas[n].Address = fmt.Sprintf("%#x", r.Address)
		}
	}
	if i.HasChecksum {
		o.Checksum = fmt.Sprintf("%016x", i.Checksum)
	}
	return o
}

func newKVStatCommand() *cobra.Command {
	var f kvFlags
	cmd := &cobra.Command{
		Use:   "stat KEY...",
		Short: "Show size, checksum and replicas of objects",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, func(ctx context.Context, c *client.Client) error {
				var errs []error
				for _, k := range args {
					i, err := c.Stat(ctx, k)
					if err != nil {
						errs = append(errs, err)
						continue
					}
					o := describeObject(i)
					if f.json {
						if err := json.NewEncoder(cmd.OutOrStdout()).Encode(o); err != nil {
							return err
						}
						continue
					}
					fmt.Fprintf(cmd.OutOrStdout(), "%s\n  %d bytes, leased for %s\n", o.Key, o.Bytes, i.Lease.Round(100*time.Millisecond))
					if o.Checksum != "" {
						fmt.Fprintf(cmd.OutOrStdout(), "  checksum %s\n", o.Checksum)
					}
					for _, r := range o.Replicas {
						fmt.Fprintf(cmd.OutOrStdout(), "  replica %d: %s %s\n", r.ID, r.Kind, strings.TrimSpace(r.Endpoint+" "+r.Address+r.Path))
					}
				}
				return errors.Join(errs...)
			})
		},
	}
	f.add(cmd)
	return cmd
}

func newKVRemoveCommand() *cobra.Command {
	var f kvFlags
	var force, all, asRegex, ignore bool
	cmd := &cobra.Command{
		Use:   "rm KEY...",
		Short: "Remove objects",
		Long: `Remove objects. An object that is being read, or was a moment ago, is not removed (exit code 6) without --force.
With --regex the arguments are regular expressions, with --all everything goes; then the number of removed objects is
printed, and objects in use are left out.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return errors.New("kv rm: name keys, or write --all and no key")
			}
			return f.run(cmd, func(ctx context.Context, c *client.Client) error {
				if !all && !asRegex {
					errs := c.RemoveBatch(ctx, args, force)
					for i, err := range errs {
						if ignore && errors.Is(err, client.ErrNotFound) {
							errs[i] = nil
						}
					}
					return errors.Join(errs...)
				}
				total := int64(0)
				var err error
				if all {
					total, err = c.RemoveAll(ctx, force)
				}
				for _, p := range args {
					n, e := c.RemoveRegex(ctx, p, force)
					total, err = total+n, errors.Join(err, e)
				}
				if f.json {
					err = errors.Join(err, json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]int64{"removed": total}))
				} else {
					fmt.Fprintln(cmd.OutOrStdout(), total)
				}
				return err
			})
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also remove what is in use")
	cmd.Flags().BoolVar(&all, "all", false, "remove everything")
	cmd.Flags().BoolVar(&asRegex, "regex", false, "the arguments are regular expressions")
	cmd.Flags().BoolVar(&ignore, "ignore-missing", false, "a missing key is no error")
	return cmd
}
