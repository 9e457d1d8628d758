// Package clients proves that the Go client of the Store and Go store nodes work with unmodified wheels, on upstream's
// master and on ours: data both ways, all releases with Go nodes owning the memory, and processes that are killed,
// stopped and restarted. It holds only tests; "make test-interop" runs them, "make test-soak" the long one.
package clients
