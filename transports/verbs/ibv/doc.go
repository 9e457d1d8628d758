// Package ibv drives RDMA devices with libibverbs, which it loads at run time: the binary starts without it, and needs no
// cgo. It implements the interfaces of package device.
//
// Calls that set things up are functions of the library. Posting and polling are not: in C they are inline functions that
// go through a table of the open device, so the package knows the layout of a few structures of verbs.h (layout.go). They
// are part of the library's stable ABI, and a test compares each offset and constant with the header.
//
// Nothing here waits in C. The file descriptors of completion channels and of asynchronous events are non-blocking, and a
// goroutine that waits for them is parked by the Go runtime's poller like one that reads from a socket.
//
// Build tag noverbs leaves the package out: a binary without it is static.
package ibv
