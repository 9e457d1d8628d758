//go:build noverbs

package all

import "github.com/mooncake-agent/mooncake/transports"

// Known by name, so that one mooncake.json serves all builds of the node: a section for it is answered with a warning,
// and "required" in it with an error.
func init() {
	transports.Kind.Absent("verbs", "RDMA over InfiniBand verbs", "not in this build", "rdma")
}
