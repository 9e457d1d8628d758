// Package interop proves with the real Mooncake wheel that its engines and ours exchange data, in
// both directions and over every metadata service, through failures and restarts of either side. It
// holds only tests; the wheel is driven by the Python programs in testdata.
package interop
