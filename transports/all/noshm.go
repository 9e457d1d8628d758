//go:build noshm

package all

import "github.com/mooncake-agent/mooncake/transports"

func init() {
	transports.Kind.Absent("shm", "shared memory between processes of one host and user", "left out of this binary")
}
