package admin

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/master/versions"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

func TestHuman(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1000: "1000 B", 1024: "1.00 KB", 4000: "3.91 KB", 64 << 20: "64.00 MB", 5 << 30: "5.00 GB", 3 << 40: "3.00 TB", 5 << 50: "5120.00 TB"} {
		if got := human(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	if got := share(0, 0); got != "0 B / 0 B" {
		t.Error(got)
	}
	if got := share(512, 1024); got != "512 B / 1.00 KB (50.0%)" {
		t.Error(got)
	}
}

func TestParam(t *testing.T) {
	for _, c := range []struct{ query, want string }{
		{"key=a", "a"}, {"x=1&key=a", "a"}, {"key=a&key=b", "a"}, {"key=a%20b", "a b"}, {"key=a+b", "a+b"}, {"key=100%", "100%"}, {"key=a=b", "a=b"},
		{"key", ""}, {"", ""}, {"Key=a", ""}, {"key=%00", "\x00"},
	} {
		r := httptest.NewRequest("GET", "/query_key", nil)
		r.URL.RawQuery = c.query
		if got, _ := param(r, "key"); got != c.want {
			t.Errorf("%q: %q, want %q", c.query, got, c.want)
		}
	}
}

func FuzzParam(f *testing.F) {
	f.Add("key=a%20b&x=%zz")
	f.Fuzz(func(t *testing.T, query string) {
		r := httptest.NewRequest("GET", "/query_key", nil)
		r.URL.RawQuery = query
		v, ok := param(r, "key")
		raw := rawParam(r, "key")
		if !ok && (v != "" || raw != "") {
			t.Errorf("%q without the parameter", v)
		}
		if !strings.Contains(raw, "%") && v != raw {
			t.Errorf("%q became %q without an escape", raw, v)
		}
	})
}

func TestLabels(t *testing.T) {
	for in, want := range map[string]string{`a"b\c` + "\n": `a\"b\\c\n`, "\xff": "\uFFFD"} {
		if got := escapeLabel(in); got != want || !utf8.ValidString(got) {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestRates(t *testing.T) {
	var r rates
	at := time.Unix(1, 0)
	if got := r.perSecond(at, map[string]uint64{"a": 5}); got["a"] != 0 {
		t.Error(got)
	}
	if got := r.perSecond(at.Add(2*time.Second), map[string]uint64{"a": 25}); got["a"] != 10 {
		t.Error(got)
	}
	if got := r.perSecond(at.Add(2*time.Second), map[string]uint64{"a": 30}); got["a"] != 0 { // no time passed
		t.Error(got)
	}
}

func TestStatusCodes(t *testing.T) {
	for code, want := range map[wire.ErrorCode]int{wire.ErrInvalidParams: 400, wire.ErrObjectNotFound: 404, wire.ErrReplicaIsNotReady: 404, wire.ErrSegmentNotFound: 404,
		wire.ErrJobNotFound: 404, wire.ErrUnavailableInCurrentMode: 409, wire.ErrUnavailableInCurrentStatus: 409, wire.ErrTenantNotEmpty: 409, wire.ErrInternalError: 500, wire.ErrPersistentFail: 500} {
		if got := statusOf(code); got != want {
			t.Errorf("%s: %d, want %d", code, got, want)
		}
	}
	for s, want := range map[wire.SegmentStatus]string{0: "UNDEFINED", 1: "OK", 4: "GRACEFULLY_UNMOUNTING", 9: "UNKNOWN_9"} {
		if got := segmentStatusName(s); got != want {
			t.Errorf("%d: %s", s, got)
		}
	}
	if jobStatusName(master.JobCanceled) != "CANCELED" || jobStatusName(77) != "UNKNOWN_77" {
		t.Error("job states")
	}
	if kindName(wire.KindDFS) != "dfs" || kindName(99) != "unknown" || statusName(wire.StatusComplete) != "complete" || statusName(-1) != "unknown" {
		t.Error("replica names")
	}
}

// Who is connected and whom the service knows become one list.
func TestMerge(t *testing.T) {
	callers := []versions.Client{
		{ID: wire.UUID{1, 1}, Versions: wire.SetOf(wire.V0_3_12), Connections: 2},
		{Versions: wire.AllVersions, Connections: 1},
	}
	known := []master.ClientDetail{
		{ID: wire.UUID{1, 1}, State: "ok", LastPingMS: 1000, Segments: []wire.UUID{{7, 8}}},
		{ID: wire.UUID{2, 2}, State: "suspected"},
	}
	want := []Client{
		{ID: "2-2", Version: "unknown", State: "suspected"},
		{Address: "unix socket", Version: "unknown", Connections: 1},
		{ID: "1-1", Address: "unix socket", Version: "0.3.12", Connections: 2, State: "ok", LastPing: "1970-01-01T00:00:01.000Z", Segments: []string{"7-8"}},
	}
	if diff := cmp.Diff(want, merge(callers, known)); diff != "" {
		t.Error(diff)
	}
}
