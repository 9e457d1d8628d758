package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/core/master/admin"
)

func newClientsCommand() *cobra.Command {
	url := "http://127.0.0.1:9003"
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "clients",
		Short: "List a master's clients and the Mooncake version that each speaks",
		Long: `Ask a master (mooncake master) who is connected and which version of Mooncake each client speaks.

A client that owns a segment or has written is known by its id. Readers that never named an id are listed by address.
A version that is not decided yet is shown as all that are possible.`,
		Example: "  mooncake clients --admin http://10.0.0.1:9003",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clients, err := fetchClients(cmd.Context(), url)
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(clients)
			}
			return writeClients(cmd.OutOrStdout(), clients.Clients)
		},
	}
	cmd.Flags().StringVar(&url, "admin", url, "base URL of the master's admin server")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// maxClientsAnswer bounds what is read: about a thousand bytes for each of a million clients.
const maxClientsAnswer = 1 << 30

func fetchClients(ctx context.Context, base string) (*admin.Clients, error) {
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+"/api/v1/clients", nil)
	if err != nil {
		return nil, fmt.Errorf("--admin: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no answer from the master's admin server: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxClientsAnswer))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", req.URL, err)
	}
	var out admin.Clients
	if err := json.Unmarshal(body, &out); resp.StatusCode != http.StatusOK || err != nil {
		return nil, fmt.Errorf("%s answers %s: is this the admin server of a mooncake master?", req.URL, resp.Status)
	}
	return &out, nil
}

func writeClients(w io.Writer, clients []admin.Client) error {
	if len(clients) == 0 {
		_, err := fmt.Fprintln(w, "no clients")
		return err
	}
	t := newTable(w)
	t.AppendHeader(table.Row{"Client", "Address", "Version", "Connections", "Segments", "State", "Last ping"})
	for _, c := range clients {
		id := c.ID
		if id == "" {
			id = "(no id)"
		}
		t.AppendRow(table.Row{id, c.Address, c.Version, c.Connections, strconv.Itoa(len(c.Segments)), c.State, c.LastPing})
	}
	t.Render()
	return nil
}
