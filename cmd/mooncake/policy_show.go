package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/master/admin"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/eviction"
)

// show prints the domains, or the chosen tenant's.
func (c *policyClient) show(w io.Writer, p *admin.Policies) error {
	if c.tenant != "" {
		p.Policies = slices.DeleteFunc(p.Policies, func(d master.DomainStats) bool { return d.Name != c.tenant })
	}
	if c.json {
		return printJSON(w, p)
	}
	if len(p.Policies) == 0 {
		_, err := fmt.Fprintln(w, "no policy of its own: * rules")
		return err
	}
	t := newTable(w)
	t.AppendHeader(table.Row{"Domain", "Policy", "State", "Resident", "Bytes", "Hit", "Prefix hit", "Evicted", "Regret", "Memory/key", "Faults", "Guard"})
	for i := range p.Policies {
		d := &p.Policies[i]
		t.AppendRow(table.Row{d.Name, d.Policy, d.State, d.Objects, units.Size(d.Bytes), percent(d.Requests.Found, d.Requests.Asked), percent(d.Requests.Prefix, d.Requests.Asked),
			d.Evicted, percent(d.Regret, d.Evicted), fmt.Sprintf("%.0f B", d.PerKey), faults(d), guardText(d)})
	}
	t.Render()
	for i := range p.Policies {
		if err := showDetails(w, &p.Policies[i]); err != nil {
			return err
		}
	}
	return nil
}

// faults counts those that the master saw and those that a guest's host dealt with itself.
func faults(d *master.DomainStats) uint64 {
	n := d.Faults
	if d.Supervision != nil {
		for _, k := range d.Supervision.Faults {
			n += k
		}
	}
	return n
}

// showDetails prints what is worth a line.
func showDetails(w io.Writer, d *master.DomainStats) error {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if d.Fault != "" {
		retry := ""
		if d.RetryMS > 0 {
			retry = fmt.Sprintf("; next try in %v", time.Duration(d.RetryMS)*time.Millisecond)
		}
		add("last fault: %s%s", d.Fault, retry)
	}
	if d.Previous != "" {
		add("rollback brings %s back", d.Previous)
	}
	var refused []string
	for _, why := range slices.Sorted(maps.Keys(d.Refused)) {
		if n := d.Refused[why]; n > 0 {
			refused = append(refused, fmt.Sprintf("%s %d", why, n))
		}
	}
	if len(refused) > 0 {
		add("victims refused: %s", strings.Join(refused, ", "))
	}
	if d.Strikes > 0 || d.Fallbacks > 0 {
		add("strikes %d, victims chosen by the built-in LRU %d", d.Strikes, d.Fallbacks)
	}
	if d.Admission != "off" {
		add("admission (%s): asked %d, refused %d, of these asked for again %d, late %d", d.Admission, d.AdmitAsked, d.AdmitRefused, d.RefusedAsked, d.AdmitLate)
	}
	if s := d.Supervision; s != nil {
		showGuest(s, add)
	}
	if len(d.Stats) > 0 && string(d.Stats) != "{}" {
		add("policy says: %s", d.Stats)
	}
	for _, l := range lines {
		if _, err := fmt.Fprintf(w, "%s: %s\n", d.Name, l); err != nil {
			return err
		}
	}
	return nil
}

// showGuest prints what is known of a policy that runs code from outside.
func showGuest(s *eviction.Supervision, add func(string, ...any)) {
	add("module: %s, SHA-256 %s", s.Module, s.SHA256)
	per := func(total, n uint64) string {
		if n == 0 {
			return "-"
		}
		return fmt.Sprintf("%.0f", float64(total)/float64(n))
	}
	add("guest: %s, %d instances, %.1f MB of memory; %d events in %d batches, %s ns and %s instructions an event; %d questions", s.State, s.Instances,
		float64(s.MemoryBytes)/float64(units.MiB), s.Events, s.Batches, per(s.EventNanos, s.Events), per(s.EventFuel, s.Events), s.Questions)
	var bad []string
	for _, list := range []map[string]uint64{s.Faults, s.Strikes} {
		for _, kind := range slices.Sorted(maps.Keys(list)) {
			if n := list[kind]; n > 0 {
				bad = append(bad, fmt.Sprintf("%s %d", kind, n))
			}
		}
	}
	if len(bad) > 0 {
		add("guest's faults and strikes: %s", strings.Join(bad, ", "))
	}
	if s.Fault != "" {
		add("guest's last fault: %s", s.Fault)
	}
}

func guardText(d *master.DomainStats) string {
	g := &d.Guard
	if g.Verdict == "off" || g.Asked == 0 {
		return g.Verdict
	}
	text := fmt.Sprintf("%s: %.1f%%, lru %.1f%%", g.Verdict, 100*g.Store, 100*g.LRU)
	if g.WorseMS > 0 {
		text += fmt.Sprintf(" for %v", time.Duration(g.WorseMS)*time.Millisecond)
	}
	return text
}

func percent(n, of uint64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f%%", 100*float64(n)/float64(of))
}
