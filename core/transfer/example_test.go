package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/metadata/memory"
	"github.com/mooncake-agent/mooncake/transports"
	_ "github.com/mooncake-agent/mooncake/transports/tcp"
)

// tcpTransports builds what the node builds from its config: here one tcp transport with its defaults.
func tcpTransports() []transfer.NamedTransport {
	t, err := transports.Kind.Build(context.Background(), "tcp", module.Env{}, module.NoConfig{})
	if err != nil {
		log.Fatal(err)
	}
	return []transfer.NamedTransport{{Name: "tcp", Transport: t}}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Two engines without a metadata service: one lends memory, the other writes and reads it.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	options := transfer.Options{Config: transfer.DefaultConfig(), LocalName: "127.0.0.1"}

	options.Transports = tcpTransports()
	target, err := transfer.New(options)
	must(err)
	must(target.Start(ctx))
	defer target.Close(ctx)
	memory := make([]byte, 4096) // real nodes take it from a segment.Arena
	region, err := segment.Wrap(memory, "cpu:0", transports.ReadWrite)
	must(err)
	must(target.Register(ctx, region))

	options.Transports = tcpTransports()
	initiator, err := transfer.New(options)
	must(err)
	must(initiator.Start(ctx))
	defer initiator.Close(ctx)
	peer, err := initiator.Open(ctx, target.Name()) // "127.0.0.1:<port>"
	must(err)
	base := peer.Descriptor().Buffers[0].Addr
	must(initiator.Write(ctx, peer, []byte("hello"), base))
	got := make([]byte, 5)
	must(initiator.Read(ctx, peer, got, base))

	must(target.Unregister(ctx, region.Addr())) // now the memory is ours alone again
	fmt.Printf("%s %s\n", memory[:5], got)
	err = initiator.Read(ctx, peer, got, base)
	fmt.Println(errors.Is(err, transports.ErrRejected))
	// Output:
	// hello hello
	// true
}

// With a metadata service segments have names of their own. A batch reports each request by itself.
func ExampleEngine_Submit() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	service := memory.NewStore().Open() // metadata.Kind builds etcd, redis and http ones
	defer service.Close()
	start := func(name string) *transfer.Engine {
		e, err := transfer.New(transfer.Options{Config: transfer.DefaultConfig(), LocalName: name, AdvertiseHost: "127.0.0.1",
			Metadata: service, Transports: tcpTransports()})
		must(err)
		must(e.Start(ctx))
		return e
	}
	a, b := start("node-A"), start("node-B")
	defer a.Close(ctx)
	defer b.Close(ctx)
	region, err := segment.Wrap(make([]byte, 100), "", transports.ReadWrite)
	must(err)
	must(b.Register(ctx, region))

	peer, err := a.Open(ctx, "node-B")
	must(err)
	base := peer.Descriptor().Buffers[0].Addr
	batch, err := a.SubmitWithNotify(ctx, []transfer.Request{
		{Write: true, Local: []byte("first"), Segment: peer, Remote: base},
		{Write: true, Local: []byte("second"), Segment: peer, Remote: base + 50},
	}, transfer.Message{Name: "node-A", Text: "both are there"})
	must(err)
	<-batch.Done()
	for i := range batch.Len() {
		s := batch.Status(i)
		fmt.Println(s.State, s.Bytes, s.Err)
	}
	fmt.Println(b.Notifies()[0].Text)

	batch, err = a.Submit(ctx, []transfer.Request{{Write: true, Local: make([]byte, 51), Segment: peer, Remote: base + 50}})
	must(err)
	err = batch.Wait(ctx)
	fmt.Println(batch.Status(0).State, errors.Is(err, transports.ErrRejected))
	// Output:
	// completed 5 <nil>
	// completed 6 <nil>
	// both are there
	// failed true
}

// A batch that takes too long is ended by its context, and then its memory is free again.
func ExampleBatch_Cancel() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	e, err := transfer.New(transfer.Options{Config: transfer.DefaultConfig(), LocalName: "127.0.0.1", Transports: tcpTransports()})
	must(err)
	must(e.Start(ctx))
	defer e.Close(ctx)
	region, err := segment.Wrap(make([]byte, 4096), "", transports.ReadWrite)
	must(err)
	must(e.Register(ctx, region))
	self, err := e.Open(ctx, e.Name()) // our own memory: a copy in this process
	must(err)
	batch, err := e.Submit(ctx, []transfer.Request{{Local: make([]byte, 4096), Segment: self, Remote: region.Addr()}})
	must(err)
	batch.Cancel()
	<-batch.Done()
	s := batch.Status(0).State
	fmt.Println(s == transfer.Completed || s == transfer.Canceled, batch.Quiet(ctx))
	// Output:
	// true <nil>
}
