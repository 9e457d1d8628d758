// Package serve puts the Store master on the network: the RPC server with every function in every version, the
// listeners for old versions, the admin HTTP server and, where it is asked for, the HTTP metadata server. The
// command "mooncake master" and a node embed the same [Server]:
//
//	s, err := serve.New(serve.Options{Config: serve.DefaultConfig(), Master: master.DefaultConfig(), Log: log, Metrics: registry})
//	err = s.Start(ctx)   // everything listens, or nothing does
//	...
//	err = s.Close(ctx)
//
// Requests run on a few event loops. Those that look at every object (patterns, remove all) and those with large
// bodies leave the loops for workers, so that a ping never waits for them.
package serve
