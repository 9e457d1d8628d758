package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/memory"
	"github.com/mooncake-agent/mooncake/transports"
)

// The sequence of writes and the documents are those the wheel was recorded with.
func TestStorageKeysAndOrder(t *testing.T) {
	for _, c := range []struct {
		name, cluster, ram, rpc string
		raw                     bool
	}{
		{"node-A", "", "mooncake/ram/node-A", "mooncake/rpc_meta/node-A", false},
		{"node-A", "", "mooncake/ram/node-A", "mooncake/rpc_meta/node-A", true},
		{"my/seg", "", "mooncake/my/seg", "mooncake/rpc_meta/my/seg", false},
		{"127.0.0.1:17121", "c1", "mooncake/c1/ram/127.0.0.1:17121", "mooncake/c1/rpc_meta/127.0.0.1:17121", false},
		{"a b@c+d~e_f.é%", "c1/", "mooncake/c1/ram/a b@c+d~e_f.é%", "mooncake/c1/rpc_meta/a b@c+d~e_f.é%", false},
	} {
		t.Run(fmt.Sprintf("%s raw=%v", c.name, c.raw), func(t *testing.T) {
			p := newPlain(t)
			now := time.Date(2026, 11, 29, 17, 32, 7, 411093000, time.Local)
			e := newEngine(t, named(c.name, p), func(o *transfer.Options) {
				o.ClusterID, o.MetadataRaw, o.Now = c.cluster, c.raw, func() time.Time { return now }
			})
			if err := e.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, addr := register(t, e, 4096)
			rs := []transports.Region{wrap(t, mapped(t, 4096)), wrap(t, mapped(t, 8192))}
			if err := e.RegisterBatch(t.Context(), rs); err != nil {
				t.Fatal(err)
			}
			if err := e.UnregisterBatch(t.Context(), []uint64{rs[0].Addr(), addr}); err != nil {
				t.Fatal(err)
			}
			d := e.Descriptor()
			id := e.Identity()
			newline := "\n"
			if c.raw {
				newline = ""
			}
			quoted := strings.ReplaceAll(c.name, "é", `\u00e9`)
			want := fmt.Sprintf(`{"buffers":[{"addr":%d,"length":8192,"name":"%s"}],"mooncake_agent":{"instance":"%s","v":1},"name":"%s","protocol":"tcp",`+
				`"rdma_server_name":"","tcp_data_host":"127.0.0.1","tcp_data_port":%d,"tcp_proto_version":2,"timestamp":"2026-11-29 17:32:07.411093"}`+newline,
				rs[1].Addr(), quoted, id.Instance, quoted, d.TCPDataPort)
			if diff := cmp.Diff(want, p.value(t, c.ram)); diff != "" {
				t.Error(diff)
			}
			rpc := p.value(t, c.rpc)
			if !strings.HasPrefix(rpc, `{"ip_or_host_name":"127.0.0.1","rpc_port":1`) || !strings.HasSuffix(rpc, "}"+newline) {
				t.Errorf("rpc_meta %q", rpc)
			}
			closeEngine(t, e)
			if diff := cmp.Diff([]string{"PUT " + c.rpc, "PUT " + c.ram, "PUT " + c.ram, "PUT " + c.ram, "PUT " + c.ram, "DELETE " + c.rpc, "DELETE " + c.ram}, p.log()); diff != "" {
				t.Error(diff)
			}
			if v := p.value(t, c.ram) + p.value(t, c.rpc); v != "" {
				t.Errorf("left behind: %s", v)
			}
		})
	}
}

