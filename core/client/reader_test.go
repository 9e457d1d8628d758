package client_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/transports"
)

func TestReader(t *testing.T) {
	m := startMaster(t, "--default_kv_lease_ttl=3000")
	newNode(t, m.Addr, 64*mib)
	c := newClient(t, m.Addr, func(o *client.Options) { o.Checksum = true })
	ctx := deadline(t)
	want := value("k", 5_000) // iotest.TestReader makes a transfer of each byte
	if err := c.Put(ctx, "k", want); err != nil {
		t.Fatal(err)
	}
	large := value("large", 11*mib+1)
	if err := c.Put(ctx, "large", large); err != nil {
		t.Fatal(err)
	}
	r, err := c.Open(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	if sum, ok := r.Checksum(); !ok || sum != client.Checksum(0, want) || r.Size() != int64(len(want)) {
		t.Errorf("size %d, checksum %x, %v", r.Size(), sum, ok)
	}
	if err := iotest.TestReader(r, want); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		off int64
		n   int
		got int
		err error
	}{{0, 10, 10, nil}, {4_990, 10, 10, nil}, {4_990, 20, 10, io.EOF}, {5_000, 1, 0, io.EOF}, {1 << 40, 1, 0, io.EOF}, {-1, 1, 0, client.ErrInvalid}} {
		p := make([]byte, c.n)
		n, err := r.ReadAt(p, c.off)
		if n != c.got || !errors.Is(err, c.err) || err == nil && !bytes.Equal(p[:n], want[c.off:][:n]) {
			t.Errorf("ReadAt(%d, %d) = %d, %v", c.n, c.off, n, err)
		}
	}
	if r, err = c.Open(ctx, "large"); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if n, err := io.Copy(&b, r); err != nil || n != int64(len(large)) || !bytes.Equal(b.Bytes(), large) {
		t.Errorf("WriteTo: %d, %v", n, err)
	}
	if _, err := r.Seek(5*mib, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	if n, err := r.WriteTo(&b); err != nil || n != 6*mib+1 || !bytes.Equal(b.Bytes(), large[5*mib:]) {
		t.Errorf("WriteTo from the middle: %d, %v", n, err)
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	full := errors.New("disk full")
	if _, err := r.WriteTo(writerFunc(func([]byte) (int, error) { return 0, full })); !errors.Is(err, full) {
		t.Errorf("a failing writer: %v", err)
	}
	part := make([]byte, 50)
	if n, err := c.GetRange(ctx, "k", part, 4_970); n != 30 || err != nil || !bytes.Equal(part[:n], want[4_970:]) {
		t.Errorf("GetRange: %d, %v", n, err)
	}
	if _, err := c.GetRange(ctx, "k", part, 5_001); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("GetRange behind the end: %v", err)
	}
	if n, err := c.GetInto(ctx, "k", part); n != len(want) || !errors.Is(err, client.ErrTooSmall) {
		t.Errorf("GetInto: %d, %v", n, err)
	}
	if _, err := c.Open(ctx, "missing"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("Open of a missing object: %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Between two pieces the lease runs out and the object is removed or replaced.
func TestReaderNoticesAnotherObject(t *testing.T) {
	m := startMaster(t, "--default_kv_lease_ttl=500")
	newNode(t, m.Addr, 64*mib)
	c := newClient(t, m.Addr)
	ctx := deadline(t)
	expire := func(k string) {
		testenv.Eventually(t, soon, func() error { return c.Remove(ctx, k, false) })
	}
	for _, x := range []struct {
		name  string
		do    func(k string)
		want  error
		bytes string
	}{
		{"removed", expire, client.ErrNotFound, ""},
		{"replaced", func(k string) {
			expire(k)
			if err := c.Put(ctx, k, []byte("another 20 bytes ...")); err != nil {
				t.Fatal(err)
			}
		}, client.ErrChanged, ""},
		{"kept", func(k string) { time.Sleep(700 * time.Millisecond) }, nil, "bytes long"},
	} {
		t.Run(x.name, func(t *testing.T) {
			k := "k-" + x.name
			if err := c.Put(ctx, k, []byte("twenty ----bytes long")[:20]); err != nil {
				t.Fatal(err)
			}
			r, err := c.Open(ctx, k)
			if err != nil {
				t.Fatal(err)
			}
			p := make([]byte, 11)
			if _, err := io.ReadFull(r, p); err != nil || !strings.HasPrefix(string(p), "twenty") {
				t.Fatalf("%q, %v", p, err)
			}
			x.do(k)
			rest, err := io.ReadAll(r)
			if !errors.Is(err, x.want) || x.want == nil && err != nil {
				t.Errorf("%q, %v, want %v", rest, err, x.want)
			}
			if x.want == nil && string(rest) != "bytes lon" {
				t.Errorf("%q", rest)
			}
		})
	}
}

// Bytes that were changed in the memory of a node do not pass a reader with checksums, unless another replica is whole.
func TestChecksums(t *testing.T) {
	m := startMaster(t)
	a := newNode(t, m.Addr, 16*mib)
	on := func(o *client.Options) { o.Checksum = true }
	c, careless := newClient(t, m.Addr, on), newClient(t, m.Addr)
	ctx := deadline(t)
	spoil := func(k string, endpoint string) {
		t.Helper()
		rs, err := c.Replicas(ctx, k)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rs {
			if r.Endpoint != endpoint {
				continue
			}
			s, err := c.Engine().Open(ctx, r.Endpoint)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Engine().Write(ctx, s, []byte{^value(k, 10)[7]}, r.Address+7); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Fatalf("%s has no replica at %s", k, endpoint)
	}
	if err := c.Put(ctx, "k", value("k", 1000)); err != nil {
		t.Fatal(err)
	}
	check(t, c, "k", 1000)
	if i, err := c.Stat(ctx, "k"); err != nil || !i.HasChecksum || i.Checksum != client.Checksum(0, value("k", 1000)) {
		t.Errorf("%+v, %v", i, err)
	}
	spoil("k", a.name())
	if _, err := c.Get(ctx, "k"); !errors.Is(err, client.ErrChecksum) {
		t.Errorf("get: %v", err)
	}
	if _, errs := c.GetBatch(ctx, []string{"k"}); !errors.Is(errs[0], client.ErrChecksum) {
		t.Errorf("batch: %v", errs[0])
	}
	r, err := c.Open(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); !errors.Is(err, client.ErrChecksum) {
		t.Errorf("reader: %v", err)
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := r.WriteTo(io.Discard); !errors.Is(err, client.ErrChecksum) {
		t.Errorf("WriteTo: %v", err)
	}
	if _, err := careless.Get(ctx, "k"); err != nil {
		t.Errorf("a reader without checksums: %v", err)
	}
	b := newNode(t, m.Addr, 16*mib)
	if err := c.Put(ctx, "two", value("two", 1000), client.Replicas(2)); err != nil {
		t.Fatal(err)
	}
	spoil("two", b.name())
	for range 10 {
		check(t, c, "two", 1000)
	}
}

// A client that owns the memory copies it without any connection, whatever name its segment goes by: the peer's
// instance id tells. Another process at the same address, or the same name elsewhere, would not be taken for it.
func TestOwnSegmentIsCopied(t *testing.T) {
	m := startMaster(t)
	n := prepareNode(t, m.Addr, 16*mib)
	alias, data := slowPeer(t, n.Client.Engine())
	n.lend(t, alias)
	data.Cut()
	ctx := deadline(t)
	if err := n.Client.Put(ctx, "k", value("k", mib)); err != nil {
		t.Fatal(err)
	}
	check(t, n.Client, "k", mib)
	buf := make([]byte, mib)
	region := testRegion(t, n.Client.Engine(), buf)
	if _, err := n.Client.GetInto(ctx, "k", region); err != nil || !bytes.Equal(buf, value("k", mib)) {
		t.Errorf("into registered memory: %v", err)
	}
	other := newClient(t, m.Addr)
	if _, err := other.Get(ctx, "k"); !errors.Is(err, client.ErrTransfer) {
		t.Errorf("another engine of this process, over a cut connection: %v", err)
	}
}

// testRegion registers memory with an engine.
func testRegion(t testing.TB, e *transfer.Engine, b []byte) []byte {
	t.Helper()
	r, err := segment.Wrap(b, "", transports.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Register(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return b
}
