package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/master/serve"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/transports"
	_ "github.com/mooncake-agent/mooncake/transports/tcp"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// startStore runs a master in this process ("mooncake master" runs one by itself) and returns its address.
func startStore(ctx context.Context) (address string, stop func()) {
	cfg := serve.DefaultConfig()
	cfg.Listen.Addr, cfg.Admin.Addr = "127.0.0.1:0", ""
	s, err := serve.New(serve.Options{Config: cfg, Master: master.DefaultConfig()})
	must(err)
	must(s.Start(ctx))
	return s.Addr(), func() { must(s.Close(ctx)) }
}

// startEngine runs a Transfer Engine over tcp on loopback.
func startEngine(ctx context.Context) *transfer.Engine {
	tcp, err := transports.Kind.Build(ctx, "tcp", module.Env{}, module.NoConfig{})
	must(err)
	e, err := transfer.New(transfer.Options{Config: transfer.DefaultConfig(), LocalName: "127.0.0.1",
		Transports: []transfer.NamedTransport{{Name: "tcp", Transport: tcp}}})
	must(err)
	must(e.Start(ctx))
	return e
}

// lend makes a client that lends size bytes to the store.
func lend(ctx context.Context, master string, size uint64) (c *client.Client, stop func()) {
	e := startEngine(ctx)
	arena, err := segment.New(ctx, "example", size, segment.DefaultOptions())
	must(err)
	region, err := arena.Region(0, size, transports.ReadWrite)
	must(err)
	must(e.Register(ctx, region))
	c, err = client.New(client.Options{Config: client.DefaultConfig(), Master: []string{master}, Engine: e})
	must(err)
	fence := client.NewArenaFence(e, arena, region)
	m, err := c.Mount(client.SegmentSpec{Region: region, Fence: fence.Fence})
	must(err)
	must(m.Wait(ctx))
	return c, func() {
		must(c.Close(ctx)) // unmounts
		must(e.Close(ctx))
		fence.Close()
		must(arena.Close(ctx))
	}
}

// A store of one process: a master, a client that lends memory, and one that uses it.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address, stop := startStore(ctx)
	defer stop()
	_, stopNode := lend(ctx, address, 64<<20)
	defer stopNode()

	engine := startEngine(ctx)
	defer engine.Close(ctx)
	c, err := client.New(client.Options{Config: client.DefaultConfig(), Master: []string{address}, Engine: engine})
	must(err)
	defer c.Close(ctx)

	must(c.Put(ctx, "greeting", []byte("hello")))
	value, err := c.Get(ctx, "greeting")
	must(err)
	fmt.Printf("%s\n", value)

	err = c.Put(ctx, "greeting", []byte("again"))
	fmt.Println(errors.Is(err, client.ErrExists), client.Code(err), err)
	must(c.Upsert(ctx, "greeting", []byte("welcome")))

	_, err = c.Get(ctx, "nothing")
	fmt.Println(errors.Is(err, client.ErrNotFound))
	err = c.Remove(ctx, "nothing", false)
	fmt.Println(errors.Is(err, client.ErrNotFound))
	// Output:
	// hello
	// true OBJECT_ALREADY_EXISTS store: put "greeting": exists already: OBJECT_ALREADY_EXISTS
	// true
	// true
}

// Batches cost one call to the master each way, and the data moves in parallel. Each object has its own result.
func ExampleClient_PutBatch() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address, stop := startStore(ctx)
	defer stop()
	c, stopNode := lend(ctx, address, 64<<20)
	defer stopNode()

	errs := c.PutBatch(ctx, []client.Object{
		{Key: "a", Parts: [][]byte{[]byte("one "), []byte("value "), []byte("in parts")}},
		{Key: "b", Parts: [][]byte{[]byte("two")}},
		{Key: "empty"},
	}, client.SoftPin(10*time.Minute), client.Group("prefix-7"), client.Class(client.KVCache))
	fmt.Println(errs[0], errs[1], errors.Is(errs[2], client.ErrInvalid))

	into := []client.Target{{Key: "a", Dst: make([]byte, 100)}, {Key: "b", Dst: make([]byte, 100)}, {Key: "c", Dst: make([]byte, 100)}}
	for i, err := range c.GetBatchInto(ctx, into) {
		fmt.Printf("%q %v\n", into[i].Dst[:into[i].N], err)
	}
	// Output:
	// <nil> <nil> true
	// "one value in parts" <nil>
	// "two" <nil>
	// "" store: get "c": not found: OBJECT_NOT_FOUND
}

// A Reader takes a large object in pieces, each under a lease.
func ExampleClient_Open() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address, stop := startStore(ctx)
	defer stop()
	c, stopNode := lend(ctx, address, 64<<20)
	defer stopNode()

	must(c.Put(ctx, "k", []byte("a long story, told in pieces\n")))
	r, err := c.Open(ctx, "k")
	must(err)
	fmt.Println(r.Size())
	_, err = r.Seek(7, io.SeekStart)
	must(err)
	_, err = r.WriteTo(os.Stdout)
	must(err)
	// Output:
	// 29
	// story, told in pieces
}

// Two nodes, an object on both; one node leaves, the object stays.
func ExampleReplicas() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address, stop := startStore(ctx)
	defer stop()
	a, stopA := lend(ctx, address, 16<<20)
	_, stopB := lend(ctx, address, 16<<20)

	must(a.Put(ctx, "k", []byte("in two places"), client.Replicas(2)))
	i, err := a.Stat(ctx, "k")
	must(err)
	fmt.Println(i.Size, "bytes,", len(i.Replicas), "replicas")
	stopB()
	value, err := a.Get(ctx, "k")
	must(err)
	i, err = a.Stat(ctx, "k")
	must(err)
	fmt.Printf("%s, %d replica\n", value, len(i.Replicas))
	stopA()
	// Output:
	// 13 bytes, 2 replicas
	// in two places, 1 replica
}
