package client

import (
	"context"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

type (
	startResult = wire.Result[[]wire.Replica]
	endResult   = wire.Result[wire.Void]
)

// putVerb is the family of functions that put or that upsert.
type putVerb struct {
	name        string
	start       *wire.Method[wire.PutStartRequest, startResult]
	end         *wire.Method[wire.PutEndRequest, endResult]
	revoke      *wire.Method[wire.PutRevokeRequest, endResult]
	batchStart  *wire.Method[wire.BatchPutStartRequest, []startResult]
	batchEnd    *wire.Method[wire.BatchPutEndRequest, []endResult]
	batchRevoke *wire.Method[wire.BatchPutRevokeRequest, []endResult]
}

var (
	puts    = putVerb{"put", wire.PutStart, wire.PutEnd, wire.PutRevoke, wire.BatchPutStart, wire.BatchPutEnd, wire.BatchPutRevoke}
	upserts = putVerb{"upsert", wire.UpsertStart, wire.UpsertEnd, wire.UpsertRevoke, wire.BatchUpsertStart, wire.BatchUpsertEnd, wire.BatchUpsertRevoke}
)

func (v *putVerb) callStart(ctx context.Context, p *putting, ws []*writing) ([]startResult, error) {
	c := p.c
	if !p.batch {
		r, err := call(ctx, c.quick, v.start, once, &wire.PutStartRequest{
			Client: c.id, Key: ws[0].Key, Length: ws[0].size, Config: p.spec.config(ws), Tenant: c.tenant})
		return []startResult{r}, err
	}
	req := wire.BatchPutStartRequest{Client: c.id, Keys: make([]string, len(ws)), Lengths: make([]uint64, len(ws)), Config: p.spec.config(ws), Tenant: c.tenant}
	for i, w := range ws {
		req.Keys[i], req.Lengths[i] = w.Key, w.size
	}
	return call(ctx, c.quick, v.batchStart, once, &req)
}

// callEnd may be sent twice: the master confirms what is complete already.
func (v *putVerb) callEnd(ctx context.Context, p *putting, ws []*writing) ([]endResult, error) {
	c := p.c
	if !p.batch {
		r, err := call(ctx, c.quick, v.end, idempotent, &wire.PutEndRequest{
			Client: c.id, Meta: wire.ObjectMeta{Key: ws[0].Key, Checksum: ws[0].sum}, Type: wire.ReplicaAll, Tenant: c.tenant})
		return []endResult{r}, err
	}
	req := wire.BatchPutEndRequest{Client: c.id, Metas: make([]wire.ObjectMeta, len(ws)), Type: wire.ReplicaAll, Tenant: c.tenant}
	for i, w := range ws {
		req.Metas[i] = wire.ObjectMeta{Key: w.Key, Checksum: w.sum}
	}
	return call(ctx, c.quick, v.batchEnd, idempotent, &req)
}

func (v *putVerb) callRevoke(ctx context.Context, p *putting, ws []*writing, typ wire.ReplicaType) ([]endResult, error) {
	c := p.c
	if !p.batch {
		r, err := call(ctx, c.quick, v.revoke, idempotent, &wire.PutRevokeRequest{Client: c.id, Key: ws[0].Key, Type: typ, Tenant: c.tenant})
		return []endResult{r}, err
	}
	req := wire.BatchPutRevokeRequest{Client: c.id, Keys: make([]string, len(ws)), Type: typ, Tenant: c.tenant}
	for i, w := range ws {
		req.Keys[i] = w.Key
	}
	return call(ctx, c.quick, v.batchRevoke, idempotent, &req)
}
