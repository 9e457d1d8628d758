// Package memory is a metadata store inside the process: the default of a single node, the store behind
// the embedded HTTP metadata server, and a complete stand-in for a service in tests. It has every ability.
//
// Config keys: url ("memory://", or "memory://NAME" for a store that all backends of this process with the
// same name share) and name, which says the same; lease_ttl. Backends without a name each have a store of their own.
// A store lives as long as a backend on it is open; nothing is kept on disk.
//
// A lease is alive while its backend is open: both live and die in one process, so there is nothing to
// renew. After Close the keys stay for one ttl, as those of a crashed node would.
//
// Metrics: none.
package memory
