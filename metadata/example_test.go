package metadata_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/memory"
)

// An entry is replaced only if it is still the one that was read.
func ExampleCommitter() {
	ctx := context.Background()
	b := memory.NewStore().Open()
	defer b.Close()
	const key = "mooncake/rpc_meta/node-A"
	b.Put(ctx, key, []byte("old"))
	seen, _ := b.Get(ctx, key)
	b.Put(ctx, key, []byte("by somebody else"))
	err := b.Commit(ctx, metadata.Write{Key: key, Value: []byte("new"), If: &seen.Version})
	fmt.Println(errors.Is(err, metadata.ErrConflict))
	// Output: true
}

// What a backend can do is found out by type assertion. A watch begins with a reset: list, then apply what
// follows.
func ExampleWatcher() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var b metadata.Backend = memory.NewStore().Open()
	defer b.Close()
	w, ok := b.(metadata.Watcher)
	if !ok {
		return // read the keys again from time to time
	}
	for ev, err := range w.Watch(ctx, "mooncake/ram/") {
		switch {
		case err != nil:
			fmt.Println("away:", err)
		case ev.Type == metadata.EventReset:
			entries, _ := b.(metadata.Lister).List(ctx, "mooncake/ram/")
			fmt.Println("begin with", len(entries), "entries")
			b.Put(ctx, "mooncake/ram/node-A", []byte("{}"))
		case ev.Type == metadata.EventPut:
			fmt.Println("new:", ev.Entry.Key)
			return
		}
	}
	// Output:
	// begin with 0 entries
	// new: mooncake/ram/node-A
}

// A key put with a lease vanishes with its owner.
func ExampleLeaser() {
	ctx := context.Background()
	b := memory.NewStore().Open()
	defer b.Close()
	lease, _ := b.Lease(ctx, 10*time.Second)
	lease.Put(ctx, "mooncake/ram/node-A", []byte("{}"))
	lease.Revoke(ctx)
	<-lease.Alive()
	_, err := b.Get(ctx, "mooncake/ram/node-A")
	fmt.Println(errors.Is(err, metadata.ErrNotFound))
	// Output: true
}
