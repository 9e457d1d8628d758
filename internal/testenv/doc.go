// Package testenv gives tests the outside things they need: the real Mooncake wheel, metadata
// services, other processes, the node's own binary, free ports, unreachable addresses and network
// namespaces.
//
// Everything it starts belongs to the test that asked for it and is gone when that test ends, also
// when it fails or when the test process is killed. A thing that this machine lacks skips the test
// with its name, or fails it when CI=true (see [MustNotSkip]); "make test" installs them all.
package testenv
