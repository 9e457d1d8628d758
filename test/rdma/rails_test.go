package rdma

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// sent is how many packets a device has sent.
func sent(t *testing.T, device string) int {
	t.Helper()
	b, err := os.ReadFile("/sys/class/infiniband/" + device + "/ports/1/hw_counters/sent_pkts")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func setLink(t *testing.T, netdev, state string) {
	t.Helper()
	if out, err := exec.Command("ip", "link", "set", netdev, state).CombinedOutput(); err != nil {
		t.Fatalf("ip link set %s %s: %v %s", netdev, state, err, out)
	}
}

// Two engines with two devices each. One device goes down in the middle of transfers, and comes back: no transfer fails,
// every byte is right, and in the end both devices carry traffic again.
func TestRailFails(t *testing.T) {
	machine(t)
	o, i := startOurs(t, host, p2p, "rxe0,rxe1"), startOurs(t, host, p2p, "rxe0,rxe1")
	t.Cleanup(func() { setLink(t, "d1", "up") })
	round := 0
	transfer := func() {
		t.Helper()
		round++
		exchangeRound(t, i, o, round)
	}
	// busy moves data until both devices, or only the first, have carried some of one round.
	busy := func(both bool) {
		t.Helper()
		testenv.Eventually(t, soon, func() error {
			first, second := sent(t, "rxe0"), sent(t, "rxe1")
			transfer()
			first, second = sent(t, "rxe0")-first, sent(t, "rxe1")-second
			if first < 100 || second < 100 && both {
				return fmt.Errorf("packets in one round: %d and %d", first, second)
			}
			return nil
		})
	}
	busy(true)
	for range 2 {
		down := time.AfterFunc(200*time.Millisecond, func() { exec.Command("ip", "link", "set", "d1", "down").Run() })
		transfer() // the link goes down meanwhile, or just before or after: all must work
		down.Stop()
		setLink(t, "d1", "down")
		busy(false)
		setLink(t, "d1", "up")
		busy(true)
	}
}

// exchangeRound writes and reads 1 MiB as a batch of 16.
func exchangeRound(t *testing.T, i, o *driver, round int) {
	t.Helper()
	const n = 1 << 20
	ops := make([]op, 16)
	for k := range ops {
		ops[k] = op{4096 + k*n/16, 8192 + k*n/16, n / 16}
	}
	seed := fmt.Sprint("round", round)
	i.fill(4096, n, seed)
	if err := i.move(o, true, ops...); err != nil {
		t.Fatalf("round %d: write: %v\n%s", round, err, i.Stderr())
	}
	if err := o.check(8192, n, seed); err != nil {
		t.Fatalf("round %d: write: %v", round, err)
	}
	i.zero(4096, n)
	if err := i.move(o, false, ops...); err != nil {
		t.Fatalf("round %d: read: %v\n%s", round, err, i.Stderr())
	}
	if err := i.check(4096, n, seed); err != nil {
		t.Fatalf("round %d: read: %v", round, err)
	}
}
