package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// A reader that takes much longer than the lease of 500 ms, while a writer makes the master evict and give out all
// the space there is, time and again.
func TestSlowReadersNeverSeeOtherBytes(t *testing.T) {
	const size = 2 * mib
	m := startMaster(t, "--default_kv_lease_ttl=500", "--eviction_high_watermark_ratio=0.6")
	n := prepareNode(t, m.Addr, 16*mib)
	slow, data := slowPeer(t, n.Client.Engine())
	n.lend(t, slow)
	line := testenv.NewTap(t, m.Addr)
	reader := newClient(t, line.Addr, func(o *client.Options) { o.RPCTimeout = time.Second })
	writer := newClient(t, m.Addr) // through the tap as well, but upwards it is fast

	stop, churned := make(chan struct{}), atomic.Int64{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if writer.Put(t.Context(), fmt.Sprintf("churn-%d", i), bytes.Repeat([]byte{byte(i)}, size)) == nil {
				churned.Add(1)
			}
		}
	})
	defer wg.Wait()
	defer close(stop)

	// take puts an object anew and reads it in 2 s.
	take := func(t *testing.T, k string, read func(ctx context.Context) ([]byte, error)) ([]byte, error) {
		t.Helper()
		data.Slow(0)
		if err := writer.Put(deadline(t), k, value(k, size), client.WaitForSpace(20*time.Second)); err != nil {
			t.Fatal(err)
		}
		data.Slow(size / 2)
		before := churned.Load()
		got, err := read(deadline(t))
		t.Logf("%s: %d bytes, %v; %d objects were put meanwhile", k, len(got), err, churned.Load()-before)
		if err == nil && !bytes.Equal(got, value(k, size)) {
			t.Errorf("%s: WRONG BYTES", k)
		}
		return got, err
	}
	// begun calls f when some of an object has been read; wait for that with what it returns.
	begun := func(f func()) (wait func()) {
		var wg sync.WaitGroup
		from := data.Passed()
		wg.Go(func() {
			err := testenv.Poll(soon, testenv.True("the read begins", func() bool { return data.Passed() > from+size/16 }))
			if err != nil {
				t.Error(err)
				return
			}
			f()
		})
		return wg.Wait
	}
	single := func(k string) func(context.Context) ([]byte, error) {
		return func(ctx context.Context) ([]byte, error) { return reader.Get(ctx, k) }
	}
	batch := func(k string) func(context.Context) ([]byte, error) {
		return func(ctx context.Context) ([]byte, error) {
			values, errs := reader.GetBatch(ctx, []string{"nothing there", k})
			if !errors.Is(errs[0], client.ErrNotFound) {
				t.Errorf("missing key in a batch: %v", errs[0])
			}
			return values[1], errs[1]
		}
	}
	pieces := func(k string) func(context.Context) ([]byte, error) {
		return func(ctx context.Context) ([]byte, error) {
			r, err := reader.Open(ctx, k)
			if err != nil {
				return nil, err
			}
			var b bytes.Buffer
			_, err = r.WriteTo(&b)
			return b.Bytes(), err
		}
	}
	for _, c := range []struct {
		name string
		read func(string) func(context.Context) ([]byte, error)
	}{{"single", single}, {"batch", batch}, {"pieces", pieces}} {
		t.Run(c.name+" renews", func(t *testing.T) {
			// A busy machine may come too late to a lease of half a second, not five times in a row.
			for try := range 5 {
				k := fmt.Sprintf("renewed-%s-%d", c.name, try)
				_, err := take(t, k, c.read(k))
				if err == nil {
					return
				}
				if !errors.Is(err, client.ErrLeaseExpired) {
					t.Fatal(err)
				}
			}
			t.Error("no read of five renewed its lease")
		})
		t.Run(c.name+" without a master", func(t *testing.T) {
			k := "lost-" + c.name
			_, err := take(t, k, func(ctx context.Context) ([]byte, error) {
				defer line.Mend()
				defer begun(line.Cut)()
				return c.read(k)(ctx)
			})
			if !errors.Is(err, client.ErrLeaseExpired) {
				t.Errorf("%v, want %v", err, client.ErrLeaseExpired)
			}
		})
		t.Run(c.name+" removed by force", func(t *testing.T) {
			k := "removed-" + c.name
			_, err := take(t, k, func(ctx context.Context) ([]byte, error) {
				defer begun(func() {
					if err := writer.Remove(ctx, k, true); err != nil {
						t.Error(err)
					}
				})()
				return c.read(k)(ctx)
			})
			if !errors.Is(err, client.ErrLeaseExpired) {
				t.Errorf("%v, want %v", err, client.ErrLeaseExpired)
			}
		})
	}
}

// The master is replaced by an empty one in the middle of a slow read, so it gives the memory that is being read to
// somebody else at once, although the reader's lease has not ended. The node does not lend it before the read is over.
func TestSlowReadOverARestartOfTheMaster(t *testing.T) {
	const size = 32 * mib
	m := startMaster(t)
	n := prepareNode(t, m.Addr, 48*mib, quick)
	slow, data := slowPeer(t, n.Client.Engine())
	n.lend(t, slow)
	c := newClient(t, m.Addr)
	if err := c.Put(deadline(t), "k", value("k", size)); err != nil {
		t.Fatal(err)
	}
	data.Slow(size / 2)
	type result struct {
		got []byte
		err error
	}
	read := make(chan result, 1)
	go func() {
		got, err := c.Get(deadline(t), "k")
		read <- result{got, err}
	}()
	testenv.Eventually(t, soon, testenv.True("the read has begun", func() bool { return data.Passed() > mib }))
	m.Restart()
	writer := newClient(t, m.Addr)
	testenv.Eventually(t, soon, func() error {
		data.Slow(0) // what was sent before comes slowly all the same
		return writer.Put(deadline(t), "other", bytes.Repeat([]byte{0xee}, 40*mib))
	})
	r := <-read
	t.Logf("%d bytes, %v", len(r.got), r.err)
	if r.err == nil && !bytes.Equal(r.got, value("k", size)) {
		t.Error("WRONG BYTES")
	}
}
