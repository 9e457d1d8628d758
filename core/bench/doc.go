// Package bench measures how fast a Transfer Engine moves bytes, from inside the process that uses it:
// what "mooncake bench transfer" prints.
//
// [Run] drives a [Mover] with a number of threads. Each thread keeps one batch of blocks in flight:
// submit, wait for all, submit again, as upstream's transfer_engine_bench does, so that the figures of
// both can be compared. [Transfer] is the whole benchmark: an engine of its own, a target in a second
// process ([SpawnTarget], [ServeTarget]) or a running engine, and the measured [Result].
//
// GB is 10^9 bytes everywhere. Latency is that of one batch.
package bench
