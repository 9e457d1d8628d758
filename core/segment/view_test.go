package segment

import (
	"testing"

	"github.com/mooncake-agent/mooncake/core/guard"
	"github.com/mooncake-agent/mooncake/transports"
)

// The memory is the same under every view's address, and a closed view's address does not come back soon.
func TestViewsShareMemoryAndNeverAnAddress(t *testing.T) {
	before := leaks(t)
	a, err := New(t.Context(), "view", 3*4096, DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	a.Bytes()[5] = 7
	seen := map[uint64]bool{a.Addr(): true}
	for i := range keepRetired {
		v, err := a.View(transports.ReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		if seen[v.Addr()] {
			t.Fatalf("view %d has an address of before, %#x", i, v.Addr())
		}
		seen[v.Addr()] = true
		if v.Len() != a.Len() || v.Bytes()[5] != 7+byte(i) {
			t.Fatalf("view %d: %d bytes, byte 5 is %d", i, v.Len(), v.Bytes()[5])
		}
		v.Bytes()[5]++
		if fd, off, ok := v.FD(); !ok || fd != a.FD() || off != 0 {
			t.Errorf("FD() = %d, %d, %v", fd, off, ok)
		}
		old := v.Bytes()
		v.Close()
		v.Close()
		if err := guard.Run(func() { sink = old[5] }); err == nil {
			t.Fatal("the memory of a closed view can be read")
		}
	}
	if a.Bytes()[5] != 7+keepRetired {
		t.Errorf("byte 5 is %d", a.Bytes()[5])
	}
	for range 3 { // beyond what is kept
		v, err := a.View(transports.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		v.Close()
	}
	if n := len(a.old.list); n != keepRetired {
		t.Errorf("%d addresses are reserved, want %d", n, keepRetired)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(a.old.list); n != 0 {
		t.Errorf("%d addresses are reserved after Close", n)
	}
	if _, err := a.View(transports.ReadWrite); err == nil {
		t.Error("a view of a closed arena")
	}
	if after := leaks(t); after != before {
		t.Errorf("left behind: %s, before: %s", after, before)
	}
}

var sink byte
