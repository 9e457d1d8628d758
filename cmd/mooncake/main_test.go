package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// command runs one command line and returns what it wrote to stdout.
func command(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := newRootCommand()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestPluginsList(t *testing.T) {
	out, err := command(t, "plugins", "ls", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var parts []struct{ Kind, Name, Doc, State, Reason string }
	if err := json.Unmarshal([]byte(out), &parts); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	var names []string
	for _, p := range parts {
		names = append(names, p.Kind+"/"+p.Name)
		if p.Doc == "" || p.State != "available" && p.Reason == "" {
			t.Errorf("%+v", p)
		}
	}
	for _, want := range []string{"transport/tcp", "metadata backend/memory", "metadata backend/etcd", "metadata backend/redis", "metadata backend/http"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is missing in %v", want, names)
		}
	}
	text, err := command(t, "plugins", "ls")
	if err != nil || !strings.Contains(text, "available") {
		t.Errorf("%v: %s", err, text)
	}
}

// Every file that ships is accepted by the complete binary, with all parts linked in.
func TestShippedConfigsAreFine(t *testing.T) {
	files, err := filepath.Glob("../../configs/examples/*")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, f := range append(files, "../../configs/mooncake.json") {
		if strings.HasSuffix(f, ".md") {
			continue
		}
		t.Run(filepath.Base(f), func(t *testing.T) {
			if filepath.Base(f) == "external-plugins.json" {
				f = installed(t, f, "/opt/mooncake", "sqlite/.venv/bin/python", "sqlite/sqlite.py", "mover/mover")
			}
			if out, err := command(t, "config", "check", f); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if out, err := command(t, "config", "show", "--json", f); err != nil || !json.Valid([]byte(out)) {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

// installed is a copy of a config whose programs, below folder, are there.
func installed(t *testing.T, config, folder string, programs ...string) string {
	t.Helper()
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, p := range programs {
		if !strings.Contains(string(text), folder+"/"+p) {
			t.Errorf("%s does not name %s/%s", config, folder, p)
		}
		at := filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	at := filepath.Join(dir, filepath.Base(config))
	if err := os.WriteFile(at, []byte(strings.ReplaceAll(string(text), folder, dir)), 0o644); err != nil {
		t.Fatal(err)
	}
	return at
}

func TestConfigCheckReportsAndFails(t *testing.T) {
	f := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(f, []byte("{\n \"protocol\": \"rmda\",\n \"tansports\": {}\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := command(t, "config", "check", f)
	var exit *exitError
	if !errors.As(err, &exit) || exit.code != 1 {
		t.Fatalf("error %v", err)
	}
	for _, want := range []string{f + ":2:", "did you mean rdma?", f + ":3:", "did you mean transports?"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if _, err := command(t, "node", "--config", f); err == nil || !strings.Contains(err.Error(), "rmda") {
		t.Errorf("node with a bad config: %v", err)
	}
}

// Policies of third parties are compiled; what is wrong with a module is said at its section.
func TestConfigCheckCompilesPolicies(t *testing.T) {
	check := func(guest string) (string, error) {
		t.Helper()
		dir := t.TempDir()
		module, err := filepath.Abs(filepath.Join("../../plugins/wasm/testdata", guest))
		if err != nil {
			t.Fatal(err)
		}
		f := filepath.Join(dir, "c.json")
		text := fmt.Sprintf("{\"master\": {\"listen\": \"127.0.0.1:0\"},\n \"eviction\": {\"*\": {\"type\": \"wasm\", \"module\": %q, \"cache_dir\": %q}}}", module, filepath.Join(dir, "code"))
		if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := command(t, "config", "check", f)
		return strings.ReplaceAll(out, f, "c.json"), err
	}
	if out, err := check("lru.wasm"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := check("start_spin.wasm"); err != nil {
		t.Errorf("code of a module was run: %v\n%s", err, out)
	}
	out, err := check("import_function.wasm")
	var exit *exitError
	if !errors.As(err, &exit) || !strings.Contains(out, "c.json:2:15: eviction.*: ") || !strings.Contains(out, "imports the function env.open_file") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestSetOverridesTheFile(t *testing.T) {
	out, err := command(t, "config", "show", "--json", "--set", "log.level=debug", "../../configs/mooncake.json")
	if err != nil {
		t.Fatal(err)
	}
	var values []struct {
		Key    string
		Value  any
		Source string
	}
	if err := json.Unmarshal([]byte(out), &values); err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		if v.Key == "log.level" {
			if v.Value != "debug" || !strings.Contains(v.Source, "--set log.level") {
				t.Errorf("%+v", v)
			}
			return
		}
	}
	t.Error("log.level is not shown")
}

func TestVersion(t *testing.T) {
	out, err := command(t, "version", "--json")
	var v struct{ Version, Go string }
	if err != nil || json.Unmarshal([]byte(out), &v) != nil || v.Version == "" || v.Go == "" {
		t.Fatalf("%v: %s", err, out)
	}
}

// The reference pages in docs are what the code says now; `make generate` rewrites them.
func TestReferencePagesAreCurrent(t *testing.T) {
	pages, err := referencePages()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range pages {
		got, err := os.ReadFile(filepath.Join("../../docs/reference", name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("docs/reference/%s is not what the code says (%v); run `make generate`", name, err)
		}
	}
}
