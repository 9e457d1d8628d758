// Package segment owns the memory that a node lends to its peers.
//
//   - [Arena] is one sealed memfd, mapped once, whose space is reserved before it is published: a
//     request that does not fit is refused at start with the numbers, instead of a SIGBUS under load.
//   - [Region] is the registered piece: a slice of an arena ([Arena.Region]) or memory of the
//     caller's own ([Wrap]).
//   - [Index] finds the region that holds an address, without locks and without allocation, and lets
//     the owner wait until nobody touches a region any more.
//   - [Copy] and [Guard] turn a fault on memory that a careless owner unmapped into an error.
//
// Life of memory: New → Region → Index.Add → (Find … Release)* → Index.Remove → Region.Close →
// Arena.Close. Published addresses are the real addresses of the mapping and never change: peers
// compute with them, as with upstream's engine.
//
// Config section "segment": huge_pages, numa_node, prefault (see [Options]).
package segment
