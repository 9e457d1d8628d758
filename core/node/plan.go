package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/metahttp"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/telemetry"
	"github.com/mooncake-agent/mooncake/core/transfer"
)

// Plan is a configuration with every section decoded: what fx wires.
type Plan struct {
	Root         config.Root
	Log          telemetry.LogConfig
	Admin        telemetry.AdminConfig
	Segment      segment.Options
	Transfer     transfer.Config
	MetadataHTTP metahttp.Config
	Store        StoreConfig
	Embedded     MasterConfig

	// Eviction are the policies of the embedded master, by tenant.
	Eviction []config.Instance
	// EvictionShared is what they have in common.
	EvictionShared EvictionConfig
	// Master are the addresses of the Store's master; none without a Store.
	Master []string
	// Election is where the master is elected, instead; it may hold a password.
	Election string

	// Metadata is the backend to build; nil means P2PHANDSHAKE.
	Metadata *config.Instance
	// Transports is in the order in which paths are tried.
	Transports []config.Instance

	Warnings []config.Problem
}

// Resolve decodes a loaded configuration. Load has checked the sections already, so an error here is a
// contradiction between sections, or a bug.
func Resolve(l *config.Loaded) (*Plan, error) {
	p := &Plan{
		Root: l.Root(), Log: telemetry.DefaultLog(), Admin: telemetry.DefaultAdmin(), Segment: segment.DefaultOptions(),
		Transfer: transfer.DefaultConfig(), MetadataHTTP: metahttp.DefaultConfig(), Store: DefaultStoreConfig(), Embedded: DefaultMasterConfig(), Warnings: l.Warnings(),
	}
	var errs []error
	for key, into := range map[string]any{
		logKey: &p.Log, adminKey: &p.Admin, segmentKey: &p.Segment, transferKey: &p.Transfer, metadataHTTPKey: &p.MetadataHTTP, storeKey: &p.Store, masterKey: &p.Embedded,
	} {
		if err := l.Section(key).Decode(into); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	if err := l.Shared(evictionKey).Decode(&p.EvictionShared); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", evictionKey, err))
	}
	var why *config.Problem
	if why = p.findMaster(p.Root.Master); why != nil {
		p.Warnings = append(p.Warnings, *why)
	}
	if p.Eviction, why = evictionInstances(l, p.Embedded.Listen != ""); why != nil {
		p.Warnings = append(p.Warnings, *why)
	}
	if insts := l.Instances(metadataKey); len(insts) > 0 {
		p.Metadata = &insts[0]
	}
	if p.MetadataHTTP.Listen != "" && p.Metadata == nil {
		errs = append(errs, errors.New(`metadata_http.listen: there is no metadata backend to serve; set "metadata": {"type": "memory"} or a metadata_server other than P2PHANDSHAKE`))
	}
	p.Transports = inOrder(l.Instances(transportsKey), p.Root.Prefer)
	return p, errors.Join(errs...)
}

// inStore tells that the node is part of a Store.
func (p *Plan) inStore() bool {
	return len(p.Master) > 0 || p.Election != "" || p.Embedded.Listen != ""
}

// inOrder sorts instances by the list prefer, which names instances or types; what it does not name
// comes last, in name order.
func inOrder(insts []config.Instance, prefer []string) []config.Instance {
	rank := func(i config.Instance) int {
		for n, name := range prefer {
			if name == i.Name || name == i.Type {
				return n
			}
		}
		return len(prefer)
	}
	slices.SortStableFunc(insts, func(a, b config.Instance) int { return cmp.Compare(rank(a), rank(b)) })
	return insts
}

// buildAll constructs the instances of one kind in order. A part that cannot run here is left out and
// told to skipped, unless the config requires it.
func buildAll[T any](ctx context.Context, k *module.Kind[T], insts []config.Instance, env func(config.Instance) module.Env, skipped func(config.Instance, error)) ([]T, []config.Instance, error) {
	var parts []T
	var built []config.Instance
	for _, i := range insts {
		part, err := k.Build(ctx, i.Type, env(i), i.Section)
		switch {
		case errors.Is(err, module.ErrSkip) && !i.Required:
			skipped(i, err)
		case err != nil:
			return nil, nil, fmt.Errorf("%s: %w", k.Name(), err)
		default:
			parts, built = append(parts, part), append(built, i)
		}
	}
	return parts, built, nil
}
