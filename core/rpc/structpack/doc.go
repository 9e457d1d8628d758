// Package structpack reads and writes struct_pack messages, the serialisation that coro_rpc peers use
// for arguments and results.
//
// A message is a header and a payload:
//
//	u32 LE  hash       bit 0: a metainfo byte follows; bits 31..1: the type code
//	[u8     metainfo]  bits 0-1 width of a compatible length (skipped), bit 2 type literal present,
//	                   bits 3-4 width of every container length: 1, 2, 4 or 8 bytes
//	[literal, 0]       the type literal, NUL terminated
//	payload            little-endian, no padding, no per-struct header
//
// A [Type] describes one wire type and the Go value that it fills; small constructors ([Struct],
// [Vector], [Optional], [Expect], [Variant], ...) compose types, and the literal, the type code, the
// writer and the reader all follow from that one description, so they cannot disagree. Nothing here
// uses reflection. Types are built at start-up and are immutable, hence safe for concurrent use.
//
// Readers are bounded: a length is compared with the bytes that are left before anything is allocated,
// and the memory a message may claim is limited to a multiple of its size. Types cannot be recursive, so
// depth is bounded by the description; [DecodeAny], which follows a literal found in the message,
// has its own limits.
//
// The format was read from alibaba/yalantinglibs (struct_pack, commit 7801bc9a) and checked against
// bytes that it wrote.
package structpack
