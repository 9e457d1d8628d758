// Package versions tells which protocol version each caller of the master speaks, so that one master serves
// clients of all versions at the same time.
//
// A request names no version. Its type code says which versions send such a request (package wire, "candidates"),
// and calls of one client come on several connections. So evidence is collected where it is certain:
//
//   - a connection belongs to one process: what is possible for it is the intersection of the candidates of its
//     requests;
//   - a client id belongs to one process too: its connections share what is known about any of them;
//   - connections to a pinned listener (--rpc_compat=0.3.7:50057) speak that version.
//
// Only where candidates with different answers are left, a guess is needed: GetReplicaList of a reader that has
// not written yet is the common case. The guess is what the clients with open connections from the same address
// have in common, if they agree; else the newest candidate. A caller that cannot decode an answer hangs up within
// a millisecond and does not ask again on that connection; so a connection that ends so soon after a guessed
// answer flips the guess for its address, and one that goes on confirms it. A program that reads an object and
// ends takes longer; an end some milliseconds after the answer flips only when its caller comes back at once. While clients of an address disagree,
// a flip holds for its next connection only, which most likely is the same caller's. From an address of
// the master's own host such a connection is not guessed at first: the kernel tells which process it belongs to, and
// the other connections of that process tell the version.
//
// ServiceReady is never guessed: the default listener answers it as 0.3.8 and later do.
//
// # Metrics
//
//	mooncake_master_version_clients{version}          clients with an open connection
//	mooncake_master_version_connections{version}      open connections
//	mooncake_master_version_guesses_total{result}     made, confirmed, rejected, spared
//	mooncake_master_version_contradictions_total      requests that no version known for the caller sends
//	mooncake_master_service_ready_hangups_total       callers that left after ServiceReady, as 0.3.7 clients do
//
// A version that is not decided yet is labelled with all that are possible, as "0.3.12 0.3.13".
package versions
