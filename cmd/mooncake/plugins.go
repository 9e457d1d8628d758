package main

import (
	"encoding/json"
	"io"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/node"
	"github.com/mooncake-agent/mooncake/plugins/external"
)

const pluginsAdminHelp = "the node's admin.listen (loopback) or the path of its admin.socket; a master's with plugins of its own is 127.0.0.1:9003"

func newPluginsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "plugins", Short: "Show the parts of this binary, and look after a node's plugins in other processes"}
	cmd.AddCommand(newPluginsLsCommand(), newPluginsLogsCommand(), newPluginsRestartCommand())
	return cmd
}

func newPluginsLsCommand() *cobra.Command {
	var asJSON bool
	var from string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List every part of every kind: available, or skipped with the reason; or a node's external plugins",
		Long: `List every part of every kind that this binary has: available, or skipped with the reason.

With --admin list the plugins of a running node that are processes of their own (type external). State is one of
  starting   a process is getting ready
  ready      calls are answered
  back-off   the last process failed; the next one starts at the time shown
  tripped    too many failed in a row; one attempt in ten minutes, or mooncake plugins restart
  refused    the plugin refused its configuration: it is not tried again
Generation counts the processes; restarts are those after the first.`,
		Example: `  mooncake plugins ls
  mooncake plugins ls --admin 127.0.0.1:9004`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("admin") {
				return writeParts(cmd.OutOrStdout(), node.Parts(), asJSON)
			}
			var list external.List
			c := pluginsClient{from}
			if err := c.get(cmd.Context(), external.ListPath, &list); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), list)
			}
			return writePlugins(cmd.OutOrStdout(), list.Plugins)
		},
	}
	cmd.Flags().StringVar(&from, "admin", "127.0.0.1:9004", pluginsAdminHelp)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON: a list of {kind, name, doc, state, reason}, or what the node answers")
	return cmd
}

func writeParts(w io.Writer, parts []module.Info, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(parts)
	}
	t := newTable(w)
	t.AppendHeader(table.Row{"Kind", "Name", "State", "What it is"})
	for _, p := range parts {
		state := string(p.State)
		if p.Reason != "" {
			state += ": " + p.Reason
		}
		t.AppendRow(table.Row{p.Kind, p.Name, state, p.Doc})
	}
	t.Render()
	return nil
}

func writePlugins(w io.Writer, plugins []external.Status) error {
	if len(plugins) == 0 {
		_, err := io.WriteString(w, "no part of it is a process of its own\n")
		return err
	}
	t := newTable(w)
	t.AppendHeader(table.Row{"Kind", "Name", "Plugin", "State", "Since", "PID", "Generation", "Restarts", "Last error"})
	for _, p := range plugins {
		state, pid := string(p.State), ""
		if !p.RetryAt.IsZero() {
			state += " until " + p.RetryAt.Local().Format("15:04:05")
		}
		if p.PID != 0 {
			pid = strconv.Itoa(p.PID)
		}
		why := p.LastError
		if why != "" {
			why = p.LastErrorAt.Local().Format("15:04:05") + " " + why
		}
		if p.Problem != "" {
			why = "it says: " + p.Problem
		}
		t.AppendRow(table.Row{p.Kind, p.Name, p.Plugin + " " + p.Version, state, p.Since.Local().Format("15:04:05"), pid, p.Generation, max(p.Generation, 1) - 1, why})
	}
	t.Render()
	return nil
}

// newTable is the one table style of the command line: plain columns that grep and awk can read.
func newTable(w io.Writer) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	t.SetStyle(style)
	return t
}
