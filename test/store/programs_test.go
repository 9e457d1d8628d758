package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// httpCall returns the status and the body of a request.
func httpCall(t testing.TB, method, url string, body any) (int, string) {
	t.Helper()
	status, text, err := tryHTTP(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return status, text
}

func tryHTTP(method, url string, body any) (int, string, error) {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, "", err
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, url, in)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	c := http.Client{Timeout: 30 * time.Second}
	r, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	return r.StatusCode, string(b), err
}

// waitPort waits until a program listens.
func waitPort(t testing.TB, p *testenv.Process, port int) {
	t.Helper()
	testenv.Eventually(t, late, func() error {
		select {
		case <-p.Exited():
			t.Fatalf("it ended: %v\n%s", p.Wait(0), p.Stderr())
		default:
		}
		c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// TestRestServer runs the wheel's mc_store_rest_server, an HTTP front of a Store client, against the master. It
// needs a wheel with its dependencies, which "make setup" installs.
func TestRestServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, newest)
	w := testenv.Wheel(t)
	port := testenv.FreePort(t)
	config := testenv.WriteConfig(t, testenv.Config{
		"local_hostname": fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), "global_segment_size": 16 * mib, "local_buffer_size": 16 * mib,
		"device_name": "", "master_server_address": s.Addr, "admin": nil, "bind_address": nil,
	})
	cmd := exec.Command(filepath.Join(filepath.Dir(w.Python), "mc_store_rest_server"), "--config", config, "--port", fmt.Sprint(port))
	cmd.Env = w.Env()
	p := testenv.StartCmd(t, cmd)
	waitPort(t, p, port)
	url := fmt.Sprintf("http://127.0.0.1:%d/api", port)

	want := func(status int, contains, method, path string, body any) {
		t.Helper()
		if got, text := httpCall(t, method, url+path, body); got != status || !strings.Contains(text, contains) {
			t.Errorf("%s %s: %d %q, want %d with %q", method, path, got, text, status, contains)
		}
	}
	want(200, "", "PUT", "/put", map[string]any{"key": "k", "value": "hello"})
	want(200, "hello", "GET", "/get/k", nil)
	want(404, "", "GET", "/get/nothing", nil)
	want(200, "true", "GET", "/exist/k", nil)
	want(200, "false", "GET", "/exist/nothing", nil)

	// Other clients share its objects.
	c := startClient(t, newest, s.addr(newest), options{segment: 16})
	c.want(len("hello"), "get_size", args{"key": "k"})
	c.put("from python", 10)
	want(200, "true", "GET", "/exist/from%20python", nil)
	want(200, "", "PUT", "/put", map[string]any{"key": "unread", "value": "x"})
	want(200, "", "DELETE", "/remove/unread", nil)
	want(200, "false", "GET", "/exist/unread", nil)
	want(200, "", "DELETE", "/remove_all", nil)

	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(soon); err != nil {
		t.Errorf("end of the REST server: %v\n%s", err, lastLines(p.Stderr(), 20))
	}
	s.waitSegments(t, soon, 1)
}

// TestClientProgram runs the wheel's mooncake_client, which holds the segment for the small clients of a host, with
// the master's own HTTP metadata service.
func TestClientProgram(t *testing.T) {
	t.Parallel()
	meta := testenv.FreePort(t)
	s := startServer(t, newest, "--enable_http_metadata_server=true", "--http_metadata_server_host=127.0.0.1", fmt.Sprintf("--http_metadata_server_port=%d", meta))
	service := fmt.Sprintf("http://127.0.0.1:%d/metadata", meta)
	w := testenv.StoreWheel(t, newest)
	port := testenv.FreePort(t)
	cmd := exec.Command(w.Bin("mooncake_client"), "--host=127.0.0.1", fmt.Sprintf("--port=%d", port), "--metadata_server="+service,
		"--master_server_address="+s.Addr, "--protocol=tcp", "--global_segment_size=64 MB", "--local_buffer_size=16MB")
	cmd.Env = w.Env()
	p := testenv.StartCmd(t, cmd)
	waitPort(t, p, port)
	s.waitSegments(t, soon, 1)

	small := startDriver(t, newest)
	small.want(0, "setup_dummy", args{"pool": 32 * mib, "buffer": 16 * mib, "server": fmt.Sprintf("127.0.0.1:%d", port)})
	small.put("small", 5000)
	small.check("small", "small", 5000)
	small.want(1, "is_exist", args{"key": "small"})

	// A full client on the same metadata service reads and writes the same objects, in memory of both.
	full := startClient(t, newest, s.addr(newest), options{segment: 16, meta: service})
	full.check("small", "small", 5000)
	full.put("full", 7000, args{"preferred_segment": full.host})
	small.check("full", "full", 7000)
	small.want(0, "remove", args{"key": "small", "force": true})
	full.want(0, "is_exist", args{"key": "small"})
	full.want(0, "close", nil)

	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(soon); err != nil {
		t.Logf("end of mooncake_client: %v", err) // its status is upstream's affair
	}
	s.waitSegments(t, soon, 0)
}

// TestHTTPMetadata has clients of old and new releases find each other through the master's metadata service.
func TestHTTPMetadata(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"0.3.10.post2", newest} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			meta := testenv.FreePort(t)
			s := startServer(t, v, "--enable_http_metadata_server=true", "--http_metadata_server_host=127.0.0.1", fmt.Sprintf("--http_metadata_server_port=%d", meta))
			o := options{segment: 16, meta: fmt.Sprintf("http://127.0.0.1:%d/metadata", meta)}
			a, b := startClient(t, v, s.addr(v), o), startClient(t, v, s.addr(v), o)
			a.put("k", 100_000, args{"preferred_segment": b.host})
			a.check("k", "k", 100_000)
			b.check("k", "k", 100_000)
			key := "mooncake%2Fram%2F" + strings.ReplaceAll(b.host, ":", "%3A")
			entry := o.meta + "?key=" + key
			testenv.Eventually(t, soon, func() error {
				status, body, err := tryHTTP("GET", entry, nil)
				if err == nil && (status != 200 || !strings.Contains(body, `"protocol"`)) {
					err = fmt.Errorf("%s: %d %q", entry, status, body)
				}
				return err
			})
			b.want(0, "close", nil)
			testenv.Eventually(t, soon, func() error {
				status, body, err := tryHTTP("GET", entry, nil)
				if err == nil && status != 404 {
					err = fmt.Errorf("after close: %d %q", status, body)
				}
				return err
			})
		})
	}
}
