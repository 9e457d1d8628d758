package interop

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// metaService is one way for engines to find each other.
type metaService struct {
	name string
	// start runs the service for the test and returns its connection string.
	start func(t *testing.T) string
}

// wheelServices are those that exist without us.
var wheelServices = []metaService{
	{"p2p", func(*testing.T) string { return p2p }},
	{"http python", startPythonMeta},
	{"http master", startMasterMeta},
}

// startPythonMeta runs the wheel's HTTP metadata server in Python.
func startPythonMeta(t *testing.T) string {
	t.Helper()
	url, _ := startPythonMetaAt(t, testenv.FreePort(t))
	return url
}

func startPythonMetaAt(t *testing.T, port int) (string, *testenv.Process) {
	t.Helper()
	w := testenv.Wheel(t)
	p := testenv.StartCmd(t, w.Command("-m", "mooncake.http_metadata_server", "--host", "127.0.0.1", "--port", fmt.Sprint(port)))
	url := fmt.Sprintf("http://127.0.0.1:%d/metadata", port)
	awaitHTTP(t, p, url+"?key=mooncake%2Fram%2Fnobody")
	return url, p
}

// startMasterMeta runs the HTTP metadata server in C++ that is part of mooncake_master.
func startMasterMeta(t *testing.T) string {
	t.Helper()
	url, _ := startMasterMetaAt(t, testenv.FreePort(t))
	return url
}

func startMasterMetaAt(t *testing.T, port int) (string, *testenv.Process) {
	t.Helper()
	w := testenv.Wheel(t)
	cmd := w.Command()
	cmd.Path = w.Bin("mooncake_master")
	cmd.Args = []string{cmd.Path, "--rpc_address=127.0.0.1", fmt.Sprintf("--rpc_port=%d", testenv.FreePort(t)),
		"--metrics_host=127.0.0.1", fmt.Sprintf("--metrics_port=%d", testenv.FreePort(t)),
		"--enable_http_metadata_server=true", "--http_metadata_server_host=127.0.0.1",
		fmt.Sprintf("--http_metadata_server_port=%d", port)}
	p := testenv.StartCmd(t, cmd)
	url := fmt.Sprintf("http://127.0.0.1:%d/metadata", port)
	awaitHTTP(t, p, url+"?key=mooncake%2Fram%2Fnobody")
	return url, p
}

// awaitHTTP waits until p answers url at all.
func awaitHTTP(t *testing.T, p *testenv.Process, url string) {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		select {
		case <-p.Exited():
			t.Fatalf("ended: %v\n%s", p.Wait(soon), p.Stderr())
		default:
		}
		r, err := http.Get(url)
		if err != nil {
			return err
		}
		return r.Body.Close()
	})
}

// startOurMeta runs our HTTP metadata server, in a node of its own.
func startOurMeta(t *testing.T) string {
	t.Helper()
	_, url := testenv.StartMetadataNode(t, testenv.FreePort(t))
	return url
}
