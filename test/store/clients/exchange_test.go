package clients

import (
	"errors"
	"fmt"
	"testing"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

var sizes = []int{1, 4 << 10, 1*mib + 3, 64 * mib}

// A wheel stores into the memory of a Go node, and the Go client into that of a wheel; both read everything.
func TestExchange(t *testing.T) {
	eachMaster(t, func(t *testing.T, start func(...string) *testenv.StoreMaster) {
		m := start()
		n := storeNode(t, m.Addr, "256MB")
		w := startWheel(t, newest, m.Addr, 256, 96)
		c := goClient(t, m.Addr)
		for _, size := range sizes {
			for _, owner := range []string{n.Segment, w.host} {
				byWheel, byGo := fmt.Sprintf("wheel-%d-%s", size, owner), fmt.Sprintf("go-%d-%s", size, owner)
				w.put(byWheel, size, args{"preferred_segment": owner})
				put(t, c, byGo, size, client.Prefer(owner))
				for _, k := range []string{byWheel, byGo} {
					if rs, err := c.Replicas(deadline(t), k); err != nil || len(rs) != 1 {
						t.Fatalf("%s: %+v, %v", k, rs, err)
					} else if inNode := rs[0].Endpoint == n.Segment; inNode != (owner == n.Segment) {
						t.Errorf("%s lies at %s", k, rs[0].Endpoint)
					}
					check(t, c, k, size)
					w.check(k, size)
				}
				if err := c.Remove(deadline(t), byWheel, true); err != nil {
					t.Error(err)
				}
				if r := w.call("remove", args{"key": byGo, "force": true}); r.RC != 0 {
					t.Errorf("wheel: remove: %d", r.RC)
				}
				w.check(byWheel, 0)
				if _, err := c.Get(deadline(t), byGo); !errors.Is(err, client.ErrNotFound) {
					t.Errorf("%s after remove: %v", byGo, err)
				}
			}
		}
	})
}

// Checksums that one side stores, the other one checks.
func TestChecksumsAcross(t *testing.T) {
	eachMaster(t, func(t *testing.T, start func(...string) *testenv.StoreMaster) {
		m := start()
		storeNode(t, m.Addr, "64MB")
		w := startWheel(t, newest, m.Addr, 0, 32, "MOONCAKE_STORE_CHECKSUM=1")
		c := goClient(t, m.Addr, func(o *client.Options) { o.Checksum = true })
		w.put("wheel", 1*mib+3)
		put(t, c, "go", 1*mib+3)
		check(t, c, "wheel", 1*mib+3)
		w.check("go", 1*mib+3)
		for _, k := range []string{"wheel", "go"} {
			if i, err := c.Stat(deadline(t), k); err != nil || !i.HasChecksum || i.Checksum != client.Checksum(0, value(k, 1*mib+3)) {
				t.Errorf("%s: %+v, %v", k, i, err)
			}
		}
	})
}

// Clients of every release, one master, all memory in Go nodes.
func TestEveryReleaseUsesGoNodes(t *testing.T) {
	t.Parallel()
	pinned := testenv.FreePort(t)
	m := testenv.StartMaster(t, fmt.Sprintf("--rpc_compat=0.3.7:%d", pinned))
	storeNode(t, m.Addr, "256MB")
	storeNode(t, m.Addr, "256MB")
	c := goClient(t, m.Addr)
	var all []*wheel
	for _, v := range testenv.StoreVersions {
		addr := m.Addr
		if v == testenv.StoreVersions[0] {
			addr = fmt.Sprintf("127.0.0.1:%d", pinned)
		}
		all = append(all, startWheel(t, v, addr, 0, 32))
	}
	for _, size := range []int{1, 4 << 10, 1*mib + 3, 16 * mib} {
		put(t, c, fmt.Sprintf("go-%d", size), size)
		for _, w := range all {
			k := fmt.Sprintf("%s-%d", w.env.Version, size)
			w.put(k, size)
			eventually(t, w, func() error { return reads(t, c, k, size) })
		}
		for _, w := range all {
			w.check(fmt.Sprintf("go-%d", size), size)
			for _, o := range all {
				w.check(fmt.Sprintf("%s-%d", o.env.Version, size), size)
			}
		}
	}
	// Batches, and two replicas.
	for _, w := range all {
		keys, lengths := []string{w.env.Version + "-a", w.env.Version + "-b"}, []int{100, 2 * mib}
		r := w.call("put_batch", args{"keys": keys, "seeds": keys, "sizes": lengths, "config": args{"replicas": 2}})
		if r.RC != 0 {
			t.Fatalf("%s: put_batch: %d", w.env.Version, r.RC)
		}
		for i, k := range keys {
			eventually(t, w, func() error { return reads(t, c, k, lengths[i]) })
			if rs, err := c.Replicas(deadline(t), k); err != nil || len(rs) != 2 {
				t.Errorf("%s: %+v, %v", k, rs, err)
			}
		}
		got := w.call("get_batch", args{"keys": keys})
		for i, v := range got.Values {
			if v.Bytes != lengths[i] || v.SHA != sum(value(keys[i], lengths[i])) {
				t.Errorf("%s: get_batch %s: %d bytes", w.env.Version, keys[i], v.Bytes)
			}
		}
	}
}

// The Go client with the memory of wheels of every release.
func TestGoUsesTheMemoryOfEveryRelease(t *testing.T) {
	t.Parallel()
	pinned := testenv.FreePort(t)
	m := testenv.StartMaster(t, fmt.Sprintf("--rpc_compat=0.3.7:%d", pinned))
	c := goClient(t, m.Addr)
	for _, v := range testenv.StoreVersions {
		addr := m.Addr
		if v == testenv.StoreVersions[0] {
			addr = fmt.Sprintf("127.0.0.1:%d", pinned)
		}
		w := startWheel(t, v, addr, 128, 32)
		w.put("first-"+v, 1) // the requests of a mere reader do not tell its release
		for _, size := range []int{1, 4 << 10, 1*mib + 3, 64 * mib} {
			k := fmt.Sprintf("go-%s-%d", v, size)
			put(t, c, k, size, client.Prefer(w.host))
			if rs, err := c.Replicas(deadline(t), k); err != nil || len(rs) != 1 {
				t.Fatalf("%s: %+v, %v", k, rs, err)
			}
			// Releases without acknowledgement of writes have them a moment later.
			eventually(t, w, func() error { return reads(t, c, k, size) })
			if size <= 16*mib {
				w.check(k, size)
			}
			if err := c.Remove(deadline(t), k, true); err != nil {
				t.Error(err)
			}
		}
		w.call("close", nil)
		w.Kill()
	}
}

// One object of 1 GiB, mostly zeros: put by the Go client, read in pieces and at once, read by a wheel, put by that
// again and read by the Go client.
func TestGibibyte(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: needs 5 GiB of memory")
	}
	for name, start := range masters { // one after the other, for the memory
		t.Run(name, func(t *testing.T) { gibibyte(t, start(t)) })
	}
}

