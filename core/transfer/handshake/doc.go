// Package handshake is Mooncake's peer daemon: a TCP service in every Transfer Engine that serves segment
// descriptors (P2PHANDSHAKE mode), takes notifications, answers probes and sets up RDMA connections.
// Upstream: mooncake-transfer-engine/src/transfer_metadata_plugin.cpp (SocketHandShakePlugin).
//
// One request per connection, in frames of
//
//	u64 little endian  length of everything that follows
//	u8                 type: 0 Connection, 1 Metadata, 2 Notify, 3 Probe
//	JSON text and a newline
//
// The oldest protocol has no type byte; its only message is Connection, recognised by a first byte above 3,
// and its reply has no type byte either.
//
// [Server] is the daemon, [Client] calls others, [Listen] opens a listener inside the configured port
// range. Where upstream serves one connection at a time, so that one silent client stops the daemon for 5 s,
// and dies of unexpected JSON, this server gives each connection its own goroutine, bounds their number
// per address and in total, and closes what it does not understand.
package handshake
