package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

func objects(from, to, size int) []client.Object {
	var list []client.Object
	for i := from; i < to; i++ {
		list = append(list, client.Object{Key: key(i), Parts: [][]byte{value(key(i), size)}})
	}
	return list
}

func keysOf(objects []client.Object) []string {
	var keys []string
	for _, o := range objects {
		keys = append(keys, o.Key)
	}
	return keys
}

func TestBatch(t *testing.T) {
	m := startMaster(t)
	newNode(t, m.Addr, 64*mib)
	c := newClient(t, m.Addr)
	ctx := deadline(t)
	put := objects(0, 100, 64<<10)
	put[3].Parts = [][]byte{put[3].Parts[0][:100], nil, put[3].Parts[0][100:]}
	before, err := m.Metric("master_batch_put_start_requests_total")
	if err != nil {
		before = 0
	}
	for i, err := range c.PutBatch(ctx, put) {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	if after, err := m.Metric("master_batch_put_start_requests_total"); err != nil || after != before+1 {
		t.Errorf("%v calls for one batch, %v", after-before, err)
	}
	keys := append(keysOf(put), "missing", "")
	values, errs := c.GetBatch(ctx, keys)
	for i, k := range keys[:100] {
		if errs[i] != nil || !bytes.Equal(values[i], value(k, 64<<10)) {
			t.Fatalf("%s: %d bytes, %v", k, len(values[i]), errs[i])
		}
	}
	if !errors.Is(errs[100], client.ErrNotFound) || !errors.Is(errs[101], client.ErrInvalid) || values[100] != nil {
		t.Errorf("missing and empty key: %v, %v", errs[100], errs[101])
	}
	targets := []client.Target{{Key: key(1), Dst: make([]byte, 64<<10)}, {Key: key(2), Dst: make([]byte, 10)}, {Key: "missing"}, {Key: key(4), Dst: make([]byte, 70<<10)}}
	errs = c.GetBatchInto(ctx, targets)
	if errs[0] != nil || targets[0].N != 64<<10 || !bytes.Equal(targets[0].Dst, value(key(1), 64<<10)) {
		t.Errorf("exact destination: %d, %v", targets[0].N, errs[0])
	}
	if !errors.Is(errs[1], client.ErrTooSmall) || targets[1].N != 64<<10 {
		t.Errorf("small destination: %d, %v", targets[1].N, errs[1])
	}
	if !errors.Is(errs[2], client.ErrNotFound) {
		t.Errorf("missing: %v", errs[2])
	}
	if errs[3] != nil || targets[3].N != 64<<10 || !bytes.Equal(targets[3].Dst[:64<<10], value(key(4), 64<<10)) {
		t.Errorf("large destination: %d, %v", targets[3].N, errs[3])
	}
	oks, err := c.ExistsBatch(ctx, []string{key(5), "missing", key(99)})
	if err != nil || !oks[0] || oks[1] || !oks[2] {
		t.Errorf("exists: %v, %v", oks, err)
	}
	// A second batch that overlaps the first.
	for i, err := range c.PutBatch(ctx, objects(98, 102, 64<<10)) {
		if exists := errors.Is(err, client.ErrExists); exists != (i < 2) || !exists && err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	for i, err := range c.PutBatch(ctx, objects(101, 104, 64<<10), client.AllOrNothing()) {
		if want := []error{client.ErrExists, client.ErrAborted, client.ErrAborted}[i]; !errors.Is(err, want) {
			t.Errorf("%d: %v, want %v", i, err, want)
		}
	}
	for i, err := range c.PutBatch(ctx, objects(101, 104, 64<<10), client.AllOrNothing(), client.ExistsOK(), client.Group("g")) {
		if err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	for i, err := range c.RemoveBatch(ctx, []string{key(0), "missing"}, true) {
		if want := []error{nil, client.ErrNotFound}[i]; !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("remove %d: %v", i, err)
		}
	}
	list, err := c.List(ctx, `^key-9\d$`)
	if err != nil || len(list) != 10 || list[0].Key != key(90) || list[0].Size != 64<<10 || len(list[0].Replicas) != 1 || list[0].Replicas[0].Kind != "memory" {
		t.Errorf("list: %+v, %v", list, err)
	}
	if _, err := c.List(ctx, "["); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("bad pattern: %v", err)
	}
	if n, err := c.RemoveRegex(ctx, "^key-1.$", true); err != nil || n != 10 {
		t.Errorf("removed %d, %v", n, err)
	}
	if n, err := c.RemoveAll(ctx, true); err != nil || n != 93 {
		t.Errorf("removed %d, %v", n, err)
	}
}

// 24 objects for room for 16: some are refused, each key has its own answer, and what was stored is whole.
func TestBatchPartlyRefused(t *testing.T) {
	m := startMaster(t, "--default_kv_lease_ttl=60000")
	newNode(t, m.Addr, 16*mib)
	c := newClient(t, m.Addr)
	ctx := deadline(t)
	put := objects(0, 24, mib)
	errs := c.PutBatch(ctx, put, client.HardPin())
	stored := 0
	for i, err := range errs {
		switch {
		case err == nil:
			if stored++; i >= 8 { // those below are removed again, and a master may keep leased space back
				check(t, c, key(i), mib)
			}
		case !errors.Is(err, client.ErrNoSpace):
			t.Errorf("%d: %v", i, err)
		case client.Code(err) != wire.ErrNoAvailableHandle:
			t.Errorf("code %v", client.Code(err))
		}
	}
	if stored != 16 {
		t.Errorf("%d stored, want 16", stored)
	}
	refused := objects(16, 24, mib)
	for i, err := range c.PutBatch(ctx, append(objects(100, 101, mib), refused...), client.AllOrNothing()) {
		if err == nil {
			t.Errorf("%d of a batch that does not fit was stored", i)
		}
	}
	// Space that comes while the put waits.
	time.AfterFunc(200*time.Millisecond, func() {
		for i := range 8 {
			if err := c.Remove(ctx, key(i), true); err != nil {
				t.Error(err)
			}
		}
	})
	for i, err := range c.PutBatch(ctx, refused, client.WaitForSpace(30*time.Second), client.AllOrNothing(), client.HardPin()) {
		if err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	for i := 8; i < 24; i++ {
		check(t, c, key(i), mib)
	}
}

func TestInvalidPuts(t *testing.T) {
	m := startMaster(t)
	n := newNode(t, m.Addr, mib)
	ctx := deadline(t)
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"empty key", n.Put(ctx, "", []byte("x")), client.ErrInvalid},
		{"empty value", n.Put(ctx, "k", nil), client.ErrInvalid},
		{"no replica", n.Put(ctx, "k", []byte("x"), client.Replicas(0)), client.ErrInvalid},
		{"pin that is too long", n.Put(ctx, "k", []byte("x"), client.SoftPin(1e6*time.Hour)), client.ErrInvalid},
		{"too large for any segment", n.Put(ctx, "k", make([]byte, 2*mib)), client.ErrNoSpace},
		{"groups for another number", n.PutBatch(ctx, objects(0, 2, 1), client.Groups("a"))[1], client.ErrInvalid},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, c.err, c.want)
		}
	}
	if errs := n.PutBatch(ctx, nil); len(errs) != 0 {
		t.Errorf("empty batch: %v", errs)
	}
	bare, err := client.New(client.Options{Config: client.DefaultConfig(), Master: []string{m.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close(ctx)
	if err := bare.Put(ctx, "k", []byte("x")); !errors.Is(err, client.ErrUnsupported) {
		t.Errorf("put without an engine: %v", err)
	}
	if ok, err := bare.Exists(ctx, "k"); ok || err != nil {
		t.Errorf("exists without an engine: %v, %v", ok, err)
	}
}

// Many writers of one key: one wins, and its bytes stand.
func TestRacingPuts(t *testing.T) {
	m := startMaster(t)
	newNode(t, m.Addr, 64*mib)
	c := newClient(t, m.Addr)
	ctx := deadline(t)
	for round := range 5 {
		k := fmt.Sprint("race-", round)
		const writers = 32
		errs := make([]error, writers)
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() { errs[i] = c.Put(ctx, k, value(fmt.Sprint(k, i), 100<<10)) })
		}
		wg.Wait()
		winner := -1
		for i, err := range errs {
			switch {
			case err == nil && winner >= 0:
				t.Fatalf("%d and %d both stored", winner, i)
			case err == nil:
				winner = i
			case !errors.Is(err, client.ErrExists):
				t.Error(err)
			}
		}
		if got, err := c.Get(ctx, k); err != nil || winner < 0 || !bytes.Equal(got, value(fmt.Sprint(k, winner), 100<<10)) {
			t.Fatalf("winner %d: %d bytes, %v", winner, len(got), err)
		}
	}
}

