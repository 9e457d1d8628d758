//go:build !noshm

package all

import _ "github.com/mooncake-agent/mooncake/transports/shm" // shared memory between processes of one host
