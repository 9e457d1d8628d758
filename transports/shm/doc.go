// Package shm is the transport "shm": two processes of one host and user copy straight between their
// memories. Use it wherever engines share a machine; peers that it does not reach are reached over the
// next transport.
//
// # How
//
// The owner of a segment publishes a socket in the descriptor's extension key (path type "shm": socket,
// host, netns). An initiator on the same booted host connects, and both sides check with SO_PEERCRED that the other
// runs as the same user. Then the owner hands over a fresh control memfd; each side writes a random token into it and
// must get it back from the other, so a path is used only when both really see the same memory. Equal
// addresses or host ids alone prove nothing. See wire.go for the messages.
//
// Regions are fetched when the first op needs them: the owner sends the region's bounds, its number
// (which is never used again) and its memfd, and the initiator maps it. Ops are then copies in the initiator's process;
// the owner's is not involved. When the owner unregisters a region it tells all peers and waits until each has
// finished the piece under way, unmapped the region and said so; a stopped peer makes that end with
// ErrUnquiet. A peer that dies closes its socket, and its mappings have gone before.
//
// Up to 1 MiB is copied within Submit. More is copied by up to "copiers" goroutines in pieces of 1 MiB, of which
// the submitting one is the first for about 8 MiB;
// between two pieces they look at the context, at the peer and at both regions. Nothing polls, and idle
// peers cost one blocked goroutine on each side.
//
// # What can be shared
//
// Memory with a file descriptor: a memfd that is sealed against shrinking, as core/segment's arenas are. For
// anything else Register answers ErrNotShareable, and ops that touch such memory of a peer end with it, so
// that the engine takes the next path. Local memory of ops may be any. The seals of what a peer hands over are
// checked, and copies turn faults into errors, so no peer can bring this process down by SIGBUS.
//
// # Trust
//
// Access flags of regions are kept by the initiator. A region that allows writes is handed over with its
// whole memfd, so a process of the same user can write every object in that segment, and also read it
// after its lease has ended. Processes of one user can do that to each other anyway (ptrace). Where it must not happen by
// accident either, set mode to read-only: the memfd is then handed over by a descriptor that cannot be mapped for
// writing, and writes go over the next path. Regions that allow reading only are always handed over so.
//
// # Config
//
// See [Config]; the keys and their defaults are listed by "mooncake config schema".
//
// # Metrics
//
// All with the label transport (the instance's name), in front of each name mooncake_shm_: bytes_total and
// requests_total {op}, failed_total {reason}, connect_failures_total {reason} (why a peer on this host is reached over
// another path), refused_total {reason}, links, peers, mapped_bytes.
package shm
