package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/metadata"
)

// store is a metadata service in memory that can list.
type store struct {
	metadata.Backend
	entries map[string]string
	fail    error
	closed  *atomic.Int32
}

func (s store) Get(_ context.Context, key string) (metadata.Entry, error) {
	if s.fail != nil {
		return metadata.Entry{}, s.fail
	}
	return metadata.Entry{}, metadata.ErrNotFound
}

func (s store) Close() error { s.closed.Add(1); return nil }

// lister adds the ability to list.
type lister struct{ store }

func (s lister) List(_ context.Context, prefix string) ([]metadata.Entry, error) {
	var out []metadata.Entry
	for k, v := range s.entries {
		if len(k) > len(prefix) && k[:len(prefix)] == prefix {
			out = append(out, metadata.Entry{Key: k, Value: []byte(v)})
		}
	}
	return out, s.fail
}

func service(b metadata.Backend, err error) func(*Host) {
	return func(h *Host) {
		h.Setup.Metadata = &Metadata{Type: "etcd", Address: "etcd://10.0.0.1:2379", Prefix: "mooncake/", Open: func(context.Context) (metadata.Backend, error) { return b, err }}
	}
}

func TestMetadata(t *testing.T) {
	var closed atomic.Int32
	try(t, checkMetadata, []situation{
		{"P2P", none, nil, Pass, []string{"P2PHANDSHAKE"}, nil},
		{"answers", none, service(store{closed: &closed}, nil), Pass, []string{"etcd etcd://10.0.0.1:2379 answers in"}, nil},
		{"its own", none, func(h *Host) { h.Setup.Metadata = &Metadata{Type: "memory", Own: true} }, Pass, []string{"in this node"}, nil},
		{"gone", none, service(store{fail: fmt.Errorf("dial: %w", metadata.ErrUnavailable), closed: &closed}, nil), Fail, []string{"does not answer"}, []string{"start the service"}},
		{"refuses", none, service(store{fail: fmt.Errorf("password: %w", metadata.ErrRefused), closed: &closed}, nil), Fail, []string{"refuses"}, []string{"user, password"}},
		{"cannot be made", none, service(nil, errors.New("ca.pem: no such file")), Fail, []string{"ca.pem"}, []string{"metadata_server"}},
	})
	if closed.Load() != 3 {
		t.Errorf("%d of 3 connections were closed", closed.Load())
	}
}

func TestMaster(t *testing.T) {
	master := func(addrs []string, up ...string) func(*Host) {
		return func(h *Host) {
			h.Setup.Master = Master{Addrs: addrs, Ready: func(_ context.Context, a string) error {
				for _, u := range up {
					if a == u {
						return nil
					}
				}
				return errors.New("connection refused")
			}}
		}
	}
	try(t, checkMaster, []situation{
		{"no Store", none, nil, "", nil, nil},
		{"answers", none, master([]string{"10.0.0.1:50051"}, "10.0.0.1:50051"), Pass, []string{"10.0.0.1:50051 answers in"}, nil},
		{"gone", none, master([]string{"10.0.0.1:50051"}), Fail, []string{"10.0.0.1:50051: connection refused"}, []string{"master_server_address"}},
		{"one of two", none, master([]string{"a:1", "b:1"}, "b:1"), Warn, []string{"b:1 answers in", "a:1: connection refused"}, []string{"standby"}},
		{"its own", none, func(h *Host) { h.Setup.Master = Master{Addrs: []string{":50051"}, Own: true} }, Pass, []string{"in this node"}, nil},
	})
}

// fakeConn is a connection to a host that is not loopback.
type fakeConn struct {
	net.Conn
	to net.Addr
}

func (c fakeConn) RemoteAddr() net.Addr { return c.to }
func (c fakeConn) Close() error         { return nil }

// network answers for the daemons in peers, by host, with the packet size or the error given.
func network(peers map[string]any) func(*Host) {
	return func(h *Host) {
		h.Network.Dial = func(_ context.Context, addr string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			if err, bad := peers[host].(error); bad && !errors.Is(err, handshake.ErrNoReply) {
				return nil, err
			}
			return fakeConn{to: &net.TCPAddr{IP: net.ParseIP(host), Port: 1}}, nil
		}
		h.Network.Probe = func(_ context.Context, host string, port int) error {
			err, _ := peers[host].(error)
			return err
		}
		h.Network.Segments = func(c net.Conn) (int, int) {
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			n, _ := peers[host].(int)
			return n, 8948
		}
	}
}

