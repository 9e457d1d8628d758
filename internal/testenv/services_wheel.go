package testenv

import (
	"fmt"
	"net"
	"testing"
	"time"
)

// PythonMetadata starts the wheel's HTTP metadata server in Python. It serves /metadata on Addr, and
// forgets everything when it stops.
func PythonMetadata(t testing.TB) *Server {
	t.Helper()
	w := Wheel(t)
	addr := localAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	return wheelServer(t, addr, w.Python, "-m", "mooncake.http_metadata_server", "--host", "127.0.0.1", "--port", port,
		"--log-level", "WARNING")
}

// MasterMetadata starts the wheel's mooncake_master with its HTTP metadata server in C++, which serves
// /metadata on Addr, and forgets everything when it stops. That server listens on all addresses, whatever
// it is told.
func MasterMetadata(t testing.TB) *Server {
	t.Helper()
	w := Wheel(t)
	addr := localAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	return wheelServer(t, addr, w.Bin("mooncake_master"), "--rpc_address=127.0.0.1", fmt.Sprintf("--rpc_port=%d", FreePort(t)),
		"--metrics_host=127.0.0.1", fmt.Sprintf("--metrics_port=%d", FreePort(t)), "--enable_http_metadata_server=true",
		"--http_metadata_server_host=127.0.0.1", "--http_metadata_server_port="+port)
}

func wheelServer(t testing.TB, addr string, argv ...string) *Server {
	t.Helper()
	s := &Server{Addr: addr, Dir: t.TempDir(), t: t, argv: argv}
	s.ready = func() error {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			c.Close()
		}
		return err
	}
	s.Start()
	return s
}
