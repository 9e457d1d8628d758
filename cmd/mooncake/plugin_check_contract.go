package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/eviction"
	policytests "github.com/mooncake-agent/mooncake/eviction/conformance"
	"github.com/mooncake-agent/mooncake/internal/conform"
	"github.com/mooncake-agent/mooncake/metadata"
	metadatatests "github.com/mooncake-agent/mooncake/metadata/conformance"
	"github.com/mooncake-agent/mooncake/plugins/external"
	"github.com/mooncake-agent/mooncake/plugins/external/backend"
	"github.com/mooncake-agent/mooncake/plugins/external/policy"
	"github.com/mooncake-agent/mooncake/transports"
	transporttests "github.com/mooncake-agent/mooncake/transports/conformance"
)

// pluginSection is the configuration as the parts of type external take it.
type pluginSection struct{ c *external.Config }

// Decode implements module.Section.
func (s pluginSection) Decode(into any) error {
	var c *external.Config
	switch t := into.(type) {
	case *external.Config:
		c = t
	case *backend.Config:
		c = &t.Config
	case *policy.Config:
		c = &t.Config
	default:
		return fmt.Errorf("plugin check: parts with a %T are not known", into)
	}
	calls := c.CallTimeout // a kind may have a default of its own
	*c = *s.c
	c.CallTimeout = calls
	return nil
}

// metadata runs the suite, each backend with a process of its own.
func (o *pluginCheck) metadata(ctx context.Context, r *pluginReport) error {
	open := func(t metadatatests.T) metadata.Backend {
		b, err := metadata.Kind.Build(ctx, "external", o.env(), pluginSection{&o.config})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var declared metadatatests.Declared
	first := conform.Run("open", checkLimit, func(t conform.T) {
		b := open(t)
		declared = metadatatests.DeclaredBy(b)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	})
	if len(first.Failures) > 0 {
		r.add(levelFail, "contract", "%s", strings.Join(first.Failures, "\n"))
		return nil
	}
	checks := metadatatests.Checks(metadatatests.Service{Open: open, Timeout: o.config.CallTimeout}, declared)
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.Name
	}
	err := o.contract(ctx, r, names, func(i int) conform.Outcome { return conform.Run(names[i], checkLimit, checks[i].Run) })
	r.outcomes(nil)
	return err
}

// transport runs the suite, each transport with a process of its own.
func (o *pluginCheck) transport(ctx context.Context, r *pluginReport) error {
	h := transporttests.Harness{Access: true, New: func(t transporttests.T) transports.Transport {
		p, err := transports.Kind.Build(ctx, "external", o.env(), pluginSection{&o.config})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}}
	checks := transporttests.Checks()
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.Name
	}
	err := o.contract(ctx, r, names, func(i int) conform.Outcome {
		return conform.Run(names[i], checkLimit, func(t conform.T) { checks[i].Run(t, h) })
	})
	r.outcomes(map[string]string{"access": "peers may read or write regions that are published without that"})
	if err == nil {
		o.throughput(r, h)
	}
	return err
}

// throughput moves 1 MiB at a time between two nodes.
func (o *pluginCheck) throughput(r *pluginReport, h transporttests.Harness) {
	const size, ops, rounds = 1 << 20, 16, 24
	var best float64 // bytes a second
	out := conform.Run("throughput", checkLimit, func(t conform.T) {
		f := transporttests.NewFabric()
		b := transporttests.StartNode(t, f, h.New(t))
		a := transporttests.StartNode(t, f, h.New(t))
		remote, local := b.Register(t, size*ops, transports.ReadWrite), a.Register(t, size*ops, transports.ReadWrite)
		p := a.Dial(t, b)
		for range rounds { // the best of some, since other programs take time too
			batch := make([]transports.Op, ops)
			for i := range batch {
				batch[i] = transports.Op{Write: true, Local: local, Offset: uint64(i * size), Remote: remote.Addr() + uint64(i*size), Len: size, Cookie: uint64(i)}
			}
			begin := time.Now()
			if err := transporttests.Move(t, p, batch...); err != nil {
				t.Fatal(err)
			}
			best = max(best, size*ops/time.Since(begin).Seconds())
		}
	})
	if len(out.Failures) > 0 {
		r.add(levelFail, "speed", "%s", strings.Join(out.Failures, "\n"))
		return
	}
	r.GBPerSecond = best / 1e9
	r.add(levelOK, "speed", "%.2f GB/s in writes of 1 MiB, %d at a time", r.GBPerSecond, ops)
}

// policyAudit remembers the policies that a factory makes, to read in the end what the host had to put right.
type policyAudit struct {
	eviction.Factory
	mu   sync.Mutex
	made []eviction.Supervised
}

// New implements eviction.Factory.
func (a *policyAudit) New(s eviction.Spec) (eviction.Policy, error) {
	p, err := a.Factory.New(s)
	if g, ok := p.(eviction.Supervised); ok {
		a.mu.Lock()
		a.made = append(a.made, g)
		a.mu.Unlock()
	}
	return p, err
}

// eviction runs the suite. The host stands in for a plugin that fails, so what it had to put right counts as much as the
// outcome.
func (o *pluginCheck) eviction(ctx context.Context, r *pluginReport) error {
	f, err := eviction.Kind.Build(ctx, "external", o.env(), pluginSection{&o.config})
	if err != nil {
		r.add(levelFail, "contract", "%v", err)
		return nil
	}
	a := &policyAudit{Factory: f}
	checks := policytests.All()
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.Name
	}
	err = o.contract(ctx, r, names, func(i int) conform.Outcome {
		return conform.Run(names[i], checkLimit, func(t conform.T) { checks[i].Run(t, a, policytests.Options{Foreign: true, Runs: 8}) })
	})
	r.outcomes(nil)
	a.report(r)
	return err
}

// report says what the host had to put right in all that was tried.
func (a *policyAudit) report(r *pluginReport) {
	faults, strikes := map[string]uint64{}, map[string]uint64{}
	var protected, events, nanos uint64
	why := ""
	for _, g := range a.made {
		s := g.Supervision()
		for k, n := range s.Faults {
			faults[k] += n
		}
		for k, n := range s.Strikes {
			strikes[k] += n
		}
		protected += s.Protected
		events, nanos = events+s.Events, nanos+s.EventNanos
		if s.Fault != "" {
			why = s.Fault
		}
	}
	bad := false
	complain := func(what string, counts map[string]uint64, more string) {
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(counts)) {
			if n := counts[k]; n > 0 {
				parts = append(parts, fmt.Sprintf("%s %d times", strings.ReplaceAll(k, "_", " "), n))
			}
		}
		if len(parts) > 0 {
			bad = true
			r.add(levelFail, "victims", "%s: %s%s", what, strings.Join(parts, ", "), more)
		}
	}
	if why != "" {
		why = "\nthe last: " + why
	}
	complain("faults", faults, why)
	complain("it named victims that were not there", strikes, "")
	if protected > 0 {
		bad = true
		r.add(levelFail, "victims", "it named %d victims that were pinned, or not of the tenant or segment that was asked for", protected)
	}
	if !bad {
		r.add(levelOK, "victims", "no fault, no victim that was not there or had to stay")
	}
	if events > 0 {
		r.NanosPerEvent = float64(nanos) / float64(events)
		r.add(levelOK, "speed", "%.0f ns an event in the suite's small batches", r.NanosPerEvent)
	}
}
