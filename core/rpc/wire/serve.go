package wire

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mooncake-agent/mooncake/core/rpc"
)

// Call is a request in a typed handler.
type Call struct {
	*rpc.Call
	// Version is the caller's, as far as the resolver knows; Candidates are those that send such a
	// request.
	Version    Version
	Candidates VersionSet
	leave      bool
}

// Leave takes a request off the event loop: if it returns true, the handler returns at once and is
// called again on a worker, where Leave returns false.
func (c *Call) Leave() bool {
	c.leave = !c.Slow()
	return c.leave
}

// Handler serves one function in every version. It fills *resp, which comes in as the zero value
// but for the capacity of its slices; or it calls Leave or Fail. req, resp and everything in them, strings
// included, belong to the caller again when the handler returns.
type Handler[Req, Resp any] func(c *Call, req *Req, resp *Resp)

// Resolver tells which version a caller speaks.
type Resolver interface {
	// Resolve returns one of candidates, the versions that send this request; it is never empty.
	// client is the id in the request, zero if it has none. ambiguous tells that the candidates expect
	// different answers; else the choice only informs the handler. It is called for every request,
	// concurrently, and must be fast.
	Resolve(c *rpc.Call, client UUID, candidates VersionSet, ambiguous bool) Version
}

// NewestResolver takes every caller for the newest candidate.
type NewestResolver struct{}

// Resolve is part of Resolver.
func (NewestResolver) Resolve(_ *rpc.Call, _ UUID, candidates VersionSet, _ bool) Version {
	v, _ := candidates.Newest()
	return v
}

// Handle registers h for m in all its versions, on the event loop: h must not block.
func Handle[Req, Resp any](s *rpc.Server, m *Method[Req, Resp], r Resolver, h Handler[Req, Resp]) {
	s.Handle(m.Function(), newHandler(m, r, h))
}

// HandleSlow registers h for m in all its versions, on the workers: h may block until its context ends.
func HandleSlow[Req, Resp any](s *rpc.Server, m *Method[Req, Resp], r Resolver, h Handler[Req, Resp]) {
	s.HandleSlow(m.Function(), newHandler(m, r, h))
}

// Function returns id and name for the rpc package.
func (m *Method[Req, Resp]) Function() rpc.Function { return rpc.Function{ID: m.id, Name: m.name} }

// scratch is what one running handler needs; it is reused.
type scratch[Req, Resp any] struct {
	call Call
	req  Req
	resp Resp
}

// keepScratch is the largest request or answer after which the scratch is used again, so that one
// large batch does not hold its memory for ever.
const keepScratch = 64 << 10

func newHandler[Req, Resp any](m *Method[Req, Resp], r Resolver, h Handler[Req, Resp]) rpc.Handler {
	pool := sync.Pool{New: func() any { return new(scratch[Req, Resp]) }}
	_, hasClient := any(new(Req)).(clientRequest)
	newest, _ := m.Versions().Newest()
	reset := m.layouts[newest].out.Reset
	var serve rpc.Handler
	serve = func(c *rpc.Call) {
		x := pool.Get().(*scratch[Req, Resp])
		set, ambiguous, err := m.DecodeRequest(c.Body(), &x.req, true)
		if err != nil {
			c.FailArguments()
			return
		}
		var client UUID
		if hasClient {
			client = any(&x.req).(clientRequest).clientID()
		}
		x.call = Call{Call: c, Version: r.Resolve(c, client, set, ambiguous), Candidates: set}
		reset(&x.resp)
		h(&x.call, &x.req, &x.resp)
		if x.call.leave {
			c.Later(serve)
		}
		if c.Answered() {
			return // rare, so the scratch need not be kept
		}
		buf, err := m.AppendResponse(c.Buffer(), x.call.Version, &x.resp, c.Literal())
		if err != nil {
			c.Fail(rpc.CodeHandlerFailed, fmt.Sprintf("%s: the answer has no form in version %s", m.name, x.call.Version))
			return
		}
		c.Done(buf)
		if len(c.Body()) < keepScratch && len(buf) < keepScratch {
			x.call = Call{}
			pool.Put(x)
		}
	}
	return serve
}

// Invoke calls m on a server of version v. Errors are those of [rpc.Client.Call]; application errors
// are in the result.
func Invoke[Req, Resp any](ctx context.Context, c *rpc.Client, m *Method[Req, Resp], v Version, req *Req) (resp Resp, err error) {
	buf := requests.Get().(*[]byte)
	defer requests.Put(buf)
	if *buf, err = m.AppendRequest((*buf)[:0], v, req, c.Config().Literal); err != nil {
		return resp, err
	}
	body, err := c.Call(ctx, m.Function(), *buf)
	if cap(*buf) > keepScratch {
		*buf = nil
	}
	if err != nil {
		return resp, err
	}
	if err := m.DecodeResponse(body, v, &resp, true); err != nil { // body is ours and stays
		return resp, fmt.Errorf("rpc: %s at %s: %w: %w", m.name, c.Address(), rpc.ErrBadAnswer, err)
	}
	return resp, nil
}

var requests = sync.Pool{New: func() any { return new([]byte) }}

// Unwrap turns a result into value and error; the error is an [ErrorCode].
func Unwrap[T any](r Result[T]) (T, error) {
	if r.Code != OK {
		return r.Value, r.Code
	}
	return r.Value, nil
}

// CodeOf returns the code that the C++ client reports for an error: RPC_TIMEOUT, RPC_FAIL, or the code
// itself.
func CodeOf(err error) ErrorCode {
	var code ErrorCode
	switch {
	case err == nil:
		return OK
	case errors.As(err, &code):
		return code
	case errors.Is(err, rpc.ErrTimeout):
		return ErrRPCTimeout
	}
	return ErrRPCFail
}

// clientRequest is a request that names its client.
type clientRequest interface{ clientID() UUID }

func (r *PutStartRequest) clientID() UUID          { return r.Client }
func (r *BatchPutStartRequest) clientID() UUID     { return r.Client }
func (r *PutEndRequest) clientID() UUID            { return r.Client }
func (r *PutRevokeRequest) clientID() UUID         { return r.Client }
func (r *BatchPutEndRequest) clientID() UUID       { return r.Client }
func (r *BatchPutRevokeRequest) clientID() UUID    { return r.Client }
func (r *BatchReplicaClearRequest) clientID() UUID { return r.Client }
func (r *MountSegmentRequest) clientID() UUID      { return r.Client }
func (r *ReMountSegmentRequest) clientID() UUID    { return r.Client }
func (r *UnmountSegmentRequest) clientID() UUID    { return r.Client }
func (r *ClientRequest) clientID() UUID            { return r.Client }
func (r *LocalDiskRequest) clientID() UUID         { return r.Client }
func (r *ReportSSDCapacityRequest) clientID() UUID { return r.Client }
func (r *NotifyOffloadRequest) clientID() UUID     { return r.Client }
func (r *PromotionAllocRequest) clientID() UUID    { return r.Client }
func (r *ObjectTaskRequest) clientID() UUID        { return r.Client }
func (r *CopyStartRequest) clientID() UUID         { return r.Client }
func (r *MoveStartRequest) clientID() UUID         { return r.Client }
func (r *EvictDiskRequest) clientID() UUID         { return r.Client }
func (r *BatchEvictDiskRequest) clientID() UUID    { return r.Client }
func (r *FetchTasksRequest) clientID() UUID        { return r.Client }
func (r *CompleteTaskRequest) clientID() UUID      { return r.Client }
