package client_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/mooncake-agent/mooncake/core/client"
)

func TestPutGetRemove(t *testing.T) {
	m := startMaster(t)
	n := newNode(t, m.Addr, 256*mib)
	c := newClient(t, m.Addr)
	ctx := deadline(t)
	if err := c.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 4 << 10, 1*mib + 3, 64 * mib} {
		k := key(size)
		if err := c.Put(ctx, k, value(k, size)); err != nil {
			t.Fatalf("put of %d: %v", size, err)
		}
		check(t, c, k, size)
		check(t, n.Client, k, size) // from its own segment
		for range 3 {
			b, err := c.GetBuffer(ctx, k)
			if err != nil || !bytes.Equal(b.Bytes(), value(k, size)) {
				t.Fatalf("GetBuffer of %d: %v", size, err)
			}
			b.Release()
		}
		if got, err := c.Size(ctx, k); err != nil || got != uint64(size) {
			t.Errorf("size %d, %v", got, err)
		}
		if err := c.Remove(ctx, k, false); !errors.Is(err, client.ErrLeased) {
			t.Errorf("remove under a lease: %v", err)
		}
		if err := c.Remove(ctx, k, true); err != nil {
			t.Error(err)
		}
		if _, err := c.Get(ctx, k); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("get after remove: %v", err)
		}
	}
	if err := c.Put(ctx, "twice", []byte("1")); err != nil {
		t.Fatal(err)
	}
	if err := c.Put(ctx, "twice", []byte("2")); !errors.Is(err, client.ErrExists) {
		t.Errorf("second put: %v", err)
	}
	if err := c.Put(ctx, "twice", []byte("2"), client.ExistsOK()); err != nil {
		t.Errorf("second put with ExistsOK: %v", err)
	}
	if got, err := c.Get(ctx, "twice"); err != nil || !bytes.Equal(got, []byte("1")) {
		t.Errorf("%q, %v", got, err)
	}
}
