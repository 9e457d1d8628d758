// Package verbs is the transport "verbs" (upstream's "rdma"): RDMA READ and WRITE between registered memories, over
// InfiniBand or RoCE. It interoperates with unmodified Mooncake engines in both roles. Use it wherever there are RDMA
// devices; peers that it does not reach are reached over the next transport.
//
// # Layers
//
// Everything that touches hardware is behind the interface of package device: package ibv implements it with
// libibverbs.so.1, loaded at run time, package fake in memory with faults on demand. This package never sees a C pointer.
//
// # How
//
// A device (nic.go) is opened once, with one protection domain, one GID and some completion queues, each with a goroutine
// that polls while work is outstanding and sleeps on the completion channel when there is none (poll.go). A region is
// registered with every device, in pieces when it is larger than one of them allows (memory.go).
//
// An endpoint (endpoint.go) is the connection between one of our devices and one of a peer's: qps_per_endpoint RC queue
// pairs, connected by upstream's handshake (connect.go): a message of type 0 with queue pair numbers, the mirrored
// answer, and the ready-ack. Either side may begin, or both at once; both use the same connection. An endpoint that
// fails is never repaired. It leaves the table at once, its queue pairs are moved to the error state, and they are
// destroyed when the device has given all work back, or after 2 s. The next work makes a new one.
//
// A peer handle (peer.go) cuts ops into slices while there is room and chooses a pair of devices, a rail, for each
// (choose.go): devices near to the memory on both sides first, each of ours paired with another one of the peer's. A slice
// that fails takes another rail. A rail has a short pause after each failure and a long one after 5 within 5 s
// (rail.go); when a peer has no other, it is tried once a second all the same.
//
// # Memory
//
// An op holds its region from Submit to its completion. A slice that was posted is reported only after its completion was
// polled or its queue pair was destroyed, so no memory is unregistered that a work request may touch. A cancelled op waits
// for its posted work; when nothing moves for 250 ms, and after 1.2 s in any case, its endpoints are made to fail, and slices of
// other ops that were posted there are moved again. What peers do ends with the registration: the device checks keys.
//
// # Locks
//
// Transport.mu, registry.mu (held while devices are opened) and registration.once stand alone, in this order before
// all others. Then store.mu → endpoint.mu → nic.mu, queue.mu. Peer.mu → rail.mu, nic.mu; no endpoint is locked under
// Peer.mu, and no peer under endpoint.mu. Completions are called without a lock.
//
// # Config
//
// See [Config]; the keys and their defaults are listed by "mooncake config schema", and docs/rdma.md tells which matter.
//
// # Metrics
//
// All with the label transport (the instance's name), in front of each name mooncake_verbs_: bytes_total, requests_total and
// request_seconds {op}, failed_total {reason}, work_total {device, op}, work_failures_total {device, status},
// work_retries_total {reason}, connects_total {role, result}, rail_pauses_total, device_events_total {device, event},
// device_up {device}, endpoints {device}, endpoints_evicted_total, memory_regions, poll_sleeps_total.
package verbs