func TestUpsert(t *testing.T) {
	m := startMaster(t)
	newNode(t, m.Addr, 64*mib)
	c := newClient(t, m.Addr, func(o *client.Options) { o.Checksum = true })
	ctx := deadline(t)
	for i, size := range []int{100, 100, 2 * mib, 50} { // new, in place, larger, smaller
		if err := c.Upsert(ctx, "k", value(key(i), size)); err != nil {
			t.Fatal(i, err)
		}
		if got, err := c.Get(ctx, "k"); err != nil || !bytes.Equal(got, value(key(i), size)) {
			t.Fatalf("%d: %d bytes, %v", i, len(got), err)
		}
	}
	put := objects(0, 10, 1000)
	for round := range 2 {
		for i, err := range c.UpsertBatch(ctx, put) {
			if err != nil {
				t.Fatal(round, i, err)
			}
		}
	}
	for i := range 10 {
		check(t, c, key(i), 1000)
	}
}

// The data cannot be written: the put is revoked, so that the key is free at once.
func TestFailedPutIsRevoked(t *testing.T) {
	m := startMaster(t)
	n := prepareNode(t, m.Addr, 64*mib)
	endpoint, data := slowPeer(t, n.Client.Engine())
	n.lend(t, endpoint)
	c := newClient(t, m.Addr)
	for _, f := range []struct {
		name string
		put  func(context.Context) []error
	}{
		{"single", func(ctx context.Context) []error { return []error{c.Put(ctx, key(0), value(key(0), mib))} }},
		{"batch", func(ctx context.Context) []error { return c.PutBatch(ctx, objects(1, 4, mib)) }},
		{"upsert", func(ctx context.Context) []error { return []error{c.Upsert(ctx, key(4), value(key(4), mib))} }},
	} {
		t.Run(f.name, func(t *testing.T) {
			data.Cut()
			for _, err := range f.put(deadline(t)) {
				if !errors.Is(err, client.ErrTransfer) || client.Code(err) != wire.ErrTransferFail {
					t.Errorf("peer that resets: %v", err)
				}
			}
			data.Mend()
			data.Hold()
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			begin := time.Now()
			for _, err := range f.put(ctx) {
				if err == nil || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("peer that holds still: %v", err)
				}
			}
			cancel()
			if d := time.Since(begin); d > 10*time.Second {
				t.Errorf("the call ended %v after its deadline", d)
			}
			data.Release()
			for _, err := range f.put(deadline(t)) {
				if err != nil {
					t.Errorf("after a revoked put: %v", err)
				}
			}
		})
	}
	for i := range 5 {
		check(t, c, key(i), mib)
	}
}

