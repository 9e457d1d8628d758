package interop

import (
	"fmt"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// sizes are the single transfers of the matrix, biggest last.
var sizes = []int{1, 7, 4096, 65535, 65536, 1<<20 + 3, 16<<20 - 1, 64 << 20}

// memSize holds the biggest transfer and its guards.
const memSize = 64<<20 + 1<<20

// exchange proves writes and reads between i and o: every size alone and batches of 32, content
// and guards checked on the receiving side.
func exchange(t *testing.T, i initiator, o target) {
	t.Helper()
	for _, n := range sizes {
		if n > 1<<20 && testing.Short() {
			continue
		}
		local, remote := 4096, 8192+guard+n%8 // an odd remote offset for odd sizes
		seed := fmt.Sprintf("%d", n)
		i.fill(local, n, "write"+seed)
		o.zero(remote-guard, n+2*guard)
		if err := i.move(o.name(), true, op{local, o.base() + uint64(remote), n}); err != nil {
			t.Fatalf("write %d bytes: %v", n, err)
		}
		// A v1 write is not acknowledged: the last bytes may still be on their way.
		testenv.Eventually(t, soon, func() error { return checkSum(t, o, remote, n, "write"+seed) })

		o.fill(remote, n, "read"+seed)
		i.zero(local-guard, n+2*guard)
		if err := i.move(o.name(), false, op{local, o.base() + uint64(remote), n}); err != nil {
			t.Fatalf("read %d bytes: %v", n, err)
		}
		if err := checkSum(t, i, local, n, "read"+seed); err != nil {
			t.Fatalf("read: %v", err)
		}
	}
	for _, n := range []int{61, 64<<10 + 1} {
		exchangeBatch(t, i, o, 32, n)
	}
}

// exchangeBatch writes and reads count ranges of n bytes as one batch each. The local ranges lie in
// the opposite order of the remote ones.
func exchangeBatch(t *testing.T, i initiator, o target, count, n int) {
	t.Helper()
	step := n + 2*guard
	ops := make([]op, count)
	at := func(k int) (local, remote int) { return 4096 + (count-1-k)*step, 8192 + k*step + guard }
	i.zero(0, 4096+count*step+guard)
	o.zero(8192, count*step+guard)
	for k := range ops {
		local, remote := at(k)
		ops[k] = op{local, o.base() + uint64(remote), n}
		i.fill(local, n, fmt.Sprintf("w%d", k))
	}
	if err := i.move(o.name(), true, ops...); err != nil {
		t.Fatalf("write batch of %d x %d: %v", count, n, err)
	}
	for k := range ops {
		_, remote := at(k)
		testenv.Eventually(t, soon, func() error { return checkSum(t, o, remote, n, fmt.Sprintf("w%d", k)) })
		o.fill(remote, n, fmt.Sprintf("r%d", k))
	}
	i.zero(0, 4096+count*step+guard)
	if err := i.move(o.name(), false, ops...); err != nil {
		t.Fatalf("read batch of %d x %d: %v", count, n, err)
	}
	for k := range ops {
		local, _ := at(k)
		if err := checkSum(t, i, local, n, fmt.Sprintf("r%d", k)); err != nil {
			t.Fatalf("read batch, op %d: %v", k, err)
		}
	}
}

// Two wheels exchange data over every service that exists without us: the drivers and services do
// what the rest of the matrix relies on.
func TestWheelToWheel(t *testing.T) {
	for _, m := range wheelServices {
		t.Run(m.name, func(t *testing.T) {
			meta := m.start(t)
			a, b := nameFor(meta, "wheel-a"), nameFor(meta, "wheel-b")
			o := startWheel(t, a, meta, memSize)
			i := startWheel(t, b, meta, memSize)
			exchange(t, i, o)
			if rc := i.call("probe", args{"target": o.name()}).RC; rc != 0 {
				t.Errorf("probe: %d", rc)
			}
			if err := i.notify(o.name(), o.base(), "wheel-b", "héllo"); err != nil {
				t.Error(err)
			}
			if got := o.call("notifies", nil).Notifies; len(got) != 1 || got[0] != [2]string{"wheel-b", "héllo"} {
				t.Errorf("notifies: %q", got)
			}
			i.Stop(soon)
			o.Stop(soon)
		})
	}
}

// nameFor is the local_hostname of an engine: a name of its own where a service finds it, else the
// address that peers dial.
func nameFor(meta, name string) string {
	if meta == p2p {
		return "127.0.0.1"
	}
	return name
}