func TestTransferInStorageMode(t *testing.T) {
	store := memory.NewStore()
	for name, backend := range map[string]func() metadata.Backend{
		"memory": func() metadata.Backend { b := store.Open(); t.Cleanup(func() { b.Close() }); return b },
		"plain":  func() func() metadata.Backend { p := newPlain(t); return func() metadata.Backend { return p } }(),
	} {
		t.Run(name, func(t *testing.T) {
			a := startEngine(t, named("node-A", backend()))
			b := startEngine(t, named("node/B", backend()))
			_, addr := register(t, b, 1<<20)
			s := open(t, a, "//node/B")
			roundTrip(t, a, s, addr, 1<<20)
			if err := a.Probe(t.Context(), "node/B"); err != nil {
				t.Error(err)
			}
			if err := a.Notify(t.Context(), "node/B", transfer.Message{Text: "x"}); err != nil {
				t.Error(err)
			}
			if m := b.Notifies(); len(m) != 1 {
				t.Errorf("%q", m)
			}
			if _, err := a.Open(t.Context(), "node-C"); !errors.Is(err, transfer.ErrNoSegment) || transfer.Code(err) != -200 {
				t.Errorf("got %v", err)
			}
			if err := a.Probe(t.Context(), "node-C"); !errors.Is(err, transfer.ErrNoRPCMeta) || transfer.Code(err) != -200 {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Our own leased entries are gone ttl after a crash; Close is what a crash does not do.
func TestEntriesAreLeased(t *testing.T) {
	var mu sync.Mutex
	var expire []func()
	store := memory.NewStore(memory.WithAfterFunc(func(_ time.Duration, f func()) func() bool {
		mu.Lock()
		defer mu.Unlock()
		expire = append(expire, f)
		return func() bool { return true }
	}))
	crashing := store.Open()
	e := newEngine(t, named("node-A", crashing))
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(context.Background()); !errors.Is(err, metadata.ErrClosed) {
			t.Errorf("close without a metadata service: %v", err)
		}
	}()
	crashing.Close() // as a process that dies: nothing renews the lease any more
	mu.Lock()
	if len(expire) == 0 {
		t.Fatal("nothing is leased")
	}
	for _, f := range expire {
		f()
	}
	mu.Unlock()
	b := store.Open()
	defer b.Close()
	left, err := b.List(t.Context(), "mooncake/")
	if err != nil || len(left) != 0 {
		t.Fatalf("%d entries left, %v", len(left), err)
	}
}

// publishedBy waits until both entries of a name are those of e.
func publishedBy(t *testing.T, b metadata.Backend, e *transfer.Engine, within time.Duration) {
	t.Helper()
	testenv.Eventually(t, within, func() error {
		ram, err := b.Get(t.Context(), "mooncake/ram/"+e.Name())
		if err != nil {
			return err
		}
		if !strings.Contains(string(ram.Value), e.Identity().Instance) {
			return fmt.Errorf("ram is %s", ram.Value)
		}
		rpc, err := b.Get(t.Context(), "mooncake/rpc_meta/"+e.Name())
		if err != nil {
			return err
		}
		if !strings.Contains(string(rpc.Value), `"127.0.0.1"`) {
			return fmt.Errorf("rpc_meta is %s", rpc.Value)
		}
		return e.Health()
	})
}

func TestRepublish(t *testing.T) {
	store := memory.NewStore()
	type service struct {
		b     metadata.Backend
		reset func()
	}
	for name, s := range map[string]service{
		"watched": {store.Open(), store.Reset},
		"polled": func() service {
			st := memory.NewStore()
			return service{&plain{b: st.Open(), values: map[string][][]byte{}}, st.Reset}
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			e := startEngine(t, named("node-A", s.b))
			_, addr := register(t, e, 4096)
			a := startEngine(t, named("node-B", s.b))
			publishedBy(t, s.b, e, testDeadline)
			rpc, err := s.b.Get(t.Context(), "mooncake/rpc_meta/node-A")
			if err != nil {
				t.Fatal(err)
			}
			dead := fmt.Sprintf(`{"ip_or_host_name":"127.0.0.1","rpc_port":%d}`, testenv.FreePort(t))
			for what, harm := range map[string]func() error{
				"rpc_meta deleted":     func() error { return s.b.Delete(t.Context(), "mooncake/rpc_meta/node-A") },
				"ram deleted":          func() error { return s.b.Delete(t.Context(), "mooncake/ram/node-A") },
				"rpc_meta overwritten": func() error { return s.b.Put(t.Context(), "mooncake/rpc_meta/node-A", []byte(dead)) },
				"ram overwritten":      func() error { return s.b.Put(t.Context(), "mooncake/ram/node-A", []byte(`{"protocol":"tcp"}`)) },
				"service restarted":    func() error { s.reset(); return nil },
			} {
				t.Run(what, func(t *testing.T) {
					if err := harm(); err != nil {
						t.Fatal(err)
					}
					began := time.Now()
					testenv.Eventually(t, testDeadline, func() error {
						now, err := s.b.Get(t.Context(), "mooncake/rpc_meta/node-A")
						if err != nil {
							return err
						}
						if string(now.Value) != string(rpc.Value) {
							return fmt.Errorf("rpc_meta is %s", now.Value)
						}
						return nil
					})
					publishedBy(t, s.b, e, testDeadline)
					if d := time.Since(began); d > 3*time.Second { // one second on a machine that is not busy
						t.Errorf("took %v", d)
					}
					// What was registered is in the new document too, for peers that come now.
					a.Forget("node-A")
					roundTrip(t, a, open(t, a, "node-A"), addr, 100)
				})
			}
		})
	}
}

// An engine that crashed leaves its entries behind where there are no leases. Its successor replaces
// them and does not inherit its buffers.
func TestStaleEntries(t *testing.T) {
	other := startEngine(t) // an engine that got the dead one's port
	_, port, _, err := handshake.SplitName(other.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		rpc  string
	}{
		{"nobody listens", fmt.Sprintf(`{"ip_or_host_name":"127.0.0.1","rpc_port":%d}`, testenv.FreePort(t))},
		{"another engine has the port", fmt.Sprintf(`{"ip_or_host_name":"127.0.0.1","rpc_port":%d}`, port)},
		{"unreadable", `{"rpc_port":"x"}`},
		{"empty", `{}`},
		{"no JSON", `hello`},
	} {
		for _, always := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, python=%v", c.name, always), func(t *testing.T) {
				p := newPlain(t)
				p.setFail(refuseDuplicates(p, always))
				if err := p.b.Put(t.Context(), "mooncake/rpc_meta/node-A", []byte(c.rpc)); err != nil {
					t.Fatal(err)
				}
				stale := `{"buffers":[{"addr":138538465099776,"length":65536,"name":"node-A"}],"name":"node-A","protocol":"tcp","tcp_data_port":15535}`
				if err := p.b.Put(t.Context(), "mooncake/ram/node-A", []byte(stale)); err != nil {
					t.Fatal(err)
				}
				e := startEngine(t, named("node-A", p))
				if d := e.Descriptor(); len(d.Buffers) != 0 {
					t.Errorf("inherited %+v", d.Buffers)
				}
				if v := p.value(t, "mooncake/ram/node-A"); strings.Contains(v, "138538465099776") || !strings.Contains(v, e.Identity().Instance) {
					t.Errorf("ram is %s", v)
				}
				if v := p.value(t, "mooncake/rpc_meta/node-A"); v == c.rpc {
					t.Errorf("rpc_meta is %s", v)
				}
			})
		}
	}
}

