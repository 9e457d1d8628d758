//go:build !noetcd

package all

import _ "github.com/mooncake-agent/mooncake/metadata/etcd" // registers the backend
