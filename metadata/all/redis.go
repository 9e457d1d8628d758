//go:build !noredis

package all

import _ "github.com/mooncake-agent/mooncake/metadata/redis" // registers the backend
