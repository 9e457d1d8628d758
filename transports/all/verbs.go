//go:build !noverbs

package all

import "github.com/mooncake-agent/mooncake/transports/verbs" // RDMA devices

// PortMTU asks an RDMA device for the active MTU of a port in bytes; nil in builds without verbs.
var PortMTU func(device string, port int) (int, error) = verbs.PortMTU
