package external

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Paths of the admin server, for callers on this host only: they tell what plugins write, and restart them.
const (
	ListPath    = "/api/v1/plugins"
	LogsPath    = "/api/v1/plugins/logs"    // ?name=NAME&lines=N
	RestartPath = "/api/v1/plugins/restart" // POST Named
)

// List is the body of ListPath.
type List struct {
	Plugins []Status `json:"plugins"`
}

// Logs is the body of LogsPath, oldest line first.
type Logs struct {
	Plugin Status `json:"plugin"`
	Lines  []Line `json:"lines"`
}

// Named is the body of a request about one plugin. Name is that of its config section, with its kind before it if
// plugins of several kinds have it: "metadata/external"; what the plugin calls itself does if no section has that name.
// The answer to RestartPath is the plugin's Status.
type Named struct {
	Name string `json:"name"`
}

// Route is an endpoint for a node's admin server.
type Route struct {
	Pattern string // of http.ServeMux
	Doc     string
	Handler http.Handler
}

// Routes are the endpoints for the plugins of this process. Whoever serves them sees to it that callers are local.
func Routes() []Route {
	return []Route{
		{"GET " + ListPath, "plugins in other processes: state, generation, last error", http.HandlerFunc(serveList)},
		{"GET " + LogsPath, "what a plugin wrote: ?name=NAME&lines=100", http.HandlerFunc(serveLogs)},
		{"POST " + RestartPath, `restart a plugin: {"name": "NAME"}`, http.HandlerFunc(serveRestart)},
	}
}

func serveList(w http.ResponseWriter, _ *http.Request) {
	list := List{Plugins: []Status{}}
	for _, p := range Running() {
		list.Plugins = append(list.Plugins, p.Status())
	}
	answer(w, list)
}

const defaultLines = 100

func serveLogs(w http.ResponseWriter, r *http.Request) {
	n := defaultLines
	if text := r.FormValue("lines"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			http.Error(w, fmt.Sprintf("lines: %q is no number of lines", text), http.StatusBadRequest)
			return
		}
	}
	if p := named(w, r.FormValue("name")); p != nil {
		answer(w, Logs{Plugin: p.Status(), Lines: append([]Line{}, p.Logs(n)...)})
	}
}

func serveRestart(w http.ResponseWriter, r *http.Request) {
	var body Named
	d := json.NewDecoder(io.LimitReader(r.Body, 4<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		http.Error(w, `the body must be like {"name": "sqlite"}: `+err.Error(), http.StatusBadRequest)
		return
	}
	if p := named(w, body.Name); p != nil {
		p.program.log.Warn("plugin: an operator asks for a restart")
		p.Restart()
		answer(w, p.Status())
	}
}

// named finds a plugin, or answers why not.
func named(w http.ResponseWriter, name string) *Plugin {
	kind, bare, both := strings.Cut(name, "/")
	var found, called []*Plugin
	var all []string
	for _, p := range Running() {
		full := kindName(p.program.kind) + "/" + p.program.name
		all = append(all, full)
		if p.program.name == name || both && kindName(p.program.kind) == kind && p.program.name == bare {
			found = append(found, p)
		}
		if p.program.info.GetName() == name {
			called = append(called, p)
		}
	}
	if len(found) == 0 { // the one metadata backend has the name of its type, by which nobody knows it
		found = called
	}
	switch {
	case len(found) == 1:
		return found[0]
	case len(found) > 1:
		var which []string
		for _, p := range found {
			which = append(which, kindName(p.program.kind)+"/"+p.program.name)
		}
		http.Error(w, fmt.Sprintf("several plugins are called %q: say which of %s", name, strings.Join(which, ", ")), http.StatusConflict)
	case len(all) == 0:
		http.Error(w, fmt.Sprintf("no plugin is called %q: no part of this process is of type external", name), http.StatusNotFound)
	default:
		http.Error(w, fmt.Sprintf("no plugin is called %q; there are %s", name, strings.Join(all, ", ")), http.StatusNotFound)
	}
	return nil
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(v) // the client is gone: nothing to tell it
}
