package serve

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// testdata/conversations.jsonl.gz: what unmodified clients of seven releases and the masters of their own release
// said to each other, answers cut behind their type. testdata of package wire: type codes of every function
// in every release, and messages written with the real headers.

type said struct {
	Scenario string `json:"s"`
	Version  string `json:"v"`
	Conn     int    `json:"c"`
	RPC      string `json:"rpc"`
	Req      string `json:"req"`
	Rsp      string `json:"rsp"`
}

func conversations(t testing.TB) (order []string, all map[string][]said) {
	t.Helper()
	b, err := os.ReadFile("testdata/conversations.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	all = map[string][]said{}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var s said
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		if s.RPC == "" {
			continue
		}
		if all[s.Scenario] == nil {
			order = append(order, s.Scenario)
		}
		all[s.Scenario] = append(all[s.Scenario], s)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if len(order) < 19 {
		t.Fatalf("%d conversations", len(order))
	}
	return order, all
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func version(t testing.TB, s string) wire.Version {
	t.Helper()
	v, err := wire.ParseVersion(s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Each recorded client gets every answer in the form that its own master gave.
func TestConversations(t *testing.T) {
	order, all := conversations(t)
	for _, name := range order {
		t.Run(name, func(t *testing.T) {
			xs := all[name]
			s := start(t, nil, wire.V0_3_7)
			addr := s.Addr()
			if version(t, xs[0].Version) == wire.V0_3_7 {
				addr = s.CompatAddrs()[0]
			}
			conns := map[int]*peer{}
			for _, x := range xs {
				c := conns[x.Conn]
				if c == nil {
					c = dial(t, addr)
					conns[x.Conn] = c
				}
				if got, want := form(c.call(unhex(t, x.Req))), form(unhex(t, x.Rsp)); got != want {
					t.Errorf("%s of %s on connection %d: %s, want %s", x.RPC, x.Version, x.Conn, got, want)
				}
			}
		})
	}
}

// All recorded clients at once, from one address, in turns. A client that cannot read an answer hangs up and goes on
// over a new connection. No client of them may lose more than a few answers: all write, so each is known soon.
func TestConversationsTogether(t *testing.T) {
	order, all := conversations(t)
	s := start(t, nil, wire.V0_3_7)
	type player struct {
		xs    []said
		conns map[int]*peer
		lost  int
	}
	var players []*player
	for _, name := range order {
		players = append(players, &player{xs: all[name], conns: map[int]*peer{}})
	}
	asked := 0
	for busy := true; busy; {
		busy = false
		for i, p := range players {
			if len(p.xs) == 0 {
				continue
			}
			busy = true
			x := p.xs[0]
			p.xs = p.xs[1:]
			addr := s.Addr()
			if version(t, x.Version) == wire.V0_3_7 {
				addr = s.CompatAddrs()[0]
			}
			c := p.conns[x.Conn]
			if c == nil {
				c = dial(t, addr)
				p.conns[x.Conn] = c
			}
			asked++
			if got, want := form(c.call(unhex(t, x.Req))), form(unhex(t, x.Rsp)); got != want {
				t.Logf("%s: %s lost an answer: %s, want %s", order[i], x.RPC, got, want)
				p.lost++
				c.Close()
				delete(p.conns, x.Conn)
			}
		}
	}
	for i, p := range players {
		if p.lost > 1 {
			t.Errorf("%s lost %d answers", order[i], p.lost)
		}
	}
	t.Logf("%d answers", asked)
}

type layouts struct {
	RPCs map[string]struct {
		FunctionID uint32 `json:"function_id"`
		Versions   map[string]struct {
			ReqCode string `json:"req_code"`
			ReqLit  string `json:"req_literal"`
			RespLit string `json:"resp_literal"`
			Resp    string `json:"resp_code"`
		}
	}
}

// Every function of every release, with and without literal, on a listener of that release: the answer has the type
// that release's headers give it. Functions that a release does not have answer its clients with error 11 only if
// no release has them, because newer clients share the listener.
func TestEveryFunctionOfEveryVersion(t *testing.T) {
	b, err := os.ReadFile("../../rpc/wire/testdata/versions.json")
	if err != nil {
		t.Fatal(err)
	}
	var file layouts
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	var pinned []wire.Version
	for v := range wire.Version(wire.NumVersions) {
		pinned = append(pinned, v)
	}
	s := start(t, nil, pinned...)
	tried := 0
	for name, f := range file.RPCs {
		for tag, l := range f.Versions {
			if tag == "v0.3.6.post1" {
				continue
			}
			v := wire.Newest
			if tag != "HEAD" {
				v = version(t, tag)
			}
			for _, literal := range []bool{true, false} {
				body := zeroRequest(t, f.FunctionID, v, literal)
				got := form(dial(t, s.CompatAddrs()[v]).call(frame(f.FunctionID, body)))
				code, err := strconv.ParseUint(l.Resp, 16, 32)
				if err != nil {
					t.Fatal(err)
				}
				want := fmt.Sprintf("error 0 type %08x literal ", code)
				if len(body) == 0 || literal {
					want += l.RespLit
				}
				if got != want {
					t.Errorf("%s of %s, literal %t: %s, want %s", name, tag, literal, got, want)
				}
				tried++
			}
		}
	}
	if tried < 600 {
		t.Errorf("only %d requests", tried)
	}
}

// The request messages written with the real headers are understood on the default listener.
func TestGoldenRequests(t *testing.T) {
	b, err := os.ReadFile("../../rpc/wire/testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		RPCs []struct {
			RPC        string
			Registered bool
			FunctionID uint32 `json:"function_id"`
			RespCode   uint32 `json:"resp_type_code"`
			Requests   []struct {
				Bare    string `json:"body_bare_hex"`
				Literal string `json:"body_literal_hex"`
			}
		}
	}
	if err := json.Unmarshal(b, &golden); err != nil {
		t.Fatal(err)
	}
	s := start(t, nil)
	functions := 0
	for _, r := range golden.RPCs {
		for _, q := range r.Requests {
			for _, body := range []string{q.Bare, q.Literal} {
				got := form(dial(t, s.Addr()).call(frame(r.FunctionID, unhex(t, body))))
				if !r.Registered {
					if got[:8] != "error 11" {
						t.Errorf("%s: %s", r.RPC, got)
					}
					continue
				}
				if want := fmt.Sprintf("error 0 type %08x", r.RespCode); got[:len(want)] != want {
					t.Errorf("%s: %s, want %s", r.RPC, got, want)
				}
			}
		}
		if r.Registered {
			functions++
		}
	}
	if functions != 64 {
		t.Errorf("%d functions", functions)
	}
}

func TestBadRequests(t *testing.T) {
	s := start(t, nil)
	p := dial(t, s.Addr())
	good := zeroRequest(t, wire.ExistKey.ID(), wire.Newest, true)
	for _, c := range []struct {
		name string
		id   uint32
		body []byte
		want string
	}{
		{"unknown function", 0x12345678, nil, "error 11"},
		{"no arguments", wire.ExistKey.ID(), nil, "error 4"},
		{"truncated", wire.ExistKey.ID(), good[:len(good)-1], "error 4"},
		{"another type", wire.ExistKey.ID(), zeroRequest(t, wire.Ping.ID(), wire.Newest, true), "error 4"},
		{"extra bytes", wire.ExistKey.ID(), append(append([]byte{}, good...), 1, 2, 3), "error 0"},
		{"a body where none is due", wire.ServiceReady.ID(), good, "error 0"},
	} {
		if got := form(p.call(frame(c.id, c.body))); got[:len(c.want)] != c.want || got[len(c.want)] != ' ' {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
