package http

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/metadatatest"
)

var wheelServers = map[string]func(testing.TB) *testenv.Server{
	"python": testenv.PythonMetadata, "mooncake_master": testenv.MasterMetadata,
}

// The contract holds on both servers of the real wheel too.
func TestConformanceOnWheelServers(t *testing.T) {
	for name, start := range wheelServers {
		t.Run(name, func(t *testing.T) {
			metadatatest.Run(t, func(t testing.TB) metadatatest.Service {
				s := start(t)
				return metadatatest.Service{
					Open:     func(t testing.TB) metadata.Backend { return open(t, at("http://"+s.Addr+"/metadata")) },
					Timeout:  3 * time.Second,
					MaxValue: 1 << 20,
					// Seen on the Python server of 0.3.13.post1.
					TrimsKeys: name == "python",
					Stop:      func(testing.TB) { s.Stop() },
					Start:     func(testing.TB) { s.Start() },
					Pause:     func(testing.TB) { s.Signal(syscall.SIGSTOP) },
					Resume:    func(testing.TB) { s.Signal(syscall.SIGCONT) },
					Wipe:      func(testing.TB) { s.Restart() },
				}
			}, metadatatest.Declared{})
		})
	}
}

func TestWheelServersLimits(t *testing.T) {
	for name, start := range wheelServers {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			b := open(t, at("http://"+s.Addr+"/metadata"))
			ctx := timeout(t, 60*time.Second)
			const key = "mooncake/rpc_meta/node-A"
			for range 2 { // the second is refused by the Python server, and has happened already
				if err := b.Put(ctx, key, []byte(`{"p":1}`)); err != nil {
					t.Fatal(err)
				}
			}
			err := b.Put(ctx, key, []byte(`{"p":2}`))
			if !errors.Is(err, metadata.ErrRefused) || !strings.Contains(err.Error(), "Duplicate rpc_meta key not allowed") {
				t.Errorf("another value: %v", err)
			}
			if err := b.Delete(ctx, key); err != nil {
				t.Error(err)
			}
			if err := b.Put(ctx, key, []byte(`{"p":2}`)); err != nil {
				t.Errorf("after delete: %v", err)
			}
			// The document of 20,000 buffers has 1,100,183 bytes.
			err = b.Put(ctx, "mooncake/ram/node-big", make([]byte, 1_100_183))
			switch {
			case name == "python" && (!errors.Is(err, metadata.ErrTooLarge) || !strings.Contains(err.Error(), "1100183") || !strings.Contains(err.Error(), "1048576")):
				t.Errorf("a large value: %v", err)
			case name != "python" && err != nil:
				t.Errorf("a large value: %v", err)
			}
			// A wrong path is not taken for an empty store.
			wrong := open(t, at("http://"+s.Addr+"/wrong"))
			if err := wrong.Put(ctx, "k", nil); !errors.Is(err, metadata.ErrRefused) || !strings.Contains(err.Error(), "/metadata") {
				t.Errorf("a wrong path: %v", err)
			}
			s.Stop()
			begin := time.Now()
			if _, err := b.Get(context.Background(), key); !errors.Is(err, metadata.ErrUnavailable) || time.Since(begin) > time.Second {
				t.Errorf("a stopped server: %v after %v", err, time.Since(begin))
			}
		})
	}
}
