package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/core/master"
	tape "github.com/mooncake-agent/mooncake/core/master/record"
)

type fakePolicies struct{ calls []string }

func (f *fakePolicies) Set(_ context.Context, domain, text string) error {
	f.calls = append(f.calls, "set "+domain+" "+text)
	if text == "bad" {
		return errors.New("no such policy")
	}
	return nil
}
func (f *fakePolicies) Drop(domain string) error {
	f.calls = append(f.calls, "drop "+domain)
	return nil
}
func (f *fakePolicies) Rollback(domain string) error {
	f.calls = append(f.calls, "rollback "+domain)
	return nil
}

type fakeTape struct{ s tape.Status }

func (f *fakeTape) Start(name string) error { f.s = tape.Status{Running: true, File: name}; return nil }
func (f *fakeTape) Stop() (tape.Status, error) {
	if !f.s.Running {
		return f.s, errors.New("nothing is being recorded")
	}
	f.s.Running = false
	return f.s, nil
}
func (f *fakeTape) Status() tape.Status { return f.s }

func TestPolicyCalls(t *testing.T) {
	s, err := master.New(master.Options{Config: master.DefaultConfig()})
	if err != nil {
		t.Fatal(err)
	}
	p, r := &fakePolicies{}, &fakeTape{}
	h := New(Options{Store: s, Policies: p, Recording: r})
	call := func(h http.Handler, method, path, body, from, host string) (int, string) {
		req := httptest.NewRequest(method, "http://"+host+path, strings.NewReader(body))
		req.RemoteAddr = from
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w.Code, w.Body.String()
	}
	const here, away = "127.0.0.1:1000", "10.0.0.9:1000"
	for _, c := range []struct {
		method, path, body, from, host string
		code                           int
		want                           string
	}{
		{"GET", PoliciesPath, "", away, "master", 200, `"domain":"*"`},
		{"POST", PoliciesPath, `{"policy":"lru"}`, here, "127.0.0.1:9003", 200, `"domain":"*"`},
		{"POST", PoliciesPath, `{"policy":"lru"}`, here, "evil.example", 403, "own host only"}, // DNS rebinding
		{"POST", PoliciesPath, `{"policy":"lru"}`, away, "master", 403, "own host only"},
		{"POST", PoliciesPath, `{"policy":"bad"}`, here, "localhost", 400, "no such policy"},
		{"POST", PoliciesPath, `{`, here, "localhost", 400, "Invalid JSON body"},
		{"DELETE", PoliciesPath, `{"domain":"a"}`, here, "localhost", 200, ""},
		{"DELETE", PoliciesPath, `{"domain":"a"}`, away, "master", 403, ""},
		{"POST", PoliciesPath + "/rollback", `{"domain":"*"}`, here, "localhost", 200, ""},
		{"POST", PoliciesPath + "/rollback", `{}`, away, "master", 403, ""},
		{"GET", RecordingPath, "", away, "master", 200, `"running":false`},
		{"POST", RecordingPath, `{"file":"x"}`, away, "master", 403, ""},
		{"POST", RecordingPath, `{"file":"x"}`, here, "localhost", 200, `"running":true,"file":"x"`},
		{"DELETE", RecordingPath, "", away, "master", 403, ""},
		{"DELETE", RecordingPath, "", here, "localhost", 200, `"running":false`},
		{"DELETE", RecordingPath, "", here, "localhost", 400, "nothing is being recorded"},
	} {
		code, body := call(h, c.method, c.path, c.body, c.from, c.host)
		if code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s %s %s from %s: %d %s, want %d %s", c.method, c.path, c.body, c.from, code, body, c.code, c.want)
		}
		if !json.Valid([]byte(body)) {
			t.Errorf("%s %s: not JSON: %s", c.method, c.path, body)
		}
	}
	if got := strings.Join(p.calls, ", "); got != "set  lru, set  bad, drop a, rollback *" {
		t.Errorf("calls: %s", got)
	}
	bare := New(Options{Store: s})
	for _, c := range []struct{ method, path string }{{"POST", PoliciesPath}, {"POST", RecordingPath}, {"DELETE", RecordingPath}} {
		if code, body := call(bare, c.method, c.path, `{"file":"x"}`, here, "localhost"); code != 409 {
			t.Errorf("%s %s of a master that cannot: %d %s", c.method, c.path, code, body)
		}
	}
	if code, _ := call(h.ReadOnly(), "POST", PoliciesPath, `{"policy":"lru"}`, here, "localhost"); code != 404 {
		t.Errorf("the RPC port takes changes: %d", code)
	}
}
