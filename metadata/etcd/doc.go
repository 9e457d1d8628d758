// Package etcd keeps metadata in etcd, in the keys and bytes that upstream's engines use, so that wheel
// engines and ours share one cluster. Use it when nodes come and go: its leases remove the entries of a
// killed node, and its watches report changes at once.
//
// Config keys: url ("etcd://a:2379,b:2379", or the list alone; "," and ";" separate), endpoints (the same as
// a list), username, password, tls (enabled, ca, cert, key, server_name, insecure_skip_verify), dial_timeout,
// timeout, lease_ttl. An endpoint may begin with https://; the default port is 2379. What the URL and a key both say
// must agree. Values above etcd's own limit (1.5 MiB unless --max-request-bytes raises it) are refused with
// ErrTooLarge.
//
// One endpoint is used at a time, beginning at a random one. An attempt that gets no answer within its share
// of timeout moves on to the next endpoint on a fresh connection, and so do lost connections and members that
// refuse; the call itself fails only when its deadline has passed. So a leader that hangs or died costs at most
// a few seconds. gRPC pings (each 10 s) are sent only while a call or a watch is open: etcd answers pings on
// idle connections with GOAWAY too_many_pings.
//
// Writes are repeated on another member after a timeout: a hung member that wakes up could in principle still
// apply the first attempt, after later writes. Commits are not repeated once they may have been sent.
//
// After a change of leader etcd extends all leases, so entries of a dead node may then stay for up to two ttl.
//
// Metrics: none.
package etcd
