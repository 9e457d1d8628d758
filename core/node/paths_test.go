package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/transports"
)

// TestNodeIsReachedOverSharedMemory: a node without any section for it offers its segment over shared memory, and
// switched off it does not. The admin server tells how segments are reached.
func TestNodeIsReachedOverSharedMemory(t *testing.T) {
	for _, on := range []bool{true, false} {
		c := base()
		want := "shm"
		if !on {
			c["transports"] = map[string]any{"shm": map[string]any{"enabled": false}}
			want = "tcp"
		}
		n := mustRun(t, c)
		var s Segments
		if err := json.Unmarshal([]byte(get(t, n.Admin+SegmentsPath)), &s); err != nil {
			t.Fatal(err)
		}
		if len(s.Segments) != 1 || s.Segments[0].Segment != n.Segment || s.Segments[0].Bytes != 1<<20 || s.Segments[0].Paths[0].Path != "copy" {
			t.Errorf("the node's own segment: %+v", s)
		}
		var named []transfer.NamedTransport
		for _, name := range []string{"shm", "tcp"} {
			tr, err := transports.Kind.Build(t.Context(), name, module.Env{Name: name}, module.NoConfig{})
			if err != nil {
				t.Fatal(err)
			}
			named = append(named, transfer.NamedTransport{Name: name, Transport: tr})
		}
		e, err := transfer.New(transfer.Options{Config: transfer.DefaultConfig(), LocalName: "127.0.0.1", Transports: named})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		peer, err := e.Open(t.Context(), n.Segment)
		if err == nil {
			err = e.Write(t.Context(), peer, make([]byte, 4096), peer.Descriptor().Buffers[0].Addr)
		}
		if err != nil {
			t.Error(err)
		}
		for _, g := range e.Segments() {
			for _, p := range g.Paths {
				if g.Segment == n.Segment && (p.State == transfer.PathUsed) != (p.Path == want) {
					t.Errorf("shm enabled: %v, path %+v", on, p)
				}
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
		cancel()
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestTransportThatCannotStart: a node goes on without a path as long as another one reaches other hosts, unless the
// configuration requires it.
func TestTransportThatCannotStart(t *testing.T) {
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil { // shm wants a folder that others cannot enter
		t.Fatal(err)
	}
	shm := func(more map[string]any) map[string]any {
		s := map[string]any{"socket_dir": open}
		maps.Copy(s, more)
		return s
	}
	// tcp without a free port: this test holds the only one of its range.
	port := testenv.FreePort(t)
	ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	stuck := map[string]any{"type": "tcp", "port_range": fmt.Sprintf("%d-%d", port, port)}
	for _, c := range []struct {
		name       string
		transports map[string]any
		fails      string // part of the error; "" = the node runs over want
		want       string
	}{
		{"shm is left out", map[string]any{"shm": shm(nil)}, "", "tcp"},
		{"shm is required", map[string]any{"shm": shm(map[string]any{"required": true})}, "0700", ""},
		{"tcp is the only one that reaches other hosts", map[string]any{"tcp": stuck}, "listen for data", ""},
		{"one of two tcp", map[string]any{"tcp": stuck, "second": map[string]any{"type": "tcp"}, "shm": map[string]any{"enabled": false}}, "", "second"},
		{"one of two tcp, required", map[string]any{"tcp": map[string]any{"type": "tcp", "port_range": stuck["port_range"], "required": true},
			"second": map[string]any{"type": "tcp"}}, "listen for data", ""},
		{"tcp next to shm only", map[string]any{"tcp": stuck, "shm": map[string]any{}}, "listen for data", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := base()
			conf["transports"] = c.transports
			n, err := run(t, conf)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Fatalf("start: %v; want an error with %q", err, c.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(n.log.String(), "is left out") {
				t.Errorf("nothing about it in the log:\n%s", n.log)
			}
			tr, err := transports.Kind.Build(t.Context(), "tcp", module.Env{Name: "tcp"}, module.NoConfig{})
			if err != nil {
				t.Fatal(err)
			}
			e, err := transfer.New(transfer.Options{Config: transfer.DefaultConfig(), LocalName: "127.0.0.1", Transports: []transfer.NamedTransport{{Name: "tcp", Transport: tr}}})
			if err == nil {
				err = e.Start(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				if err := e.Close(ctx); err != nil {
					t.Error(err)
				}
			}()
			peer, err := e.Open(t.Context(), n.Segment)
			if err == nil {
				err = e.Write(t.Context(), peer, make([]byte, 4096), peer.Descriptor().Buffers[0].Addr)
			}
			if err != nil {
				t.Errorf("the node is not reached over %s: %v", c.want, err)
			}
			if a := peer.Descriptor().Agent; a != nil && slices.ContainsFunc(a.Paths, func(p transports.Path) bool { return p.Type == "shm" }) {
				t.Errorf("it offers what it does not have: %+v", a.Paths)
			}
		})
	}
}

// TestReadOnlySharedMemory: with shm.mode read-only peers read a node's memory over shm and write it over tcp.
func TestReadOnlySharedMemory(t *testing.T) {
	c := base()
	c["transports"] = map[string]any{"shm": map[string]any{"mode": "read-only"}}
	n := mustRun(t, c)
	var named []transfer.NamedTransport
	for _, name := range []string{"shm", "tcp"} {
		tr, err := transports.Kind.Build(t.Context(), name, module.Env{Name: name}, module.NoConfig{})
		if err != nil {
			t.Fatal(err)
		}
		named = append(named, transfer.NamedTransport{Name: name, Transport: tr})
	}
	e, err := transfer.New(transfer.Options{Config: transfer.DefaultConfig(), LocalName: "127.0.0.1", Transports: named})
	if err == nil {
		err = e.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	peer, err := e.Open(t.Context(), n.Segment)
	if err != nil {
		t.Fatal(err)
	}
	at := peer.Descriptor().Buffers[0].Addr
	want, got := []byte("over two paths"), make([]byte, 14)
	if err := errors.Join(e.Write(t.Context(), peer, want, at), e.Read(t.Context(), peer, got, at)); err != nil || string(got) != string(want) {
		t.Fatalf("%q, %v", got, err)
	}
	for _, g := range e.Segments() {
		for _, p := range g.Paths {
			if g.Segment == n.Segment && (p.Requests != 1 || p.Bytes != uint64(len(want)) || p.Errors != 0) {
				t.Errorf("one request over each path: %+v", p)
			}
		}
	}
}
