// Package device is the seam between the transport "verbs" and what drives RDMA hardware: the part of the verbs API
// that the transport needs and no more. Package ibv implements it with libibverbs, package fake in memory with
// faults on demand.
//
// # Ownership
//
// A [Provider] makes devices, a [Device] makes memory regions, completion queues and queue pairs, and each is closed
// by who made it, children first: queue pairs before their completion queue, everything before the device. Closing
// in another order, and using what was closed, is an error of the caller; implementations answer it with an
// error ([ErrClosed] where they can tell) and never crash. Close and Destroy are idempotent.
//
// # Memory
//
// A posted [Work] hands [Local, Local+Len) to the device until its [Completion] was polled. A queue pair's Destroy takes it
// back too: when it has returned nil, no work of that queue pair touches memory any more, completions or not. A memory
// region's Close returns nil when neither peers nor local work can reach the memory through it any more; then it
// may be unmapped.
//
// # Concurrency
//
// Methods of Provider, Device and Memory may be called from any goroutine at once. A CQ is polled and armed by one
// goroutine at a time, and a QP used by one at a time; different ones are independent, and a QP may be used while its CQ is
// being polled. Only Wait and Events block, without holding an OS thread, and only until their context ends or
// their object is closed. The others are short calls; RegisterMemory and the calls that make or destroy things go to the
// kernel and may take milliseconds (registration of gigabytes, seconds).
package device
