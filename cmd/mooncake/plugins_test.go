package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/plugins/external"
)

// adminOfPlugins answers like a node with one plugin, which is ready a moment after a restart.
func adminOfPlugins(t *testing.T, after external.State) string {
	var generation atomic.Uint64
	generation.Store(3)
	var asked atomic.Int64
	status := func() external.Status {
		s := external.Status{Kind: "metadata", Name: "meta", Plugin: "sqlite", Version: "1.0", State: external.StateReady, Generation: generation.Load(), PID: 42, LastError: "its process ended: exit status 7"}
		if s.Generation > 3 {
			s.PID, s.State = 0, external.StateStarting
			if asked.Add(1) > 3 {
				s.PID, s.State = 43, after
			}
		}
		return s
	}
	mux := http.NewServeMux()
	send := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	mux.HandleFunc("GET "+external.ListPath, func(w http.ResponseWriter, _ *http.Request) {
		send(w, external.List{Plugins: []external.Status{status()}})
	})
	mux.HandleFunc("GET "+external.LogsPath, func(w http.ResponseWriter, r *http.Request) {
		if n := r.FormValue("name"); n != "meta" && n != "metadata/meta" {
			http.Error(w, "no plugin is called "+n, http.StatusNotFound)
			return
		}
		send(w, external.Logs{Plugin: status(), Lines: []external.Line{{Time: time.Now(), Generation: 3, Text: "hello " + r.FormValue("lines")}}})
	})
	mux.HandleFunc("POST "+external.RestartPath, func(w http.ResponseWriter, _ *http.Request) {
		send(w, status())
		generation.Add(1)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func TestPluginsOfANode(t *testing.T) {
	admin := adminOfPlugins(t, external.StateReady)
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"ls", "--admin", admin}, []string{"metadata", "meta", "sqlite 1.0", "ready", "42", "exit status 7"}},
		{[]string{"ls", "--admin", admin, "--json"}, []string{`"generation": 3`}},
		{[]string{"ls"}, []string{"transport", "available"}},
		{[]string{"logs", "meta", "--admin", admin, "--lines", "7"}, []string{"INFO  3 hello 7"}},
		{[]string{"restart", "meta", "--admin", admin}, []string{"metadata/meta is ready, generation 4, process 43"}},
	} {
		out, err := runRoot(append([]string{"plugins"}, c.args...)...)
		if err != nil {
			t.Errorf("%v: %v", c.args, err)
		}
		for _, w := range c.want {
			if !strings.Contains(out, w) {
				t.Errorf("%v: no %q in\n%s", c.args, w, out)
			}
		}
	}
}

func TestPluginsSayWhatIsWrong(t *testing.T) {
	admin := adminOfPlugins(t, external.StateBackoff)
	old := httptest.NewServer(http.NotFoundHandler())
	defer old.Close()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"logs", "mine", "--admin", admin}, "no plugin is called mine"},
		{[]string{"restart", "meta", "--admin", admin}, "back-off after the restart: its process ended: exit status 7"},
		{[]string{"ls", "--admin", old.URL}, "is this the admin server of a mooncake node"},
		{[]string{"ls", "--admin", "127.0.0.1:1"}, "no answer from the admin server"},
	} {
		if _, err := runRoot(append([]string{"plugins"}, c.args...)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want %q", c.args, err, c.want)
		}
	}
}
