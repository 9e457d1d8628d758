package admin

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/master/versions"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// Client is one entry of /api/v1/clients: a client that owns segments, pings or has a connection open; without an
// id it is the callers of one address and version that never named one.
type Client struct {
	ID          string   `json:"client_id,omitempty"`
	Address     string   `json:"address,omitempty"`
	Version     string   `json:"version"` // several if it is not decided, "unknown" if all are possible
	Connections int      `json:"connections"`
	State       string   `json:"state,omitempty"` // "ok", "needs remount", "suspected"; empty for readers and writers without a segment
	LastPing    string   `json:"last_ping,omitempty"`
	Segments    []string `json:"segments,omitempty"` // ids
	LocalDisk   bool     `json:"local_disk,omitempty"`
}

// Clients is the body of /api/v1/clients.
type Clients struct {
	Clients []Client `json:"clients"`
}

func (h *Handler) clients(w http.ResponseWriter, _ *http.Request) {
	var callers []versions.Client
	if h.o.Callers != nil {
		callers = h.o.Callers.Clients()
	}
	sendJSON(w, http.StatusOK, Clients{merge(callers, h.o.Store.Clients())})
}

// merge joins who is connected with whom the service knows.
func merge(callers []versions.Client, known []master.ClientDetail) []Client {
	details := map[wire.UUID]master.ClientDetail{}
	for _, d := range known {
		details[d.ID] = d
	}
	out := make([]Client, 0, len(callers)+len(known))
	shown := map[wire.UUID]bool{}
	add := func(c Client, id wire.UUID) {
		d, ok := details[id]
		if ok && !id.IsZero() {
			c.State, c.LastPing, c.LocalDisk = d.State, stamp(d.LastPingMS), d.LocalDisk
			for _, s := range d.Segments {
				c.Segments = append(c.Segments, s.String())
			}
		}
		if !id.IsZero() {
			c.ID = id.String()
			shown[id] = true
		}
		out = append(out, c)
	}
	for _, c := range callers {
		add(Client{Address: text(c.Address), Version: versions.Label(c.Versions), Connections: c.Connections}, c.ID)
	}
	for _, d := range known {
		if !shown[d.ID] {
			add(Client{Version: "unknown"}, d.ID)
		}
	}
	slices.SortStableFunc(out, func(a, b Client) int {
		if d := strings.Compare(a.Address, b.Address); d != 0 {
			return d
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return "unix socket"
	}
	return a.String()
}
