package rdma

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	_ "github.com/mooncake-agent/mooncake/metadata/all"
	_ "github.com/mooncake-agent/mooncake/transports/all"
)

const (
	// soon bounds one step of a peer on emulated processors.
	soon = 120 * time.Second
	// host is the address of the first soft-RoCE device.
	host = "192.0.2.1"
)

func TestMain(m *testing.M) {
	if os.Getenv(peerVariable) != "" { // this is the process of a peer
		if err := peerMain(os.Args[1:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// machine skips the test outside of the soft-RoCE machine: it would need RDMA devices, and tests take them down.
func machine(t *testing.T) {
	t.Helper()
	if os.Getenv("MOONCAKE_TEST_RDMA") == "" {
		t.Skip("skipped: make test-rdma runs it in a machine with soft-RoCE")
	}
}
