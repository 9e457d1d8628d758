// Package rdma proves the transport verbs on soft-RoCE: the conformance suite on real queue pairs, exchange of checked data
// between two engines of ours and with the engine of the real Mooncake wheel, restarts, and the loss of a device in the
// middle of transfers. It holds only tests; "make test-rdma" builds them and runs them in the machine of
// scripts/rxe-vm.sh, and anywhere else they are skipped.
package rdma
