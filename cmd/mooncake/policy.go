package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/core/master/admin"
	"github.com/mooncake-agent/mooncake/core/master/policies"
	"github.com/mooncake-agent/mooncake/core/master/record"
)

func newPolicyCommand() *cobra.Command {
	c := &policyClient{admin: "http://127.0.0.1:9003"}
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Show and change what a master throws away, and record what clients ask it for",
		Long: `Show and change the eviction policies of a running master, by domain: a tenant with a policy of its own, or * for
all others. Changes are taken from the master's own host only.`,
		Example: `  mooncake policy status
  mooncake policy set adaptive
  mooncake policy set lru-k:k=3 --tenant team-a
  mooncake policy set mypolicy.wasm
  mooncake policy rollback
  mooncake policy record start today.trace.zst`,
	}
	cmd.PersistentFlags().StringVar(&c.admin, "admin", c.admin, "base URL of the master's admin server, or of a node that is its own master, or the path of that one's admin.socket")
	cmd.PersistentFlags().BoolVar(&c.json, "json", false, "print JSON")
	cmd.AddCommand(c.statusCommand(), c.setCommand(), c.dropCommand(), c.rollbackCommand(), c.recordCommand(), newPolicyNewCommand(), newPolicyCheckCommand())
	return cmd
}

// policyClient talks to a master's admin server.
type policyClient struct {
	admin  string
	tenant string
	json   bool
}

func (c *policyClient) tenantFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.tenant, "tenant", "", "the tenant; default: everyone without a policy of their own")
}

func (c *policyClient) domain() string {
	if c.tenant == "" {
		return policies.Everyone
	}
	return c.tenant
}

func (c *policyClient) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show each domain's policy, hits, victims, regret, memory and what the shadow guard thinks",
		Long: `Show the eviction domains of a master.

  prefix hit  blocks that lead their request without a gap, of all blocks that requests asked for
  regret      evicted objects that were asked for again soon, of those evicted; a small sample estimates it
  refused     victims that the policy named and the master kept, by reason
  guard       the store and a shadow LRU on the same sample of keys, last ten minutes with traffic

A domain's state is running, native (no policy is configured, the built-in LRU serves), waiting (it failed and
is tried again), quarantined (it failed too often) or fell back (worse than the LRU for ten minutes). In all but the
first the built-in LRU serves. mooncake policy set starts anew.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var p admin.Policies
			if err := c.call(cmd.Context(), http.MethodGet, admin.PoliciesPath, nil, &p); err != nil {
				return err
			}
			return c.show(cmd.OutOrStdout(), &p)
		},
	}
	c.tenantFlag(cmd)
	return cmd
}

func (c *policyClient) dropCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drop --tenant TENANT",
		Short: "End a tenant's own policy: that of * rules over its objects from now on",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.tenant == "" {
				return errors.New("--tenant: name the tenant whose policy ends")
			}
			return c.change(cmd, http.MethodDelete, "", admin.PolicyChange{Domain: c.tenant})
		},
	}
	c.tenantFlag(cmd)
	return cmd
}

func (c *policyClient) rollbackCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollback",
		Short: "Bring the policy before the last change back, within a minute of it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.change(cmd, http.MethodPost, "/rollback", admin.PolicyChange{Domain: c.domain()})
		},
	}
	c.tenantFlag(cmd)
	return cmd
}

func (c *policyClient) change(cmd *cobra.Command, method, path string, body admin.PolicyChange) error {
	var p admin.Policies
	if err := c.call(cmd.Context(), method, admin.PoliciesPath+path, body, &p); err != nil {
		return err
	}
	return c.show(cmd.OutOrStdout(), &p)
}

func (c *policyClient) recordCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "record",
		Short: "Record what clients ask the master for, for mooncake replay",
		Long: `Record real traffic into a file for mooncake replay: hashes of keys, sizes, times and tenants, no keys and no values. The
master makes the file in the folder that its --record_dir names.`,
	}
	run := func(use, short, method string, args cobra.PositionalArgs, body func([]string) any) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
			var s record.Status
			if err := c.call(cmd.Context(), method, admin.RecordingPath, body(args), &s); err != nil {
				return err
			}
			return c.showRecording(cmd.OutOrStdout(), s)
		}}
	}
	none := func([]string) any { return nil }
	cmd.AddCommand(
		run("start FILE", "Begin a recording; .gz or .zst at the end of the name compresses it", http.MethodPost, cobra.ExactArgs(1),
			func(args []string) any { return admin.RecordingStart{File: args[0]} }),
		run("stop", "End the recording", http.MethodDelete, cobra.NoArgs, none),
		run("status", "Show the recording", http.MethodGet, cobra.NoArgs, none))
	return cmd
}

func (c *policyClient) showRecording(w io.Writer, s record.Status) error {
	if c.json {
		return printJSON(w, s)
	}
	if s.File == "" {
		_, err := fmt.Fprintln(w, "nothing has been recorded")
		return err
	}
	state := "stopped"
	if s.Running {
		state = "recording"
	}
	_, err := fmt.Fprintf(w, "%s %s: %d records, %d bytes, %d dropped\n", state, s.File, s.Records, s.Bytes, s.Dropped)
	if s.Error != "" {
		return errors.Join(err, errors.New(s.Error))
	}
	return err
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// maxPolicyAnswer bounds what is read: a few thousand bytes for each of thousands of tenants.
const maxPolicyAnswer = 64 << 20

// call sends one request; an answer other than 200 is an error with the master's words.
func (c *policyClient) call(ctx context.Context, method, path string, body, into any) error {
	base, transport := adminTransport(c.admin)
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, base+path, content)
	if err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return fmt.Errorf("no answer from the master's admin server: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxPolicyAnswer))
	if err != nil {
		return fmt.Errorf("%s: %w", req.URL, err)
	}
	if resp.StatusCode == http.StatusOK && json.Unmarshal(answer, into) == nil {
		return nil
	}
	var why struct {
		Message string `json:"error_message"`
	}
	if json.Unmarshal(answer, &why) == nil && why.Message != "" {
		return errors.New(why.Message)
	}
	return fmt.Errorf("%s answers %s: is this the admin server of a mooncake master?", req.URL, resp.Status)
}
