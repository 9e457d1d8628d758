// Package store proves with seven unmodified releases of the Mooncake wheel that the Store master serves
// them, one at a time and all at once, and that it behaves as upstream's does: operations of every
// release, clients that are replaced, stopped and killed under load, a master that restarts, the
// wheel's own programs, and recorded conversations frame by frame. It holds only tests; "make
// test-interop" installs the wheels and runs them.
//
// MOONCAKE_STORE_MASTER=wheel runs those tests that upstream's own master can pass against the
// mooncake_master of each release instead of ours. That validates the tests themselves.
package store
