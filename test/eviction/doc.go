// Package eviction replays recorded traffic against running masters, ours and upstream's, over their RPC: what a
// master throws away is compared where it counts, in blocks whose prefill is saved.
//
//	go test ./test/eviction -run BesideUpstream -v -sizes 5000,10000,20000,50000 -requests 0
//
// prints the table of docs/eviction.md. By default a part of the trace is replayed at one size.
package eviction
