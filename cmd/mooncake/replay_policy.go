package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/master/policies"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/eviction/replay"
)

// joinSettings puts back together what a list separated by commas tore apart: "arc:a=1,b=2,lru" is arc with two
// settings, and lru.
func joinSettings(list []string) []string {
	var out []string
	for _, s := range list {
		s = strings.TrimSpace(s)
		head, _, _ := strings.Cut(s, ":")
		if n := len(out); n > 0 && strings.Contains(out[n-1], ":") && strings.Contains(head, "=") {
			out[n-1] += "," + s
			continue
		}
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}

// candidate makes a policy of NAME or FILE.wasm and settings, by the way of the master, so that what can be
// replayed can be served. The setting order is the simulator's.
func candidate(ctx context.Context, text string) (replay.Candidate, error) {
	c := replay.Candidate{Name: text}
	name, settings, err := config.ParseParams(text)
	if err != nil {
		return c, err
	}
	switch order := settings["order"]; order {
	case "", "tail":
	case "head":
		c.HeadFirst = true
	default:
		return c, fmt.Errorf("order: %q: want tail or head", order)
	}
	delete(settings, "order")
	if strings.EqualFold(name, master.Native) {
		name = "lru" // the store's own is the same
	}
	if len(settings) > 0 {
		name += ":" + settings.String()
	}
	p, err := policies.Build(ctx, name, module.Env{})
	if err != nil {
		return c, err
	}
	c.Factory = p.Factory
	if d, ok := p.Factory.(eviction.DomainConfig); ok && d.DomainSettings().Admission {
		c.Admission = true
	}
	if p.Admission == "on" {
		c.Admission = p.Refused != master.RefusedEvict
	}
	return c, nil
}

// policyNames lists what --policy takes, for completion.
func policyNames() []string {
	var names []string
	for _, p := range eviction.Kind.List() {
		names = append(names, p.Name)
	}
	return names
}
