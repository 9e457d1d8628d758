// Package client is the Store client: it puts, reads and removes objects in a Mooncake Store, and lends
// memory to it. It speaks protocol 0.3.13 with upstream's mooncake_master and with our own, and moves data
// from and to the segments of wheels and of our nodes alike.
//
//	c, err := client.New(client.Options{Config: client.DefaultConfig(), Master: []string{"10.0.0.1:50051"}, Engine: engine})
//	err = c.Put(ctx, "key", value, client.Replicas(2))
//	value, err = c.Get(ctx, "key")
//	err = c.Close(ctx)
//
// The engine is the caller's: started before the first call that moves data and closed after the client.
//
// # Put
//
// The master chooses where the replicas go (PutStart), the client writes all of them and tells the master
// (PutEnd), which makes the object visible. When a write fails, the put is revoked; when the outcome of a
// call is unknown, too. An object is written once: a second put of its key is [ErrExists]; Upsert replaces.
//
// # Get and leases
//
// The master's answer to a lookup names the replicas and grants a lease: until it ends, counted from before
// the lookup was sent, their memory holds this object. After every transfer the clock is looked at again;
// bytes that came too late are not returned. A read that takes longer renews its lease in time, and is
// given up with [ErrLeaseExpired] if the object is gone by then. A replica that cannot be reached is left
// out for a while, and the next one is read.
//
// # Memory
//
// Values and destinations are the caller's memory, registered with the engine or not, and are never copied
// on the way. They must stay untouched until the call returns. One error leaves a destination in use: one
// that wraps transfer.ErrUnquiet. Replicas in this process, proved by the engine's instance id and not by an
// address, are copied.
//
// # Lending memory
//
// [Client.Mount] lends a registered region to the store. A heartbeat of its own (goroutine and connection)
// keeps it there, also over a restart of the master, copies and moves what the master asks for, and
// withdraws it in order at the end.
//
// # Config section "store"
//
// See [Config].
//
// # Metrics
//
// mooncake_store_client_ops_total{op,result}, _bytes_total{op}, _op_seconds{op}, _lease_renewals_total{result},
// _heartbeats_total{result}, _remounts_total, _tasks_total{type,result}, _mounted_bytes.
package client
