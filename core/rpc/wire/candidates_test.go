package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/core/rpc/structpack"
)

// TestAmbiguousRequests checks the complete list of requests whose answer depends on the version, as
// it was measured on the real clients.
func TestAmbiguousRequests(t *testing.T) {
	want := []string{
		"ServiceReady 00000000: 0.3.7 af2868cc; 0.3.8 0.3.9 0.3.10 0.3.11 0.3.12 0.3.13 1cb3cc34",
		"GetReplicaList 9dcffa76: 0.3.7 a68273aa; 0.3.8 b67eec78; 0.3.9 0.3.10 8362cb40; 0.3.11 75ecf440",
		"GetReplicaList 7cf91ed8: 0.3.12 75ecf440; 0.3.13 88c6276c",
		"BatchGetReplicaList 8a86e11a: 0.3.7 e1803126; 0.3.8 5919decc; 0.3.9 0.3.10 9d4c4ca0; 0.3.11 0a20c6b8",
		"BatchGetReplicaList 00f78d62: 0.3.12 0a20c6b8; 0.3.13 20c5453a",
		"GetReplicaListByRegex 9dcffa76: 0.3.7 429c12e8; 0.3.8 a50aaf2e; 0.3.9 0.3.10 11dca472; 0.3.11 f67fa572",
		"GetReplicaListByRegex 7cf91ed8: 0.3.12 f67fa572; 0.3.13 7343c040",
		"PutStart 786e5846: 0.3.8 b9fcf8f0; 0.3.9 eb40e5b4",
		"BatchPutStart 990568ce: 0.3.8 41d6f5a8; 0.3.9 9154d1d6",
		"FetchTasks 759a9b84: 0.3.8 0.3.9 d5d6e89e; 0.3.10 0.3.11 0.3.12 0.3.13 59e14526",
		"CopyStart 14827658: 0.3.9 0.3.10 ba59eaa6; 0.3.11 3a0eef84",
		"CopyStart b5bddd1a: 0.3.12 3a0eef84; 0.3.13 7c1668cc",
		"MoveStart 134529b8: 0.3.9 0.3.10 957e58a0; 0.3.11 97f25be0",
		"MoveStart ef2ee70c: 0.3.12 97f25be0; 0.3.13 3e9ed4b8",
		"OffloadObjectHeartbeat bfd50c0e: 0.3.8 0.3.9 0.3.10 0.3.11 d60d665a; 0.3.12 0.3.13 724674e6",
		"PromotionObjectHeartbeat 3c6d83e0: 0.3.11 d60d665a; 0.3.12 0.3.13 724674e6",
		"PromotionAllocStart c6e729cc: 0.3.12 2e4a74ce; 0.3.13 5c032896",
	}
	var got []string
	for _, m := range Methods() {
		codes := map[uint32]VersionSet{}
		for _, v := range m.Versions().Versions() {
			lay, _ := m.Layout(v)
			codes[lay.RequestCode] |= SetOf(v)
		}
		for code, set := range codes {
			cand, ambiguous := m.Candidates(code)
			if cand != set {
				t.Errorf("%s %08x comes from %s, want %s", m.Name(), code, cand, set)
			}
			if !ambiguous {
				continue
			}
			answers := map[uint32]VersionSet{}
			for _, v := range set.Versions() {
				lay, _ := m.Layout(v)
				answers[lay.ResponseCode] |= SetOf(v)
			}
			var parts []string
			for code, set := range answers {
				parts = append(parts, fmt.Sprintf("%s %08x", set, code))
			}
			slices.SortFunc(parts, func(a, b string) int { return int(oldest(t, a)) - int(oldest(t, b)) })
			got = append(got, fmt.Sprintf("%s %08x: %s", m.Name(), code, strings.Join(parts, "; ")))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func oldest(t *testing.T, part string) Version {
	name, _, _ := strings.Cut(part, " ")
	v, err := ParseVersion(name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestCandidates(t *testing.T) {
	newest := structpack.Code("\xfd\x80\x0c\x80\x0c\xff")
	for _, c := range []struct {
		name string
		m    AnyMethod
		code uint32
		want string
	}{
		{"two arguments", ExistKey, newest, "0.3.12 0.3.13"},
		{"one argument", ExistKey, structpack.Code("\x80\x0c"), "0.3.7 0.3.8 0.3.9 0.3.10 0.3.11"},
		{"one argument as a tuple", ExistKey, structpack.Code("\xfd\x80\x0c\xff"), "0.3.7 0.3.8 0.3.9 0.3.10 0.3.11"},
		{"unknown", ExistKey, 42 << 1, ""},
		{"no body", RemoveAll, 0, "0.3.7 0.3.8"},
		{"unknown body of a function that once had none", RemoveAll, 42 << 1, ""},
		{"any body of a function without arguments", GetFsdir, 42 << 1, "0.3.7 0.3.8 0.3.9 0.3.10 0.3.11 0.3.12 0.3.13"},
		{"function of later versions", UnmountLocalDiskSegment, structpack.Code("\xfd\x04\x04\x89\x89\xff"), "0.3.13"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if set, _ := c.m.Candidates(c.code); set.String() != c.want {
				t.Errorf("%s, want %q", set, c.want)
			}
			if m, ok := MethodByID(c.m.ID()); !ok || m.Name() != c.m.Name() {
				t.Error("not found by its id")
			}
		})
	}
	if _, ok := MethodByID(1); ok {
		t.Error("found a method with id 1")
	}
}

func TestVersions(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Version
		ok   bool
	}{
		{"0.3.7", V0_3_7, true}, {"0.3.7.post2", V0_3_7, true}, {"v0.3.13.post1", V0_3_13, true}, {"0.3.10", V0_3_10, true},
		{"0.3.6", 0, false}, {"0.3.1", 0, false}, {"", 0, false}, {"0.3", 0, false}, {"latest", 0, false},
	} {
		if v, err := ParseVersion(c.in); (err == nil) != c.ok || v != c.want {
			t.Errorf("ParseVersion(%q) = %s, %v", c.in, v, err)
		}
	}
	s := SetOf(V0_3_9, V0_3_12)
	if v, ok := s.Newest(); !ok || v != V0_3_12 || s.Len() != 2 || s.String() != "0.3.9 0.3.12" || s.Has(V0_3_10) || !s.Has(V0_3_9) {
		t.Errorf("set %s, newest %s", s, v)
	}
	if _, ok := VersionSet(0).Newest(); ok {
		t.Error("the empty set has a newest version")
	}
	if AllVersions.Len() != NumVersions || Newest.String() != "0.3.13" || Oldest.String() != "0.3.7" {
		t.Errorf("all: %s, newest %s, oldest %s", AllVersions, Newest, Oldest)
	}
}

func TestErrorCodes(t *testing.T) {
	for code, want := range map[ErrorCode]string{OK: "OK", ErrObjectNotFound: "OBJECT_NOT_FOUND", ErrTenantNotEmpty: "TENANT_NOT_EMPTY", ErrorCode(-9): "ERROR_-9"} {
		if code.Error() != want || code.String() != want {
			t.Errorf("%d is %s, want %s", int32(code), code, want)
		}
	}
	if _, err := Unwrap(Result[int]{Code: ErrObjectHasLease}); !errors.Is(err, ErrObjectHasLease) {
		t.Error(err)
	}
	if v, err := Unwrap(Result[int]{Value: 4}); v != 4 || err != nil {
		t.Error(v, err)
	}
}

func TestFunctionsAbsentFromAVersion(t *testing.T) {
	if _, err := UpsertStart.AppendRequest(nil, V0_3_9, &PutStartRequest{}, true); err == nil {
		t.Error("0.3.9 has UpsertStart")
	}
	var resp Result[[]Replica]
	if err := UpsertStart.DecodeResponse(nil, V0_3_9, &resp, true); err == nil {
		t.Error("0.3.9 answers UpsertStart")
	}
	if _, err := UpsertStart.AppendResponse(nil, Version(99), &resp, true); err == nil {
		t.Error("version 99 answers UpsertStart")
	}
	if _, ok := UpsertStart.Layout(V0_3_9); ok {
		t.Error("0.3.9 has a layout of UpsertStart")
	}
}

// FuzzMessages reads arbitrary bytes as every message. Whatever is read must be writable in the
// version that it came from, and read back the same.
func FuzzMessages(f *testing.F) {
	var golden goldenFile
	load(f, "golden.json", &golden)
	for _, r := range golden.RPCs {
		if r.Registered {
			for _, g := range r.Requests {
				f.Add([]byte(g.Literal))
			}
			for _, g := range r.Responses {
				f.Add([]byte(g.Bare))
			}
		}
	}
	var file map[string][]exchange
	load(f, "conversations.json", &file)
	for _, xs := range file {
		for _, x := range xs {
			f.Add([]byte(x.Req[requestHeader:]))
			f.Add([]byte(x.Rsp[responseHeader:]))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, m := range Methods() {
			u := m.(untyped)
			req := u.newRequest()
			set, _, err := u.decodeRequest(body, req)
			if err == nil && len(body) > 0 {
				v, _ := set.Newest()
				sameAgain(t, u.Name(), req, u.newRequest(), func() ([]byte, error) { return u.appendRequest(v, req, true) },
					func(b []byte, into any) error { _, _, err := u.decodeRequest(b, into); return err })
			}
			for _, v := range u.Versions().Versions() {
				resp := u.newResponse()
				if u.decodeResponse(v, body, resp) == nil {
					sameAgain(t, u.Name(), resp, u.newResponse(), func() ([]byte, error) { return u.appendResponse(v, resp, false) },
						func(b []byte, into any) error { return u.decodeResponse(v, b, into) })
				}
			}
		}
	})
}

func sameAgain(t *testing.T, name string, value, back any, write func() ([]byte, error), read func([]byte, any) error) {
	t.Helper()
	b, err := write()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := read(b, back); err != nil && len(b) > 0 {
		t.Fatalf("%s: %x: %v", name, b, err)
	}
	if diff := cmp.Diff(value, back); diff != "" {
		t.Fatalf("%s (-first +again):\n%s", name, diff)
	}
}