// One of two nodes ends without a word: what has a replica on the other one stays readable at once, and puts
// work again when the master has noticed.
func TestReplicasSurviveANode(t *testing.T) {
	m := startMaster(t, "--client_ttl=2")
	a := newNode(t, m.Addr, 64*mib)
	b := prepareNode(t, m.Addr, 64*mib)
	endpoint, data := slowPeer(t, b.Client.Engine())
	line := testenv.NewTap(t, m.Addr)
	b.Client = newClient(t, line.Addr, func(o *client.Options) { o.Engine = b.Client.Engine() })
	b.lend(t, endpoint)
	c := newClient(t, m.Addr)
	ctx := deadline(t)
	for i := range 20 {
		if err := c.Put(ctx, key(i), value(key(i), 10<<10), client.Replicas(2)); err != nil {
			t.Fatal(err)
		}
	}
	if rs, err := c.Replicas(ctx, key(0)); err != nil || len(rs) != 2 || rs[0].Endpoint == rs[1].Endpoint {
		t.Fatalf("replicas %+v, %v", rs, err)
	}
	line.Cut() // no heartbeat
	data.Cut() // no data
	begin := time.Now()
	for i := range 20 {
		check(t, c, key(i), 10<<10)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("20 reads took %v", d)
	}
	values, errs := c.GetBatch(ctx, keysOf(objects(0, 20, 1)))
	for i := range values {
		if errs[i] != nil || !bytes.Equal(values[i], value(key(i), 10<<10)) {
			t.Errorf("batch %d: %v", i, errs[i])
		}
	}
	testenv.Eventually(t, soon, func() error {
		k := fmt.Sprint("new-", time.Now().UnixNano())
		if err := c.Put(ctx, k, value(k, mib), client.Replicas(2)); err != nil {
			return err
		}
		rs, err := c.Replicas(ctx, k)
		if err != nil || len(rs) != 1 || rs[0].Endpoint != a.name() {
			return fmt.Errorf("replicas %+v, %v", rs, err)
		}
		return nil
	})
	for i := range 20 {
		check(t, c, key(i), 10<<10)
	}
}
