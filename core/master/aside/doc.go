// Package aside lets a policy that runs code from outside work on a goroutine of its own, so that nobody who tells it
// something or wants victims waits for it.
//
// Use it for policies that take long now and then: WebAssembly guests, programs of their own. Built-in policies are
// faster than the hand-over.
//
// # How
//
// Apply queues the events. The goroutine tells them in order and then asks for victims ahead of need; Victims gives out
// what was named, as long as nothing has happened to it since: a block that was removed, refused or pinned is taken off,
// one that was used is refused with CodeUsed besides. Where nothing is left Victims names nobody, and the caller helps
// itself as with any policy that names too few. The next answer replaces what is left of the one before; it is
// asked for when half of that is gone. How many are asked for doubles when they did not last, up to a sixteenth of what
// is resident, and shrinks again.
//
// Answers are kept for each question by itself: victims of one tenant, on one segment, soft pins allowed. The first time
// a question comes there is no answer for it yet; one that was not heard for a minute is forgotten.
//
// # Order
//
// The policy hears everything in the order in which Apply got it, so a handle that is used again means the new object
// to it from the INSERT on, and what it named before counts for nothing after the REMOVE.
//
// # Limits
//
// When 32,768 events wait, reads and questions for keys (ACCESS, PROBE, GHOST) are dropped and counted; 262,144 are a
// fault, [ErrBehind]: the host is to fill a new instance.
package aside
