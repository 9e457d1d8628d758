// Package all registers every built-in eviction policy. Importing it is what puts them into a binary.
package all

import (
	_ "github.com/mooncake-agent/mooncake/eviction/adaptive" // learns; the default
	_ "github.com/mooncake-agent/mooncake/eviction/arc"      // recency and frequency, balanced
	_ "github.com/mooncake-agent/mooncake/eviction/clock"    // second chance
	_ "github.com/mooncake-agent/mooncake/eviction/fifo"     // first in, first out
	_ "github.com/mooncake-agent/mooncake/eviction/gdsf"     // value per byte
	_ "github.com/mooncake-agent/mooncake/eviction/lfu"      // least frequent
	_ "github.com/mooncake-agent/mooncake/eviction/lru"      // least recent
	_ "github.com/mooncake-agent/mooncake/eviction/lruk"     // k-th last use
	_ "github.com/mooncake-agent/mooncake/eviction/random"   // any
	_ "github.com/mooncake-agent/mooncake/eviction/s3fifo"   // small and main queue
	_ "github.com/mooncake-agent/mooncake/eviction/sieve"    // hand that stays
)
