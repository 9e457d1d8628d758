// Package all links the metadata backends into a binary. The build tags noetcd and noredis leave one out; it
// is then listed as absent, with the reason.
package all

import (
	_ "github.com/mooncake-agent/mooncake/metadata/http"   // registers the backend
	_ "github.com/mooncake-agent/mooncake/metadata/memory" // registers the backend
)
