// Package master is the brain of the object store: which objects there are, where their replicas lie, who
// may read, write or remove them, which space is free and what is thrown away when none is. It holds no
// object bytes and does no I/O; clients move the data between each other.
//
// [Service] has one method for each RPC of the Store master (mooncake::WrappedMasterService), named as in
// package wire and shaped like a wire.Handler: it reads *req and fills *resp, whose slices are reused. A
// serving layer registers them as they are:
//
//	wire.Handle(server, wire.ExistKey, resolver, func(c *wire.Call, req *wire.KeyRequest, resp *wire.Result[bool]) {
//		service.ExistKey(req, resp)
//	})
//
// Methods that take a context visit every object and are to run off the event loop; all others are fast,
// do no I/O and may be called from any number of goroutines. Strings in requests may share memory with a
// connection's buffer: the service clones what it keeps. Strings in answers belong to the service and stay
// valid.
//
// # Configuration, metrics
//
// [Config] has the keys, with upstream's names where upstream has them; most tests of behaviour are a reading of
// one key. [Counters] and [Stats] hold the numbers behind upstream's metrics and ours, core/master/admin
// exports them.
//
// # Objects
//
// The table is made for memory: about 240 bytes a key of 40 bytes with one replica, eviction order and space
// accounting included, in blocks without pointers, so that a collection of millions of keys is short. Nothing
// scans it on a timer: leases are compared when it matters, deadlines that few objects have wait in heaps
// (timers.go), running writes in a queue per shard, and a segment knows whose ranges lie in it.
//
// A write is unfinished (PROCESSING) from PutStart to PutEnd. Another client may take the key over after the
// discard timeout; the bytes of the first are held until the release timeout, and its late calls are refused.
// Bytes that a running read may still be looking at are held until its lease has ended, however the object
// went away ([hold]).
//
// # Eviction
//
// One policy instance per domain decides (package eviction); its calls are serialised by the domain's lock, and
// none happens on the way of a get. Policies that run code from outside work on a goroutine of their own (package
// aside): a put takes what they have named ahead, or the service's own order; only the background waits for them. Objects and policy meet in the ring: events are pushed with the object's shard
// locked, in the order of what happened, and told before each question for victims. Victims are checked against
// the object at the moment of removal (evict.go: refusal). What is refused for a lease is set aside until the lease
// ends, so that thousands of leased objects are not looked at again for each put. The service's own tail-first LRU
// (lru.go) is the order where no policy is configured, when one fails, and of RESTORE.
//
// What differs from upstream's master is listed in docs/COMPATIBILITY.md, section "Store master".
//
// # Locks
//
// In this order; a goroutine that holds one takes only locks further down:
//
//	drains.mu      drain jobs
//	domain.mu      a domain's policy instance and everything about choosing victims
//	registry.mu    segments and names: mount, unmount
//	shard.mu       objects, by key hash; several shards in index order
//	disks.mu, tenants.mu, groups.mu, then the locks of a diskOwner and of a group
//	liveness.mu, tasks.mu, promoter.mu, ring.mu, timers.mu, pressure.mu, segment.mu (an address space): leaves
//
// The liveness of clients has a lock of its own that is held for a few instructions, so a ping never waits
// for object work.
package master
