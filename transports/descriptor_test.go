package transports

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The documents in testdata were written by the wheel 0.3.13.post1.
func TestGoldenDescriptors(t *testing.T) {
	raw, err := os.ReadFile("testdata/descriptors.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden []struct{ Name, JSONText string }
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(raw), "json_text", "JSONText")), &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden) < 12 {
		t.Fatalf("only %d golden documents", len(golden))
	}
	for _, g := range golden {
		t.Run(g.Name, func(t *testing.T) {
			d, err := ParseDescriptor([]byte(g.JSONText))
			if err != nil {
				t.Fatal(err)
			}
			var stamp struct{ Timestamp string }
			if err := json.Unmarshal([]byte(g.JSONText), &stamp); err != nil {
				t.Fatal(err)
			}
			now, err := time.ParseInLocation(timestampLayout, stamp.Timestamp, time.Local)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimSuffix(g.JSONText, "\n"), string(d.Encode(now))); diff != "" {
				t.Fatal(diff)
			}
		})
	}
}

func TestEncode(t *testing.T) {
	now := time.Date(2026, 11, 29, 17, 32, 7, 411093000, time.Local)
	for _, c := range []struct {
		name string
		d    Descriptor
		want string
	}{
		{"rdma", Descriptor{Name: "10.0.0.1:15432", Protocol: "rdma", TCPProtoVersion: 1,
			Buffers:        []Buffer{{Name: "cpu:0", Addr: 1 << 63, Length: 1048576, RKey: []uint32{4660, 4661}, LKey: []uint32{1, 2}}},
			Devices:        []Device{{Name: "mlx5_0", LID: 3, GID: "00:01"}, {Name: "mlx5_1", GID: "00:02"}},
			PriorityMatrix: json.RawMessage(`{"cpu:0":[["mlx5_0"],["mlx5_1"]]}`)},
			`{"buffers":[{"addr":9223372036854775808,"length":1048576,"lkey":[1,2],"name":"cpu:0","rkey":[4660,4661]}],` +
				`"devices":[{"gid":"00:01","lid":3,"name":"mlx5_0"},{"gid":"00:02","lid":0,"name":"mlx5_1"}],"name":"10.0.0.1:15432",` +
				`"priority_matrix":{"cpu:0":[["mlx5_0"],["mlx5_1"]]},"protocol":"rdma","rdma_server_name":"","tcp_data_port":0,` +
				`"tcp_proto_version":1,"timestamp":"2026-11-29 17:32:07.411093"}`},
		{"extension and escapes", Descriptor{Name: "né/<&>😀\n", Protocol: "tcp", TCPProtoVersion: 2, TCPDataPort: 15001,
			Agent: &AgentExt{V: 1, Instance: "u-1", Paths: []Path{{Type: "shm", Attr: map[string]string{"b": "2", "a": "1"}}, {Type: "tcp", Host: "::1", Port: 15001}}}},
			`{"buffers":[],"mooncake_agent":{"instance":"u-1","paths":[{"attr":{"a":"1","b":"2"},"type":"shm"},` +
				`{"host":"::1","port":15001,"type":"tcp"}],"v":1},"name":"n\u00e9/<&>\ud83d\ude00\n","protocol":"tcp","rdma_server_name":"",` +
				`"tcp_data_port":15001,"tcp_proto_version":2,"timestamp":"2026-11-29 17:32:07.411093"}`},
		{"several protocols", Descriptor{Name: "m", Protocol: "rdma", Protocols: []string{"rdma", "tcp"}, TCPProtoVersion: 1},
			`{"buffers":[],"name":"m","protocol":["rdma","tcp"],"rdma_server_name":"","tcp_data_port":0,"tcp_proto_version":1,` +
				`"timestamp":"2026-11-29 17:32:07.411093"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.d.Encode(now)
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Fatal(diff)
			}
			if !json.Valid(got) {
				t.Fatal("not JSON")
			}
			back, err := ParseDescriptor(got)
			if err != nil {
				t.Fatal(err)
			}
			if !back.Equal(&c.d) || !back.Clone().Equal(back) {
				t.Fatal(cmp.Diff(&c.d, back))
			}
		})
	}
}

// base is the document that the reader-rule probes of the wheel started from.
const base = `{"buffers":[{"addr":17592186044416,"length":16777216,"name":"n"}],"name":"n","protocol":"tcp",` +
	`"tcp_data_host":"127.0.0.1","tcp_data_port":16000,"tcp_proto_version":2,"rdma_server_name":"","timestamp":"t"}`

// The cases repeat what a fake target told the wheel's reader, with the wheel's verdict: accepted,
// refused, or an exception (which kills a C++ caller).
func TestReaderRules(t *testing.T) {
	want := func(f func(*Descriptor)) *Descriptor {
		d := &Descriptor{Name: "n", Protocol: "tcp", TCPDataHost: "127.0.0.1", TCPDataPort: 16000, TCPProtoVersion: 2,
			Buffers: []Buffer{{Name: "n", Addr: 17592186044416, Length: 16777216}}}
		f(d)
		return d
	}
	same := func(*Descriptor) {}
	buf := func(s string) string {
		return `"buffers":[{"addr":17592186044416,"length":16777216,"name":"n"` + s + `}]`
	}
	for _, c := range []struct {
		name     string
		old, new string            // textual replacement in base; old "" = the whole document
		ok       func(*Descriptor) // accepted: how the result differs
		err      error
	}{
		{"as written", `"t"`, `"t"`, same, nil},
		{"missing tcp_data_host", `"tcp_data_host":"127.0.0.1",`, ``, func(d *Descriptor) { d.TCPDataHost = "" }, nil},
		{"missing tcp_proto_version", `"tcp_proto_version":2,`, ``, func(d *Descriptor) { d.TCPProtoVersion = 1 }, nil},
		{"missing timestamp", `,"timestamp":"t"`, ``, same, nil},
		{"missing rdma_server_name", `,"rdma_server_name":""`, ``, same, nil},
		{"missing name", `"name":"n","protocol"`, `"protocol"`, func(d *Descriptor) { d.Name = "" }, nil},
		{"missing protocol", `"protocol":"tcp",`, ``, nil, ErrBadDescriptor},
		{"missing tcp_data_port", `"tcp_data_port":16000,`, ``, func(d *Descriptor) { d.TCPDataPort = 0 }, nil},
		{"missing buffers", buf("") + `,`, ``, func(d *Descriptor) { d.Buffers = nil }, nil},
		{"only protocol, port and host", ``, `{"protocol":"tcp","tcp_data_port":16000,"tcp_data_host":"127.0.0.1"}`,
			func(d *Descriptor) { d.Name, d.Buffers, d.TCPProtoVersion = "", nil, 1 }, nil},
		{"tcp_data_host empty", `"127.0.0.1"`, `""`, func(d *Descriptor) { d.TCPDataHost = "" }, nil},
		{"tcp_data_host number", `"127.0.0.1"`, `7`, func(d *Descriptor) { d.TCPDataHost = "" }, nil},
		{"tcp_data_host array", `"127.0.0.1"`, `["x"]`, func(d *Descriptor) { d.TCPDataHost = "" }, nil},
		{"tcp_data_host null", `"127.0.0.1"`, `null`, func(d *Descriptor) { d.TCPDataHost = "" }, nil},
		{"tcp_data_port digits in a string", `16000`, `"16000"`, nil, ErrBadDescriptor},
		{"tcp_data_port 0", `16000`, `0`, func(d *Descriptor) { d.TCPDataPort = 0 }, nil},
		{"tcp_data_port -1", `16000`, `-1`, func(d *Descriptor) { d.TCPDataPort = 65535 }, nil},
		{"tcp_data_port 70000", `16000`, `70000`, func(d *Descriptor) { d.TCPDataPort = 4464 }, nil},
		{"tcp_data_port 2^31", `16000`, `2147483648`, nil, ErrBadDescriptor},
		{"tcp_data_port integral float", `16000`, `16000.0`, same, nil},
		{"tcp_proto_version string", `_version":2`, `_version":"2"`, nil, ErrBadDescriptor},
		{"tcp_proto_version 0", `_version":2`, `_version":0`, func(d *Descriptor) { d.TCPProtoVersion = 0 }, nil},
		{"tcp_proto_version 3", `_version":2`, `_version":3`, func(d *Descriptor) { d.TCPProtoVersion = 3 }, nil},
		{"timestamp number", `"t"`, `5`, same, nil},
		{"timestamp array", `"t"`, `[]`, nil, ErrBadDescriptor},
		{"name different", `"name":"n","protocol"`, `"name":"other","protocol"`, func(d *Descriptor) { d.Name = "other" }, nil},
		{"name number", `"name":"n","protocol"`, `"name":5,"protocol"`, func(d *Descriptor) { d.Name = "5" }, nil},
		{"name object", `"name":"n","protocol"`, `"name":{},"protocol"`, nil, ErrBadDescriptor},
		{"protocol rdma", `"tcp",`, `"rdma",`, func(d *Descriptor) { d.Protocol = "rdma" }, nil},
		{"protocol array", `"tcp",`, `["cxl","tcp"],`, func(d *Descriptor) { d.Protocol, d.Protocols = "cxl", []string{"cxl", "tcp"} }, nil},
		{"protocol array of one", `"tcp",`, `["tcp"],`, same, nil},
		{"protocol empty array", `"tcp",`, `[],`, nil, ErrBadDescriptor},
		{"protocol object", `"tcp",`, `{},`, nil, ErrBadDescriptor},
		{"protocol unknown", `"tcp",`, `"quic",`, nil, ErrBadDescriptor},
		{"protocol upper case", `"tcp",`, `"TCP",`, nil, ErrBadDescriptor},
		{"unknown keys", `"t"`, `"t","x":{"y":[1,{"z":null}]}`, same, nil},
		{"devices of a tcp segment", `"t"`, `"t","devices":{},"lid":0`, func(d *Descriptor) { d.Devices = []Device{} }, nil},
		{"buffers null", buf(""), `"buffers":null`, func(d *Descriptor) { d.Buffers = nil }, nil},
		{"buffers object", buf(""), `"buffers":{"a":1}`, func(d *Descriptor) { d.Buffers = nil }, nil},
		{"buffers string", buf(""), `"buffers":"x"`, func(d *Descriptor) { d.Buffers = nil }, nil},
		{"buffer name empty", `"length":16777216,"name":"n"`, `"length":16777216,"name":""`, nil, ErrBadDescriptor},
		{"buffer without name", `"length":16777216,"name":"n"`, `"length":16777216`, nil, ErrBadDescriptor},
		{"buffer addr 0", `17592186044416`, `0`, nil, ErrBadDescriptor},
		{"buffer length 0", `16777216`, `0`, nil, ErrBadDescriptor},
		{"buffer addr string", `17592186044416`, `"17592186044416"`, nil, ErrBadDescriptor},
		{"buffer addr float", `17592186044416`, `17592186044416.0`, same, nil},
		{"buffer addr negative", `17592186044416`, `-5`, nil, ErrBadDescriptor},
		{"buffer addr above 2^63", `17592186044416`, `9223372036854779904`, func(d *Descriptor) { d.Buffers[0].Addr = 9223372036854779904 }, nil},
		{"buffer addr above 2^64", `17592186044416`, `18446744073709551616`, nil, ErrBadDescriptor},
		{"buffer addr above 2^53, odd", `17592186044416`, `9007199254740993`, func(d *Descriptor) { d.Buffers[0].Addr = 9007199254740993 }, nil},
		{"buffer extra keys", buf(""), buf(`,"q":[1]`), same, nil},
		{"buffer not an object", buf(""), `"buffers":[5]`, nil, ErrBadDescriptor},
		{"buffer null", buf(""), `"buffers":[null]`, nil, ErrBadDescriptor},
		{"repeated key: the last counts", buf(""), `"buffers":[{"addr":0}],` + buf(""), same, nil},
		{"trailing newline", ``, base + "\n", same, nil},
		{"comments and a trailing comma", `"t"}`, `"t", /* x */ }`, same, nil},
		{"agent extension", `"t"`, `"t","mooncake_agent":{"v":1,"instance":"i","paths":[{"type":"tcp","port":7}],"later":1}`,
			func(d *Descriptor) { d.Agent = &AgentExt{V: 1, Instance: "i", Paths: []Path{{Type: "tcp", Port: 7}}} }, nil},
		{"malformed agent extension", `"t"`, `"t","mooncake_agent":{"v":"x"}`, same, nil},
		{"agent extension of another shape", `"t"`, `"t","mooncake_agent":[1]`, same, nil},
		{"null", ``, `null`, nil, ErrNoDescriptor},
		{"null with newline", ``, "null\n", nil, ErrNoDescriptor},
		{"array", ``, `[]`, nil, ErrBadDescriptor},
		{"number", ``, `5`, nil, ErrBadDescriptor},
		{"string", ``, `"x"`, nil, ErrBadDescriptor},
		{"empty", ``, ` `, nil, ErrBadDescriptor},
		{"cut", ``, base[:60], nil, ErrBadDescriptor},
		{"deep", ``, `{"x":` + strings.Repeat("[", 1001) + strings.Repeat("]", 1001) + `}`, nil, ErrBadDescriptor},
		{"nvlink buffer without address is left out", ``, `{"name":"n","protocol":"nvlink","buffers":[{"name":"a"},{"name":"b","addr":1,"length":2,"shm_name":"00"}]}`,
			func(d *Descriptor) {
				*d = Descriptor{Name: "n", Protocol: "nvlink", TCPProtoVersion: 1, Buffers: []Buffer{{Name: "b", Addr: 1, Length: 2}}}
			}, nil},
		{"rdma device without gid", ``, `{"name":"n","protocol":"rdma","devices":[{"name":"d","lid":0,"gid":""}]}`, nil, ErrBadDescriptor},
		{"rdma rkey count", ``, `{"name":"n","protocol":"rdma","devices":[{"name":"d","lid":0,"gid":"g"}],"buffers":[{"name":"a","addr":1,"length":2,"rkey":[1,2],"lkey":[1,2]}]}`, nil, ErrBadDescriptor},
		{"rdma lkey count", ``, `{"name":"n","protocol":"rdma","devices":[{"name":"d","lid":0,"gid":"g"}],"buffers":[{"name":"a","addr":1,"length":2,"rkey":[1],"lkey":[]}]}`, nil, ErrBadDescriptor},
		{"rdma rkey string", ``, `{"name":"n","protocol":"rdma","devices":[],"buffers":[{"name":"a","addr":1,"length":2,"rkey":["1"],"lkey":[]}]}`, nil, ErrBadDescriptor},
	} {
		t.Run(c.name, func(t *testing.T) {
			doc := c.new
			if c.old != "" {
				if !strings.Contains(base, c.old) {
					t.Fatalf("%q is not in the base document", c.old)
				}
				doc = strings.Replace(base, c.old, c.new, 1)
			}
			d, err := ParseDescriptor([]byte(doc))
			if c.ok == nil {
				if !errors.Is(err, c.err) || d != nil {
					t.Fatalf("got %+v, %v; want %v", d, err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want(c.ok), d); diff != "" {
				t.Fatal(diff)
			}
		})
	}
}

func TestContains(t *testing.T) {
	d := Descriptor{Buffers: []Buffer{{Addr: 100, Length: 10}, {Addr: 110, Length: 10}, {Addr: ^uint64(0) - 9, Length: 10}}}
	for _, c := range []struct {
		addr, n uint64
		want    bool
	}{{100, 10, true}, {109, 1, true}, {100, 11, false}, {119, 1, true}, {120, 1, false}, {99, 1, false},
		{^uint64(0) - 9, 10, true}, {^uint64(0), 2, false}, {105, ^uint64(0), false}} {
		if got := d.Contains(c.addr, c.n); got != c.want {
			t.Errorf("Contains(%d, %d) = %v", c.addr, c.n, got)
		}
	}
}

func big(n int) *Descriptor {
	d := &Descriptor{Name: "node-A", Protocol: "tcp", TCPDataHost: "10.0.0.1", TCPDataPort: 15001, TCPProtoVersion: 2}
	for i := range n {
		d.Buffers = append(d.Buffers, Buffer{Name: "node-A", Addr: 1<<44 + uint64(i)<<16, Length: 1 << 16})
	}
	return d
}

func BenchmarkEncode20000(b *testing.B) {
	d := big(20000)
	now := time.Now()
	for b.Loop() {
		d.Encode(now)
	}
}

func BenchmarkParse20000(b *testing.B) {
	doc := big(20000).Encode(time.Now())
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseDescriptor(doc); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzParseDescriptor(f *testing.F) {
	f.Add([]byte(base))
	f.Add([]byte(`{"protocol":["rdma","tcp"],"devices":[{"name":"d","gid":"g","lid":1}],"priority_matrix":{},"buffers":[{"name":"a","addr":1,"length":2,"rkey":[1],"lkey":[1]}]}`))
	f.Add([]byte(`{"protocol":"tcp","mooncake_agent":{"v":1,"instance":"i","paths":[{"type":"t","attr":{"a":"b"}}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ParseDescriptor(b)
		if (d == nil) == (err == nil) {
			t.Fatalf("%v, %v", d, err)
		}
		if err != nil {
			if !errors.Is(err, ErrNoDescriptor) && !errors.Is(err, ErrBadDescriptor) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		again, err := ParseDescriptor(d.Encode(time.Now()))
		if err != nil {
			t.Fatalf("cannot read back %s: %v", d.Encode(time.Now()), err)
		}
		if fmt.Sprintf("%q", d.Name) != fmt.Sprintf("%q", again.Name) && strings.ToValidUTF8(d.Name, "") == d.Name {
			t.Fatalf("name %q became %q", d.Name, again.Name)
		}
		if len(d.Buffers) != len(again.Buffers) {
			t.Fatal("buffers were lost")
		}
	})
}