func both(fs ...func(*Host)) func(*Host) {
	return func(h *Host) {
		for _, f := range fs {
			f(h)
		}
	}
}

func TestPeers(t *testing.T) {
	var closed atomic.Int32
	listed := func(entries map[string]string) func(*Host) {
		return service(lister{store{entries: entries, closed: &closed}}, nil)
	}
	named := func(names ...string) func(*Host) { return func(h *Host) { h.Setup.Peers = names } }
	refused := errors.New("connection refused")
	three := map[string]string{
		"mooncake/rpc_meta/a": `{"ip_or_host_name":"10.0.0.2","rpc_port":15001}` + "\n", "mooncake/rpc_meta/b": `{"ip_or_host_name":"10.0.0.3","rpc_port":15001}`,
		"mooncake/rpc_meta/c": `{"ip_or_host_name":"[2001:db8::4]","rpc_port":15001}`, "mooncake/ram/a": `{}`,
	}
	many := map[string]string{}
	for i := range 100 {
		many[fmt.Sprintf("mooncake/rpc_meta/n%d", i)] = fmt.Sprintf(`{"ip_or_host_name":"10.1.0.%d","rpc_port":15001}`, i)
	}
	try(t, checkPeers, []situation{
		{"nobody to ask", none, nil, "", nil, nil},
		{"nobody registered", none, listed(nil), Pass, []string{"no other engine"}, nil},
		{"a service that cannot list", none, service(store{closed: &closed}, nil), Pass, []string{"cannot list"}, nil},
		{"a service that is gone", none, service(store{fail: metadata.ErrUnavailable, closed: &closed}, nil), Pass, nil, nil},
		{"all there", none, both(listed(three), network(map[string]any{"10.0.0.2": 8948, "10.0.0.3": 8948, "2001:db8::4": 8948})), Pass, []string{"3 of 3 peers answer"}, nil},
		{"one gone", none, both(listed(three), network(map[string]any{"10.0.0.2": 8948, "10.0.0.3": refused})), Warn, []string{"2 of 3", "b: connection refused"}, []string{"firewall"}},
		{"an old one", none, both(listed(three), network(map[string]any{"10.0.0.2": fmt.Errorf("x: %w", handshake.ErrNoReply)})), Pass, []string{"2 of 3", "answer no probe, as old engines do: a"}, nil},
		{"all gone", none, both(named("10.0.0.2:15001", "10.0.0.3"), network(map[string]any{"10.0.0.2": refused, "10.0.0.3": refused})), Fail, []string{"0 of 2"}, nil},
		{"named and listed once", none, both(listed(map[string]string{"mooncake/rpc_meta/a": three["mooncake/rpc_meta/a"]}), named("10.0.0.2:15001"), network(nil)), Pass, []string{"1 of 1"}, nil},
		{"small packets on the way", none, both(listed(three), network(map[string]any{"10.0.0.2": 1460, "10.0.0.3": 8948, "2001:db8::4": 8948})), Warn, []string{"a takes 1460 bytes a packet, this machine 8948"}, []string{"mtu 9000"}},
		{"a bad name", none, both(named("10.0.0.2:x"), network(nil)), Fail, []string{"10.0.0.2:x"}, nil},
		{"entries of nonsense", none, both(listed(map[string]string{"mooncake/rpc_meta/a": `{"ip_or_host_name":"10.0.0.2","rpc_port":1e9}`, "mooncake/rpc_meta/b": "<html>"}), network(nil)), Warn, []string{"names no host or no port", "not an rpc_meta document"}, []string{"remove"}},
		{"more than are asked", none, both(listed(many), network(nil)), Pass, []string{"64 of 64 peers answer (the first 64 of 100 were asked)"}, nil},
	})
}

// Packet sizes come from the kernel; on loopback both ends have the same.
func TestSegmentSizes(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if c, err := ln.Accept(); err == nil {
			defer c.Close()
			_, _ = c.Read(make([]byte, 1)) // until the other side has looked
		}
	})
	c, err := machineNetwork().Dial(t.Context(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	agreed, offered := segmentSizes(c)
	if agreed < 1000 || offered < 1000 || agreed > 65535 || offered > 65535 {
		t.Errorf("agreed %d, offered %d", agreed, offered)
	}
	c.Close()
	ln.Close()
	wg.Wait()
	if a, o := segmentSizes(fakeConn{}); a != 0 || o != 0 {
		t.Errorf("%d, %d of something that is no TCP connection", a, o)
	}
}
