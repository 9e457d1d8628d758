// Package tcp is the transport "tcp": plain TCP sockets, wire-compatible with unmodified Mooncake
// engines in both roles. Use it everywhere; it is what every peer speaks.
//
// # Wire
//
// A request is a 24-byte header (size, absolute address, opcode) and, for a WRITE, the payload. Framing
// v2, announced by tcp_proto_version 2, adds a status frame to each answer: a v2 WRITE is complete when
// its bytes are in the target's memory, and a range that is not registered is refused with a status.
// With v1 (engines before 0.3.12, or proto = "1") a WRITE completes when it is sent, and a refused one
// is lost without a word: nothing else can be known. See wire.go, and testdata/golden.json for recorded
// connections.
//
// # Serving
//
// A goroutine a connection; the kernel moves payload straight into and out of the registered region.
// Requests take effect in order; answers to pipelined small requests leave together. Bad ranges are
// refused before a byte is touched, memory that its owner has unmapped ends the connection with a
// status. Connections are never closed for being idle, because upstream's clients use pooled
// connections again without a check. The bound is max_connections; beyond it the longest idle one of
// the address with most connections goes.
//
// # Calling
//
// Up to lanes_per_peer connections a peer, opened on demand and retired when idle. Requests are
// pipelined: header and payload of many requests leave in one system call, answers are scattered into
// local memory by one. What fails on a re-used connection before a byte of its answer is sent again once
// on a fresh one; what was pipelined behind a refused or cancelled request is sent again as well.
// Submit blocks when max_queued requests wait. A peer that cannot be connected is paused, for all
// handles of its address, and costs others nothing.
//
// Timeouts are sampled by one goroutine (they fire up to a fifth of their time late, at most 2 s), so that
// the data path sets no timers: progress_timeout (no byte moved), status_timeout (sent, not answered),
// stall_timeout (served connection that stops in mid-request).
//
// A local region may be any memory, registered or not. Memory that faults fails its own op only.
//
// # Config
//
// See [Config]; the keys and their defaults are listed by "mooncake config schema".
//
// # Metrics
//
// All with the label transport (the instance's name), in front of each name mooncake_tcp_:
// bytes_total, requests_total {role, op}, request_seconds {op}, failed_total {reason},
// lane_retries_total {reason}, lanes, connect_failures_total for our own requests; rejected_total
// {reason}, connections, connections_accepted_total, connections_evicted_total,
// connections_refused_total for served ones; stalled_total {role}.
package tcp
