//go:build noetcd

package all

import "github.com/mooncake-agent/mooncake/metadata"

func init() {
	metadata.Kind.Absent("etcd", "etcd v3, shared with upstream engines", "this binary was built with -tags noetcd")
}
