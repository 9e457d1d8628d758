// Package doctor is the pre-flight list of an operator as code: it looks at a machine and at what the configuration asks
// of it, and says of each point whether it is fine, what was seen, and what to do.
//
// A [Check] is a function over a [Host]: the files of the machine ([Host.FS]), a few system calls ([Kernel]), the
// network ([Network]) and the [Setup], which is what the configuration comes to. All four are replaced in tests, so every
// check runs on recorded trees of machines that are not there.
//
// Nothing is changed on the machine and nothing is written to peers. The one exception that costs something is the
// baseline, which reads memory of a peer as fast as it can and only runs when asked for.
//
// Without RDMA devices the checks of RDMA come down to one line. It is a failure only where the configuration
// requires RDMA.
package doctor
