// Package transfer is the Transfer Engine: registered memory becomes a segment that peers can read and
// write, and bytes move between local memory and the segments of others. It is wire-compatible with
// unmodified Mooncake engines (classic Transfer Engine over tcp).
//
//	e, err := transfer.New(transfer.Options{Config: transfer.DefaultConfig(), LocalName: "10.0.0.11", Transports: ...})
//	err = e.Start(ctx)
//	err = e.Register(ctx, region)                   // now peers can reach it
//	s, err := e.Open(ctx, "10.0.0.12:15428")        // a peer's segment
//	err = e.Write(ctx, s, local, s.Descriptor().Buffers[0].Addr)
//	err = e.Close(ctx)
//
// # Names
//
// Without a metadata service (P2P mode) a segment is called host:port, the address of its handshake
// daemon, which hands out the descriptor. With one, the name is local_hostname and the descriptor lies
// under "mooncake/ram/<name>"; "mooncake/rpc_meta/<name>" says where the daemon is. See [Engine.Open].
//
// # Addresses and units
//
// All sizes are bytes. A remote address is the absolute address that the owner published in
// Descriptor.Buffers; a transfer must lie inside one buffer.
//
// # Memory
//
// The caller owns all memory. Local memory of a request may be registered or not; it must stay valid
// and, for reads, untouched until the request is in a final state. A final state with an error that
// wraps [ErrUnquiet] is the exception: see there.
//
// # Failures
//
// A request that fails because the peer cannot be reached, has closed the connection or refuses the
// range is tried once more, after the peer's descriptor was read again where that can help. Every
// batch has a total deadline (transfer_timeout plus 1 ns per byte), and every request reaches exactly
// one final state. Requests to different peers share no queue and no limit.
//
// # Paths
//
// Memory of this process is copied. Everything else goes over the first of Options.Transports that the peer's
// descriptor offers and that is not down. A request that fails because of its path is tried on the next one within
// its deadline, and the path is left alone for a second, doubling up to 16 s; then the next request
// tries it again. Memory that a transport cannot serve (ErrNotShareable) takes the next path without that.
// [Engine.Segments] tells which path each segment uses and why.
//
// # Memory of the engine itself
//
// [Engine.Transfer], Read and Write use batches again and allocate nothing once they have run a few times under the same
// context; a batch of [Engine.Submit] can be given back with [Batch.Free]. Up to 16 idle batches are kept, with a watch
// over the context they were used with last. An idle peer costs 10 to 20 KiB and goroutines that are blocked.
//
// # Metrics
//
// mooncake_transfer_tasks_total{op,result}, _bytes_total{op}, _failures_total{reason}, _retries_total{reason},
// _descriptor_refreshes_total{result}, _publishes_total{result}, _notifies_total{event}, _batches_total,
// _batches_inflight, _inflight_bytes, _segments, _regions, _registered_bytes, _notifies_queued and
// _task_completion_latency_us, _path_bytes_total{path,op}, _path_switches_total{path,reason}; the daemon's are in package handshake.
package transfer
