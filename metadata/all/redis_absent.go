//go:build noredis

package all

import "github.com/mooncake-agent/mooncake/metadata"

func init() {
	metadata.Kind.Absent("redis", "one Redis server, shared with upstream engines", "this binary was built with -tags noredis")
}
