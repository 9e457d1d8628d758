//go:build noverbs

package all

import "github.com/mooncake-agent/mooncake/transports"

// PortMTU asks an RDMA device for the active MTU of a port in bytes; nil in builds without verbs.
var PortMTU func(device string, port int) (int, error)

// Known by name, so that one mooncake.json serves all builds of the node: a section for it is answered with a warning,
// and "required" in it with an error.
func init() {
	transports.Kind.Absent("verbs", "RDMA over InfiniBand verbs", "not in this build", "rdma")
}
