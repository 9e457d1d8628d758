package wire

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/mooncake-agent/mooncake/core/rpc/structpack"
)

// testdata/golden.json holds messages written with the real headers (0.3.13), versions.json the
// type codes and literals of every release, conversations.json frames between real clients and
// masters of seven releases.

type goldenFile struct {
	RPCs []struct {
		RPC        string
		Registered bool
		FunctionID uint32 `json:"function_id"`
		Requests   []goldenMessage
		Responses  []goldenMessage
	}
}

type goldenMessage struct {
	Bare    hexBytes `json:"body_bare_hex"`
	Literal hexBytes `json:"body_literal_hex"`
}

type hexBytes []byte

func (h *hexBytes) UnmarshalText(b []byte) (err error) {
	*h, err = hex.DecodeString(string(b))
	return err
}

type versionsFile struct {
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

type exchange struct {
	RPC    string
	Req    hexBytes
	Rsp    hexBytes
	Args   any
	Result any
	Err    int `json:"rpc_err"`
}

const (
	requestHeader  = 20
	responseHeader = 16
)

func load(t testing.TB, name string, into any) {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// untyped lets tests loop over methods of different types.
type untyped interface {
	AnyMethod
	decodeRequest(body []byte, into any) (VersionSet, bool, error)
	newRequest() any
	newResponse() any
	appendRequest(v Version, req any, literal bool) ([]byte, error)
	decodeResponse(v Version, body []byte, into any) error
	appendResponse(v Version, resp any, literal bool) ([]byte, error)
}

func (m *Method[Req, Resp]) newRequest() any  { return new(Req) }
func (m *Method[Req, Resp]) newResponse() any { return new(Resp) }
func (m *Method[Req, Resp]) decodeRequest(body []byte, into any) (VersionSet, bool, error) {
	return m.DecodeRequest(body, into.(*Req), false)
}
func (m *Method[Req, Resp]) appendRequest(v Version, req any, literal bool) ([]byte, error) {
	return m.AppendRequest(nil, v, req.(*Req), literal)
}
func (m *Method[Req, Resp]) decodeResponse(v Version, body []byte, into any) error {
	return m.DecodeResponse(body, v, into.(*Resp), false)
}
func (m *Method[Req, Resp]) appendResponse(v Version, resp any, literal bool) ([]byte, error) {
	return m.AppendResponse(nil, v, resp.(*Resp), literal)
}

func method(t testing.TB, name string) untyped {
	t.Helper()
	for _, m := range Methods() {
		if m.Name() == name {
			return m.(untyped)
		}
	}
	t.Fatalf("no method %s", name)
	return nil
}

func TestLayoutsAreThoseOfTheHeaders(t *testing.T) {
	var file versionsFile
	load(t, "versions.json", &file)
	columns := map[string]Version{"HEAD": V0_3_13}
	for v := range endOfVersions {
		columns["v"+v.String()] = v
	}
	column := func(tag string) (Version, bool) {
		base, _, _ := strings.Cut(tag, ".post")
		v, ok := columns[base]
		return v, ok
	}
	if len(Methods()) != len(file.RPCs) {
		t.Errorf("%d methods are declared, the headers have %d", len(Methods()), len(file.RPCs))
	}
	seen := 0
	for name, rpc := range file.RPCs {
		m := method(t, name)
		if m.ID() != rpc.FunctionID {
			t.Errorf("%s: id %08x, want %08x", name, m.ID(), rpc.FunctionID)
		}
		var want VersionSet
		for tag, x := range rpc.Versions {
			v, ok := column(tag)
			if !ok {
				continue // 0.3.6 is not spoken
			}
			want |= SetOf(v)
			seen++
			l, ok := m.Layout(v)
			if !ok {
				continue
			}
			got := []string{hex.EncodeToString([]byte(l.RequestLiteral)), fmt.Sprintf("%x", l.RequestCode),
				hex.EncodeToString([]byte(l.ResponseLiteral)), fmt.Sprintf("%x", l.ResponseCode)}
			exp := []string{x.ReqLit, x.ReqCode, x.RespLit, x.Resp}
			if x.ReqLit == "-" {
				exp[0], exp[1] = "", "0"
			}
			if diff := cmp.Diff(exp, got); diff != "" {
				t.Errorf("%s in %s (-want +got):\n%s", name, tag, diff)
			}
		}
		if m.Versions() != want {
			t.Errorf("%s exists in %s, want %s", name, m.Versions(), want)
		}
	}
	if seen != 317 { // the sum of the functions of the seven releases
		t.Errorf("%d layouts were compared, want 317", seen)
	}
}

func TestGoldenMessages(t *testing.T) {
	var file goldenFile
	load(t, "golden.json", &file)
	for _, rpc := range file.RPCs {
		if !rpc.Registered {
			continue
		}
		t.Run(rpc.RPC, func(t *testing.T) {
			m := method(t, rpc.RPC)
			for i, g := range rpc.Requests {
				for _, literal := range []bool{false, true} {
					body := g.Bare
					if literal {
						body = g.Literal
					}
					req := m.newRequest()
					set, _, err := m.decodeRequest(body, req)
					if err != nil || !set.Has(V0_3_13) {
						t.Fatalf("request %d: versions %s, %v", i, set, err)
					}
					roundTrip(t, fmt.Sprintf("request %d", i), body, func() ([]byte, error) { return m.appendRequest(V0_3_13, req, literal) })
				}
			}
			for i, g := range rpc.Responses {
				for _, literal := range []bool{false, true} {
					body := g.Bare
					if literal {
						body = g.Literal
					}
					resp := m.newResponse()
					if err := m.decodeResponse(V0_3_13, body, resp); err != nil {
						t.Fatalf("response %d: %v", i, err)
					}
					roundTrip(t, fmt.Sprintf("response %d", i), body, func() ([]byte, error) { return m.appendResponse(V0_3_13, resp, literal) })
				}
			}
		})
	}
}

func roundTrip(t *testing.T, what string, want []byte, encode func() ([]byte, error)) {
	t.Helper()
	got, err := encode()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if string(got) != string(want) {
		t.Fatalf("%s:\n got %x\nwant %x", what, got, want)
	}
}

// TestConversations decodes and re-encodes what clients and masters of seven releases said.
func TestConversations(t *testing.T) {
	var file map[string][]exchange
	load(t, "conversations.json", &file)
	if len(file) != NumVersions {
		t.Fatalf("conversations of %d releases, want %d", len(file), NumVersions)
	}
	for release, exchanges := range file {
		t.Run(release, func(t *testing.T) {
			v, err := ParseVersion(release)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range exchanges {
				m := method(t, x.RPC)
				req := m.newRequest()
				body := x.Req[requestHeader:]
				set, _, err := m.decodeRequest(body, req)
				if err != nil || !set.Has(v) {
					t.Fatalf("%s: versions %s, %v", x.RPC, set, err)
				}
				roundTrip(t, x.RPC+" request", body, func() ([]byte, error) { return m.appendRequest(v, req, true) })
				if x.Err != 0 {
					continue
				}
				resp := m.newResponse()
				body = x.Rsp[responseHeader:]
				if err := m.decodeResponse(v, body, resp); err != nil {
					t.Fatalf("%s: %v", x.RPC, err)
				}
				roundTrip(t, x.RPC+" response", body, func() ([]byte, error) { return m.appendResponse(v, resp, true) })

				for _, side := range []struct {
					body hexBytes
					want any
				}{{x.Req[requestHeader:], x.Args}, {x.Rsp[responseHeader:], x.Result}} {
					if len(side.body) == 0 {
						continue
					}
					got, err := structpack.DecodeAny(side.body, "")
					if err != nil {
						t.Fatalf("%s: %v", x.RPC, err)
					}
					if diff := cmp.Diff(side.want, jsonForm(got), numbers); diff != "" {
						t.Errorf("%s as any value (-want +got):\n%s", x.RPC, diff)
					}
				}
			}
		})
	}
}

// numbers compares what JSON turned into float64.
var numbers = cmp.FilterValues(func(a, b any) bool {
	_, x := a.(float64)
	_, y := b.(float64)
	return x && y
}, cmp.Comparer(func(a, b any) bool { return a.(float64) == b.(float64) }))

// jsonForm turns a DecodeAny value into the form that the recordings use.
func jsonForm(v any) any {
	switch v := v.(type) {
	case []any:
		list := make([]any, len(v))
		for i, x := range v {
			list[i] = jsonForm(x)
		}
		return list
	case structpack.AnyExpected:
		if v.OK {
			return map[string]any{"ok": jsonForm(v.Value)}
		}
		return map[string]any{"error": jsonForm(v.Value)}
	case structpack.AnyVariant:
		return map[string]any{"index": float64(v.Index), "value": jsonForm(v.Value)}
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	}
	return v
}

// TestReusedRequestsKeepNothing decodes every known message into values full of other data: a
// version must set or reset every field.
func TestReusedRequestsKeepNothing(t *testing.T) {
	var file map[string][]exchange
	load(t, "conversations.json", &file)
	var golden goldenFile
	load(t, "golden.json", &golden)
	check := func(what string, fresh func() any, decode func(any) error) {
		t.Helper()
		clean, dirty := fresh(), fresh()
		soil(reflect.ValueOf(dirty).Elem(), 3)
		if err := decode(clean); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if err := decode(dirty); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if diff := cmp.Diff(clean, dirty, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s keeps old data (-fresh +reused):\n%s", what, diff)
		}
	}
	for release, exchanges := range file {
		v, _ := ParseVersion(release)
		for _, x := range exchanges {
			m := method(t, x.RPC)
			check(release+" "+x.RPC+" request", m.newRequest, func(into any) error {
				_, _, err := m.decodeRequest(x.Req[requestHeader:], into)
				return err
			})
			if x.Err == 0 {
				check(release+" "+x.RPC+" response", m.newResponse, func(into any) error {
					return m.decodeResponse(v, x.Rsp[responseHeader:], into)
				})
			}
		}
	}
	// Layouts that no conversation shows: write a golden value in every version and read it back.
	for _, rpc := range golden.RPCs {
		if !rpc.Registered {
			continue
		}
		m := method(t, rpc.RPC)
		for _, v := range m.Versions().Versions() {
			for _, g := range rpc.Requests {
				req := m.newRequest()
				if _, _, err := m.decodeRequest(g.Bare, req); err != nil {
					t.Fatal(err)
				}
				body, err := m.appendRequest(v, req, false)
				if err != nil {
					t.Fatalf("%s %s: %v", v, rpc.RPC, err)
				}
				check(v.String()+" "+rpc.RPC+" request", m.newRequest, func(into any) error {
					_, _, err := m.decodeRequest(body, into)
					return err
				})
			}
			for _, g := range rpc.Responses {
				resp := m.newResponse()
				if err := m.decodeResponse(V0_3_13, g.Bare, resp); err != nil {
					t.Fatal(err)
				}
				body, err := m.appendResponse(v, resp, false)
				if err != nil {
					t.Fatalf("%s %s: %v", v, rpc.RPC, err)
				}
				check(v.String()+" "+rpc.RPC+" response", m.newResponse, func(into any) error { return m.decodeResponse(v, body, into) })
			}
		}
	}
}

// soil fills v with values that no message holds.
func soil(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			soil(v.Field(i), depth)
		}
	case reflect.Array:
		for i := range v.Len() {
			soil(v.Index(i), depth)
		}
	case reflect.Slice:
		if depth > 0 {
			v.Set(reflect.MakeSlice(v.Type(), 5, 9))
			for i := range v.Len() {
				soil(v.Index(i), depth-1)
			}
		}
	case reflect.String:
		v.SetString("dirt " + strconv.Itoa(depth))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(77)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(78)
	default:
		panic(v.Kind())
	}
}
