// Package jsoncpp reads and writes JSON the way the jsoncpp library with its default settings does,
// because Mooncake's C++ engines use it for every document they exchange.
//
// The reader accepts what jsoncpp accepts beyond the standard (comments, trailing commas, a byte order
// mark, text after the root value) and converts scalars by jsoncpp's rules (see [Reader.AsString] and
// [Reader.AsUint]). Where jsoncpp throws, and so aborts a C++ process that does not catch, it answers
// an error. Integers never pass through a float64. Nesting is bounded by [MaxDepth].
package jsoncpp
