package external

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func adminServer(t *testing.T) func(method, path, body string) (int, string) {
	mux := http.NewServeMux()
	for _, r := range Routes() {
		mux.Handle(r.Pattern, r.Handler)
	}
	return func(method, path, body string) (int, string) {
		t.Helper()
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		return w.Code, w.Body.String()
	}
}

func TestAdmin(t *testing.T) {
	ask := adminServer(t)
	if code, text := ask("GET", ListPath, ""); code != 200 || strings.TrimSpace(text) != `{"plugins":[]}` {
		t.Errorf("without plugins: %d %s", code, text)
	}
	p := open(t, faulty(t, "", nil)).Plugin()
	if err := p.Run(within(t, time.Minute), nil); err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	var list List
	if _, text := ask("GET", ListPath, ""); json.Unmarshal([]byte(text), &list) != nil || len(list.Plugins) != 1 || list.Plugins[0].State != StateReady {
		t.Fatalf("list: %s", text)
	}
	for name, c := range map[string]struct {
		method, path, body string
		code               int
		says               string
	}{
		"logs":              {"GET", LogsPath + "?name=test", "", 200, `"lines":[`},
		"logs by kind":      {"GET", LogsPath + "?name=eviction/test&lines=1", "", 200, `"generation":1`},
		"logs by its name":  {"GET", LogsPath + "?name=faulty&lines=1", "", 200, `"generation":1`},
		"of another":        {"GET", LogsPath + "?name=mine", "", 404, "there are eviction/test"},
		"of another kind":   {"GET", LogsPath + "?name=metadata/test", "", 404, "no plugin"},
		"no number":         {"GET", LogsPath + "?name=test&lines=x", "", 400, "lines"},
		"restart of none":   {"POST", RestartPath, `{"name": "mine"}`, 404, "no plugin"},
		"restart without":   {"POST", RestartPath, ``, 400, "the body must be"},
		"restart of what":   {"POST", RestartPath, `{"names": "test"}`, 400, "the body must be"},
		"restart by a link": {"GET", RestartPath, "", 405, ""},
	} {
		if code, text := ask(c.method, c.path, c.body); code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
	if code, text := ask("POST", RestartPath, `{"name": "test"}`); code != 200 {
		t.Fatalf("restart: %d %s", code, text)
	}
	eventually(t, "a second generation is ready", func() bool {
		s := p.Status()
		return s.Generation == 2 && s.State == StateReady
	})
	other := open(t, faulty(t, "", nil)).Plugin()
	if err := other.Run(within(t, time.Minute), nil); err != nil {
		t.Fatal(err)
	}
	defer other.Stop()
	if code, text := ask("GET", LogsPath+"?name=test", ""); code != 409 || !strings.Contains(text, "several plugins") {
		t.Errorf("two of one name: %d %s", code, text)
	}
}
