package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc"
)

// BenchmarkServer measures a server with null handlers over loopback, one request in flight on each
// connection. Generator and server share the CPUs.
func BenchmarkServer(b *testing.B) {
	s, err := rpc.NewServer(rpc.DefaultServerConfig(), rpc.Options{})
	if err != nil {
		b.Fatal(err)
	}
	r := NewestResolver{}
	Handle(s, ExistKey, r, func(_ *Call, _ *KeyRequest, resp *Result[bool]) { resp.Value = true })
	Handle(s, BatchExistKey, r, func(_ *Call, req *KeysRequest, resp *[]Result[bool]) {
		for range req.Keys {
			*resp = append(*resp, Result[bool]{Value: true})
		}
	})
	replica := []Replica{{ID: 1, Status: StatusComplete, Size: 64, Address: 1 << 40, Protocol: "tcp", Endpoint: "127.0.0.1:15999"}}
	Handle(s, BatchGetReplicaList, r, func(_ *Call, req *KeysRequest, resp *[]Result[ReplicaList]) {
		for range req.Keys {
			*resp = append(*resp, Result[ReplicaList]{Value: ReplicaList{Replicas: replica, LeaseTTLMS: 10000}})
		}
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Listen(ln, nil); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close(context.Background()) })

	keys := make([]string, 100)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%02d", strings.Repeat("k", 38), i)
	}
	one := &KeyRequest{Key: keys[0], Tenant: DefaultTenant}
	many := &KeysRequest{Keys: keys, Tenant: DefaultTenant}
	for _, c := range []struct {
		name   string
		id     uint32
		append func() ([]byte, error)
	}{
		{"ExistKey", ExistKey.ID(), func() ([]byte, error) { return ExistKey.AppendRequest(nil, Newest, one, true) }},
		{"BatchExistKey100", BatchExistKey.ID(), func() ([]byte, error) { return BatchExistKey.AppendRequest(nil, Newest, many, true) }},
		{"BatchGetReplicaList100", BatchGetReplicaList.ID(), func() ([]byte, error) { return BatchGetReplicaList.AppendRequest(nil, Newest, many, true) }},
	} {
		body, err := c.append()
		if err != nil {
			b.Fatal(err)
		}
		frame := rpc.AppendRequest(nil, 1, c.id, body)
		for _, conns := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%s/conns=%d", c.name, conns), func(b *testing.B) {
				b.ReportAllocs()
				var left atomic.Int64
				left.Store(int64(b.N))
				done := make(chan error, conns)
				start := time.Now()
				for range conns {
					conn, err := net.Dial("tcp", ln.Addr().String())
					if err != nil {
						b.Fatal(err)
					}
					go func() {
						defer conn.Close()
						buf := make([]byte, 64<<10)
						for left.Add(-1) >= 0 {
							if err := roundTripRaw(conn, frame, buf); err != nil {
								done <- err
								return
							}
						}
						done <- nil
					}()
				}
				for range conns {
					if err := <-done; err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "ops/s")
			})
		}
	}
}

func roundTripRaw(conn net.Conn, frame, buf []byte) error {
	if _, err := conn.Write(frame); err != nil {
		return err
	}
	n, err := io.ReadAtLeast(conn, buf, rpc.ResponseHeaderSize)
	if err != nil {
		return err
	}
	size := rpc.ResponseHeaderSize + int(binary.LittleEndian.Uint32(buf[8:]))
	if n < size {
		_, err = io.ReadFull(conn, buf[n:size])
	}
	return err
}

// BenchmarkClient measures [Invoke] with callers that share one client.
func BenchmarkClient(b *testing.B) {
	s, err := rpc.NewServer(rpc.DefaultServerConfig(), rpc.Options{})
	if err != nil {
		b.Fatal(err)
	}
	Handle(s, ExistKey, NewestResolver{}, func(_ *Call, _ *KeyRequest, resp *Result[bool]) { resp.Value = true })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Listen(ln, nil); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close(context.Background()) })
	c, err := rpc.NewClient(ln.Addr().String(), rpc.DefaultClientConfig(), rpc.ClientOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			b.ReportAllocs()
			var left atomic.Int64
			left.Store(int64(b.N))
			done := make(chan error, callers)
			start := time.Now()
			for range callers {
				go func() {
					req := &KeyRequest{Key: strings.Repeat("k", 40), Tenant: DefaultTenant}
					for left.Add(-1) >= 0 {
						if r, err := Invoke(context.Background(), c, ExistKey, Newest, req); err != nil || !r.Value {
							done <- fmt.Errorf("%v: %w", r, err)
							return
						}
					}
					done <- nil
				}()
			}
			for range callers {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "ops/s")
		})
	}
}
