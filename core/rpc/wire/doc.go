// Package wire declares the RPCs of the Mooncake Store master: function names and ids, argument and
// result layouts of every protocol version that is spoken, error codes.
//
// The Go types of this package hold what the newest version carries (a superset); the layouts in
// methods.go say, next to each other, how each version spells it:
//
//	var Remove = define("Remove",
//		at(V0_3_7, args(f.key, f.notForced, f.noTenant), void),
//		at(V0_3_9, args(f.key, f.force, f.noTenant), void),
//		at(V0_3_12, args(f.key, f.force, f.tenant), void))
//
// A version inherits every layout that it does not change, so a new Mooncake version is one [Version]
// constant plus one line for each function it changed. What a version does not carry is filled in on
// reading (tenant "default", not forced, ...) and dropped on writing. Tests compare all ids, type codes
// and literals with those of the real headers and the bytes of real clients and masters.
//
// Function ids never change between versions; the type code of the arguments tells layouts apart.
// Where one request layout belongs to several versions whose answers differ (see
// [Method.Candidates]), the caller's version must be known from elsewhere; [Handle] asks a [Resolver].
package wire