func gibibyte(t *testing.T, m *testenv.StoreMaster) {
	const size = 1 << 30
	n := storeNode(t, m.Addr, "1300MB") // room for one, below the masters' watermark
	c := goClient(t, m.Addr)
	big := make([]byte, size)
	marks := []int{0, 1, 4095, 16*mib - 17, 16*mib - 16, 512 * mib, size - 1}
	for i, at := range marks {
		big[at] = byte(i + 1)
	}
	want, wantSHA := client.Checksum(0, big), sum(big)
	if err := c.Put(deadline(t), "big", big); err != nil {
		t.Fatal(err)
	}
	var part [3]byte
	for i, at := range marks {
		off := max(at-1, 0)
		n, err := c.GetRange(deadline(t), "big", part[:], uint64(off))
		if err != nil || part[at-off] != byte(i+1) || n != min(3, size-off) {
			t.Errorf("at %d: %d bytes %v, %v", at, n, part, err)
		}
	}
	read := func(key string) {
		t.Helper()
		clear(big)
		if n, err := c.GetInto(deadline(t), key, big); n != size || err != nil {
			t.Fatalf("%s: %d, %v", key, n, err)
		}
		if got := client.Checksum(0, big); got != want {
			t.Errorf("%s: wrong content", key)
		}
	}
	read("big")
	w := startWheel(t, newest, m.Addr, 0, 16)
	if r := w.call("register", args{"buffer": "b", "size": size}); r.RC != 0 {
		t.Fatalf("register: %d", r.RC)
	}
	if r := w.call("get_into", args{"key": "big", "buffer": "b", "size": size}); r.Bytes != size || r.SHA != wantSHA {
		t.Fatalf("wheel: get_into: %+v", r)
	}
	if err := c.Remove(deadline(t), "big", true); err != nil { // the node has room for one
		t.Fatal(err)
	}
	testenv.Eventually(t, soon, func() error { // our master gives the space away when the reader's lease has ended
		if r := w.call("put_from", args{"key": "again", "buffer": "b", "size": size}); r.RC != 0 {
			return fmt.Errorf("wheel: put_from: %d", r.RC)
		}
		return nil
	})
	read("again")
	if rs, err := c.Replicas(deadline(t), "again"); err != nil || len(rs) != 1 || rs[0].Endpoint != n.Segment {
		t.Errorf("replicas %+v, %v", rs, err)
	}
}
