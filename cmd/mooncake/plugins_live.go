package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/core/node"
	"github.com/mooncake-agent/mooncake/plugins/external"
)

// pluginEndpoints are what a node serves for the commands below.
func pluginEndpoints() (all []node.Endpoint) {
	for _, r := range external.Routes() {
		all = append(all, node.Endpoint{Pattern: r.Pattern, Doc: r.Doc, Handler: r.Handler})
	}
	return all
}

func newPluginsLogsCommand() *cobra.Command {
	c := pluginsClient{admin: "127.0.0.1:9004"}
	lines := 100
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Show what a plugin in another process wrote",
		Long: `Show the last lines that a plugin of a running node wrote, of all its processes: the number before each line is the
generation. The node keeps a thousand. NAME is that of the config section; if several kinds have it, KIND/NAME. What the
plugin calls itself does too, if only one does.`,
		Example: `  mooncake plugins logs sqlite
  mooncake plugins logs eviction/team-a --lines 20`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var logs external.Logs
			q := url.Values{"name": {args[0]}, "lines": {strconv.Itoa(lines)}}
			if err := c.get(cmd.Context(), external.LogsPath+"?"+q.Encode(), &logs); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), logs)
			}
			if len(logs.Lines) == 0 {
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s/%s has written nothing\n", logs.Plugin.Kind, logs.Plugin.Name)
				return err
			}
			for _, l := range logs.Lines {
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %-5s %d %s\n", l.Time.Local().Format("15:04:05.000"), l.Level, l.Generation, l.Text); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&c.admin, "admin", c.admin, pluginsAdminHelp)
	cmd.Flags().IntVar(&lines, "lines", lines, "how many")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newPluginsRestartCommand() *cobra.Command {
	c := pluginsClient{admin: "127.0.0.1:9004"}
	wait := 30 * time.Second
	cmd := &cobra.Command{
		Use:   "restart NAME",
		Short: "Start a plugin in another process anew",
		Long: `End the process of a plugin of a running node, with its time to finish, and start a new one. Failures before that are
forgotten: a plugin that has tripped is tried at once. The node serves on meanwhile, by other paths where it has some.
The command waits until the new process is ready.

Only the node's own host may ask: by loopback or by admin.socket.`,
		Example: "  mooncake plugins restart sqlite",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			p, err := c.restart(ctx, args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s/%s is ready, generation %d, process %d\n", p.Kind, p.Name, p.Generation, p.PID)
			return err
		},
	}
	cmd.Flags().StringVar(&c.admin, "admin", c.admin, pluginsAdminHelp)
	cmd.Flags().DurationVar(&wait, "wait", wait, "how long the new process may take")
	return cmd
}

// pluginsClient talks to the admin server of a process with plugins.
type pluginsClient struct{ admin string }

// restart asks for a new process and waits until a later generation is ready.
func (c pluginsClient) restart(ctx context.Context, name string) (*external.Status, error) {
	var before external.Status
	if err := c.call(ctx, http.MethodPost, external.RestartPath, external.Named{Name: name}, &before); err != nil {
		return nil, err
	}
	exact := before.Kind + "/" + before.Name
	for {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("%s is not ready yet: mooncake plugins ls --admin %s tells its state", exact, c.admin)
		}
		var now external.Logs
		if err := c.get(ctx, external.LogsPath+"?"+url.Values{"name": {exact}, "lines": {"1"}}.Encode(), &now); err != nil {
			return nil, err
		}
		p := &now.Plugin
		if p.Generation <= before.Generation {
			continue
		}
		switch p.State {
		case external.StateReady:
			return p, nil
		case external.StateStarting:
		default:
			return nil, fmt.Errorf("%s is %s after the restart: %s", exact, p.State, p.LastError)
		}
	}
}

func (c pluginsClient) get(ctx context.Context, path string, into any) error {
	return c.call(ctx, http.MethodGet, path, nil, into)
}

// maxPluginsAnswer bounds what is read: a thousand lines of 4 KiB.
const maxPluginsAnswer = 64 << 20

func (c pluginsClient) call(ctx context.Context, method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	base, transport := adminTransport(c.admin)
	defer transport.CloseIdleConnections()
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
		return fmt.Errorf("no answer from the admin server (--admin %s): %w", c.admin, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxPluginsAnswer))
	switch {
	case err != nil:
		return fmt.Errorf("--admin %s: %w", c.admin, err)
	case resp.StatusCode == http.StatusOK && json.Unmarshal(text, into) == nil:
		return nil
	case strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") && !strings.Contains(string(text), "page not found"):
		return errors.New(strings.TrimSpace(string(text)))
	}
	return fmt.Errorf("--admin %s answers %s: is this the admin server of a mooncake node of this version?", c.admin, resp.Status)
}
