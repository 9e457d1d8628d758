// Package rpc speaks coro_rpc, the RPC protocol of yalantinglibs, as a server and as a client. It
// knows frames, connections and error codes, but no function of any service; package wire declares
// the Mooncake master's functions on top of it, package structpack the encoding of bodies.
//
// # Frames
//
// Integers are little-endian, headers are packed. A request is 20 bytes (magic 0x15, version 0,
// serialize type 0, message type, u32 sequence, u32 function id, u32 body length, u32 attachment length)
// and the body and attachment; an answer 16 bytes (magic, version, error code, message type, u32
// sequence, u32 body length, u32 attachment length) and the same. Answers are matched by sequence and may
// come in any order. Attachments are accepted and ignored.
//
// # Server
//
//	s, err := rpc.NewServer(cfg, rpc.Options{Log: log, Metrics: reg, HTTP: mux})
//	s.Handle(rpc.Function{ID: id, Name: "ExistKey"}, func(c *rpc.Call) { ... })
//	err = s.Listen(ln, nil)
//	...
//	err = s.Close(ctx)
//
// A few event loops own all connections. A readable connection costs one read and one write: all whole
// requests that were read are handled on the loop, one after the other, and their answers leave
// together. Handlers must therefore be short; a slow one is registered with [Server.HandleSlow]
// or calls [Call.Later], and runs on a bounded number of goroutines. Requests with large bodies (slow_body)
// leave the loop by themselves.
//
// Reaction to malformed input, as the C++ server: wrong magic, a version above 0, another serialize
// type and a body above max_body close the connection; an unknown function is answered with code 11;
// arguments that do not decode are the handler's business and answered with code 4. None of these
// answers closes the connection.
//
// # Config keys
//
// See [ServerConfig] and [ClientConfig].
//
// # Metrics
//
//	mooncake_rpc_connections                    open connections
//	mooncake_rpc_connections_accepted_total
//	mooncake_rpc_connections_refused_total      {reason}: total, address, descriptors
//	mooncake_rpc_connections_closed_total       {reason}
//	mooncake_rpc_requests_total                 {function}; "unknown" for unregistered ids
//	mooncake_rpc_error_answers_total            {code}: answers with an RPC error
//	mooncake_rpc_received_bytes_total, mooncake_rpc_sent_bytes_total
//	mooncake_rpc_slow_requests                  requests on or waiting for a worker
//	mooncake_rpc_slow_request_seconds           histogram, waiting included
//	mooncake_rpc_paused_total                   {reason}: connections not read for a while: address, workers, output
//	mooncake_rpc_buffered_bytes                 partial requests and unsent answers
package rpc
