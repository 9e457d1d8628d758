// Package conformance holds what every eviction policy has to do, as checks that need nothing of package
// testing: `go test` runs them through package evictiontest, `mooncake policy check` through [Failures].
package conformance
