package replay

import (
	"cmp"
	"fmt"
	"slices"
)

// Tenant returns the trace of one tenant alone, as a domain of its own would see it.
func (t *Trace) Tenant(tenant uint32) (*Trace, error) {
	out := &Trace{Name: t.Name, BlockTokens: t.BlockTokens, SHA256: t.SHA256, Warnings: t.Warnings}
	ids := make(map[uint32]uint32) // from those of t
	for i := range t.Requests {
		r := t.Requests[i]
		if r.Tenant != tenant {
			continue
		}
		r.first = uint32(len(out.blocks))
		for _, old := range t.Blocks(i) {
			id, ok := ids[old]
			if !ok {
				id = uint32(len(out.keys))
				ids[old] = id
				out.keys, out.names = append(out.keys, t.keys[old]), append(out.names, t.names[old])
				if t.sizes != nil {
					out.sizes = append(out.sizes, t.sizes[old])
				}
			}
			out.blocks = append(out.blocks, id)
		}
		out.Requests = append(out.Requests, r)
	}
	if len(out.Requests) == 0 {
		var there []uint32
		for _, s := range t.tenants() {
			there = append(there, s.Tenant)
		}
		return nil, fmt.Errorf("%s: no request of tenant %d; there are the tenants %d: %w", t.Name, tenant, there, ErrTrace)
	}
	return out, nil
}

// TenantShare is what one tenant asked for.
type TenantShare struct {
	Tenant   uint32 `json:"tenant"`
	Requests int    `json:"requests"`
	Accesses int    `json:"accesses"`
}

// tenants of the trace by number.
func (t *Trace) tenants() []TenantShare {
	at := map[uint32]*TenantShare{}
	for i := range t.Requests {
		r := &t.Requests[i]
		s := at[r.Tenant]
		if s == nil {
			s = &TenantShare{Tenant: r.Tenant}
			at[r.Tenant] = s
		}
		s.Requests++
		s.Accesses += int(r.n)
	}
	out := make([]TenantShare, 0, len(at))
	for _, s := range at {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b TenantShare) int { return cmp.Compare(a.Tenant, b.Tenant) })
	return out
}
