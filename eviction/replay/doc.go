// Package replay is the simulator behind `mooncake replay`: it runs recorded traffic through any eviction
// policy, by the same interface and the same event stream as the store, so that an operator can compare
// policies and sizes before switching one.
//
// # Method
//
// For each request of the trace: look up the whole chain in the cache as it stands (the prefix hit is the
// number of leading resident blocks, the only ones that save prefill), then visit its blocks one by one,
// deepest first as the store does: a resident block is touched, an absent one is inserted after evicting as
// much as it needs. The whole trace is counted unless Options.WarmUp says otherwise. Requests with equal
// times keep the order of the file. With Options.HeadFirst blocks are visited from the first to the last, as
// most published simulators do.
//
// A policy sees what the store would tell it: chain position, parent, how many blocks of the request were found
// (Matched) and how many are new (Added), partial last blocks, time.
//
// Options turn on what a real store adds: calls of a client instead of whole requests, leases, the time until a
// block is computed, upstream's watermark. A policy that names victims that are not there, or fails, is dealt with as in the
// store, on the clock of the trace: the host's own LRU helps out, a failed instance is replaced and filled with RESTORE, and
// after three failures in ten minutes it stays off. All of it is counted in Result.
//
// Traces come from [Open] in any [Format]; [Write] turns one into another and [Analyze] describes it. [Sweep] runs
// a grid of policies and sizes beside [Min] and [Infinite], and an [Assertion] is a claim about its rows.
//
// Results depend only on trace, policy, size, seed and options, not on the machine or the number of threads.
package replay
