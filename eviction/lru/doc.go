// Package lru is the policy "lru": the block that was not used for the longest time goes first.
//
// Use it where a predictable, explainable order matters, or as the yardstick for others. Because the host
// delivers a batch deepest block first, the end of a chain is always older than its beginning ("tail first"),
// which on chains is the same as evicting leaves only: a block whose successors are resident stays.
//
// Config keys: none. Memory: 10 bytes a handle. Metrics: the store's, by policy name.
//
// P. J. Denning, "The working set model for program behavior", CACM 11(5), 1968; tail first as in vLLM's and
// SGLang's prefix caches.
package lru