func TestNameTaken(t *testing.T) {
	for name, p := range map[string]*plain{"replaces": newPlain(t), "C++": newPlain(t), "Python": newPlain(t)} {
		t.Run(name, func(t *testing.T) {
			if name != "replaces" {
				p.setFail(refuseDuplicates(p, name == "Python"))
			}
			first := startEngine(t, named("node-A", p))
			before := p.value(t, "mooncake/rpc_meta/node-A") + p.value(t, "mooncake/ram/node-A")
			second := newEngine(t, named("node-A", p))
			err := second.Start(t.Context())
			if !errors.Is(err, transfer.ErrNameTaken) || !strings.Contains(err.Error(), "127.0.0.1:") {
				t.Fatalf("got %v", err)
			}
			if after := p.value(t, "mooncake/rpc_meta/node-A") + p.value(t, "mooncake/ram/node-A"); after != before {
				t.Errorf("the failed start changed the first one's entries:\n%s\n%s", before, after)
			}
			if err := first.Health(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Of several that start at the same moment under one name, exactly one lives.
func TestNameRace(t *testing.T) {
	store := memory.NewStore()
	for round := range 5 {
		var mu sync.Mutex
		var alive []*transfer.Engine
		var wg sync.WaitGroup
		for range 4 {
			b := store.Open()
			t.Cleanup(func() { b.Close() })
			e := newEngine(t, named("node-A", b))
			wg.Go(func() {
				err := e.Start(context.Background())
				if err == nil {
					mu.Lock()
					alive = append(alive, e)
					mu.Unlock()
				} else if !errors.Is(err, transfer.ErrNameTaken) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		b := store.Open()
		// Two can have passed the checks in turn: then the one with the lower instance id keeps the name.
		testenv.Eventually(t, testDeadline, func() error {
			healthy := 0
			for _, e := range alive {
				if e.Health() == nil {
					healthy++
				}
			}
			if healthy != 1 {
				return fmt.Errorf("round %d: %d of %d healthy", round, healthy, len(alive))
			}
			return nil
		})
		for _, e := range alive {
			closeEngine(t, e)
		}
		left, err := b.List(t.Context(), "mooncake/")
		if err != nil || len(left) != 0 {
			t.Fatalf("%d entries left, %v", len(left), err)
		}
		b.Close()
	}
}

// A wheel engine takes a name without asking, and deletes both entries when it ends.
func TestForeignTakeover(t *testing.T) {
	store := memory.NewStore()
	b := store.Open()
	t.Cleanup(func() { b.Close() })
	e := startEngine(t, named("node-A", b))
	daemon := handshake.NewServer(handshake.ServerConfig{})
	daemon.Handle(handshake.TypeMetadata, nil)
	ln, err := handshake.Listen(t.Context(), "127.0.0.1", handshake.DefaultPorts)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); daemon.Serve(ln) }()
	defer func() { daemon.Close(); <-served }()
	_, port, _, _ := handshake.SplitName(ln.Addr().String())
	wheel := fmt.Sprintf(`{"ip_or_host_name":"127.0.0.1","rpc_port":%d}`+"\n", port)
	put := func() {
		t.Helper()
		for key, v := range map[string]string{"mooncake/rpc_meta/node-A": wheel, "mooncake/ram/node-A": `{"name":"node-A","protocol":"tcp","tcp_data_port":1}` + "\n"} {
			if err := b.Put(t.Context(), key, []byte(v)); err != nil {
				t.Fatal(err)
			}
		}
	}
	put()
	publishedBy(t, b, e, testDeadline) // the wheel does not look again, so ours stays
	b.Delete(t.Context(), "mooncake/rpc_meta/node-A")
	b.Delete(t.Context(), "mooncake/ram/node-A")
	publishedBy(t, b, e, testDeadline)
}
