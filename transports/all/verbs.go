//go:build !noverbs

package all

import _ "github.com/mooncake-agent/mooncake/transports/verbs" // RDMA devices
