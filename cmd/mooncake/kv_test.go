package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// kv runs "mooncake kv" with a master and something on stdin; it returns stdout, stderr and the exit code.
func kv(t *testing.T, master, stdin string, args ...string) (string, string, int) {
	t.Helper()
	root := newRootCommand()
	var out, errOut bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errOut)
	root.SetIn(strings.NewReader(stdin))
	root.SetArgs(append([]string{"kv"}, append(args, "--master", master)...))
	err := root.ExecuteContext(t.Context())
	var exit *exitError
	switch {
	case err == nil:
		return out.String(), errOut.String(), 0
	case errors.As(err, &exit):
		return out.String(), errOut.String(), exit.code
	}
	return out.String(), errOut.String() + err.Error(), 1
}

func TestKV(t *testing.T) {
	t.Setenv("MOONCAKE_CONFIG_PATH", "")
	m := testenv.StartWheelMaster(t, testenv.StoreWheel(t, "0.3.13.post1"))
	n := testenv.StartNode(t, testenv.Config{"master_server_address": m.Addr, "global_segment_size": "64MB"})
	file, back := filepath.Join(t.TempDir(), "value"), filepath.Join(t.TempDir(), "back")
	large := bytes.Repeat([]byte("0123456789abcdef"), 2<<20) // 32 MiB: several parts
	if err := os.WriteFile(file, large, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, stdin string
		args        []string
		out, errOut string
		code        int
	}{
		{"put stdin", "hello", []string{"put", "greeting"}, "", "", 0},
		{"put again", "hello", []string{"put", "greeting"}, "", "exists already", 4},
		{"put again, fine", "other", []string{"put", "greeting", "--exists-ok"}, "", "", 0},
		{"get", "", []string{"get", "greeting"}, "hello", "", 0},
		{"upsert", "welcome", []string{"put", "greeting", "--upsert"}, "", "", 0},
		{"get the new one", "", []string{"get", "greeting", "-"}, "welcome", "", 0},
		{"put nothing", "", []string{"put", "empty"}, "", "the value is empty", 1},
		{"get a missing one", "", []string{"get", "missing"}, "", "not found", 3},
		{"put a file", "", []string{"put", "large", file, "--hard-pin", "--prefer", n.Segment, "--pin", "1m", "--group", "g", "--wait", "1s"}, "", "", 0},
		{"get into a file", "", []string{"get", "large", back}, "", "", 0},
		{"get to nowhere", "", []string{"get", "large", "/dev/null"}, "", "", 0},
		{"JSON and a value", "", []string{"get", "large", "--json"}, "", "name a FILE", 1},
		{"exists", "", []string{"exists", "greeting", "large"}, "greeting\ttrue\nlarge\ttrue\n", "", 0},
		{"exists not", "", []string{"exists", "greeting", "missing", "--json"}, `{"greeting":true,"missing":false}` + "\n", "", 3},
		{"more", "1", []string{"put", "a.b"}, "", "", 0},
		{"more", "2", []string{"put", "axb"}, "", "", 0},
		{"ls", "", []string{"ls", "a."}, " BYTES  REPLICAS  KEY \n     1         1  a.b \n", "", 0},
		{"stat", "", []string{"stat", "missing"}, "", "not found", 3},
		{"rm in use", "", []string{"rm", "greeting"}, "", "in use by readers", 6},
		{"rm", "", []string{"rm", "greeting", "--force"}, "", "", 0},
		{"rm a missing one", "", []string{"rm", "greeting"}, "", "not found", 3},
		{"rm a missing one, fine", "", []string{"rm", "greeting", "--ignore-missing"}, "", "", 0},
		{"rm nothing", "", []string{"rm"}, "", "name keys", 1},
		{"rm a pattern", "", []string{"rm", "--regex", "^a.b$", "--force"}, "2\n", "", 0},
		{"too large", strings.Repeat("x", 65<<20), []string{"put", "huge"}, "", "no space", 5},
		{"bad pattern", "", []string{"ls", "--regex", "["}, "", "invalid argument", 1},
	} {
		out, errOut, code := kv(t, m.Addr, c.stdin, c.args...)
		if out != c.out || code != c.code || !strings.Contains(errOut, c.errOut) || c.errOut == "" && errOut != "" {
			t.Errorf("%s: exit %d, want %d\nstdout: %q\n  want: %q\nstderr: %q", c.name, code, c.code, out, c.out, errOut)
		}
	}
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, large) {
		t.Errorf("file: %d bytes, %v", len(got), err)
	}

	out, _, code := kv(t, m.Addr, "", "stat", "large", "--json")
	var o kvObject
	if err := json.Unmarshal([]byte(out), &o); err != nil || code != 0 {
		t.Fatalf("%v in %q", err, out)
	}
	if o.Key != "large" || o.Bytes != 32<<20 || len(o.Replicas) != 1 || o.Replicas[0].Endpoint != n.Segment || o.Replicas[0].Kind != "memory" || o.LeaseMS < 1 {
		t.Errorf("%+v", o)
	}
	out, _, _ = kv(t, m.Addr, "", "stat", "large")
	if !strings.Contains(out, "33554432 bytes") || !strings.Contains(out, n.Segment) {
		t.Errorf("stat: %s", out)
	}
	out, _, _ = kv(t, m.Addr, "x", "put", "j", "--json")
	if !strings.Contains(out, `"bytes":1`) {
		t.Errorf("put --json: %s", out)
	}
	var list []kvObject
	if out, _, _ = kv(t, m.Addr, "", "ls", "--json"); json.Unmarshal([]byte(out), &list) != nil || len(list) != 2 {
		t.Errorf("ls --json: %s", out)
	}
	if out, _, _ = kv(t, m.Addr, "", "rm", "--all", "--force", "--json"); out != "{\"removed\":2}\n" {
		t.Errorf("rm --all: %s", out)
	}
	m.Kill()
	if _, errOut, code := kv(t, m.Addr, "", "get", "greeting"); code != 7 || !strings.Contains(errOut, m.Addr) {
		t.Errorf("without a master: exit %d, %s", code, errOut)
	}
}

// A value that cannot be completed leaves no file.
func TestKVGetLeavesNoHalfFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	broken := errors.New("broken")
	if err := writeWhole(path, func(w io.Writer) error { _, _ = w.Write([]byte("half")); return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestKVExitCodes(t *testing.T) {
	got := map[error]int{}
	for _, err := range []error{client.ErrNotFound, client.ErrExists, client.ErrNoSpace, client.ErrLeased, client.ErrBusy, client.ErrUnavailable, client.ErrTransfer} {
		got[err] = kvExitCode(&client.Error{Op: "x", Kind: err})
	}
	want := map[error]int{client.ErrNotFound: 3, client.ErrExists: 4, client.ErrNoSpace: 5, client.ErrLeased: 6, client.ErrBusy: 6, client.ErrUnavailable: 7, client.ErrTransfer: 1}
	for err, code := range want {
		if d := cmp.Diff(code, got[err]); d != "" {
			t.Errorf("%v: %s", err, d)
		}
	}
}
