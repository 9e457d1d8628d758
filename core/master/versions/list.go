package versions

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// Client is a client, or the callers of one address that have named no client id yet (readers without a
// segment never do).
type Client struct {
	ID          wire.UUID // zero: no id yet
	Address     netip.Addr
	Versions    wire.VersionSet // those that are possible
	Connections int
}

// Clients lists who has connections open, by address, then id.
func (m *Memory) Clients() []Client {
	m.mu.Lock()
	defer m.mu.Unlock()
	type key struct {
		id   wire.UUID
		addr netip.Addr
		set  wire.VersionSet // tells callers without an id apart
	}
	found := map[key]*Client{}
	for addr, h := range m.hosts {
		for c := range h.callers {
			k := key{addr: addr, set: c.possible()}
			if cl := c.client.Load(); cl != nil {
				k = key{id: cl.id, addr: addr}
			}
			x := found[k]
			if x == nil {
				x = &Client{ID: k.id, Address: addr, Versions: c.possible()}
				found[k] = x
			}
			x.Connections++
		}
	}
	out := make([]Client, 0, len(found))
	for _, c := range found {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b Client) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.ID[0], b.ID[0]), cmp.Compare(a.ID[1], b.ID[1]), cmp.Compare(a.Versions, b.Versions))
	})
	return out
}

var (
	descClients     = prometheus.NewDesc("mooncake_master_version_clients", "Clients with an open connection, by Mooncake version.", []string{"version"}, nil)
	descConnections = prometheus.NewDesc("mooncake_master_version_connections", "Open RPC connections, by the caller's Mooncake version.", []string{"version"}, nil)
	descGuesses     = prometheus.NewDesc("mooncake_master_version_guesses_total", "Answers whose form had to be guessed, by what became of them.", []string{"result"}, nil)
	descContradict  = prometheus.NewDesc("mooncake_master_version_contradictions_total", "Requests that contradict what was known about the caller's version.", nil, nil)
	descHangUps     = prometheus.NewDesc("mooncake_master_service_ready_hangups_total", "Callers that hung up on the answer of ServiceReady, as 0.3.7 clients do on the default port.", nil, nil)
)

// Describe is part of [prometheus.Collector].
func (m *Memory) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descClients, descConnections, descGuesses, descContradict, descHangUps} {
		ch <- d
	}
}

// Collect is part of [prometheus.Collector].
func (m *Memory) Collect(ch chan<- prometheus.Metric) {
	clients, conns := map[wire.VersionSet]map[wire.UUID]struct{}{}, map[wire.VersionSet]int{}
	for _, c := range m.Clients() {
		conns[c.Versions] += c.Connections
		if c.ID.IsZero() {
			continue
		}
		if clients[c.Versions] == nil {
			clients[c.Versions] = map[wire.UUID]struct{}{}
		}
		clients[c.Versions][c.ID] = struct{}{}
	}
	for set, ids := range clients {
		ch <- prometheus.MustNewConstMetric(descClients, prometheus.GaugeValue, float64(len(ids)), Label(set))
	}
	for set, n := range conns {
		ch <- prometheus.MustNewConstMetric(descConnections, prometheus.GaugeValue, float64(n), Label(set))
	}
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	count(descGuesses, m.sameProcess.Load(), "spared")
	count(descGuesses, m.made.Load(), "made")
	count(descGuesses, m.confirmed.Load(), "confirmed")
	count(descGuesses, m.rejected.Load(), "rejected")
	count(descContradict, m.contradictions.Load())
	count(descHangUps, m.readyHangUps.Load())
}

// Label shows a set of possible versions: "0.3.13", "0.3.12 0.3.13", or "unknown" for all of them.
func Label(set wire.VersionSet) string {
	if set == wire.AllVersions {
		return "unknown"
	}
	return set.String()
}
