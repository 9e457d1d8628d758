package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/plugins/examples"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/plugins/sdk"
)

// A pluginTemplate is the example that a new project begins with.
type pluginTemplate struct {
	kind, lang string
	dir        string // in examples.External
	source     string // the file to change; in Python it gets the project's name
	settings   string // for make check; CURDIR is the project's folder
	about      string // what it does as it is
}

var pluginTemplates = []pluginTemplate{
	{"transport", "go", "external-transport", "main.go", `{}`, "moves bytes between the nodes of one host over Unix sockets; the transport itself is in mover"},
	{"metadata", "go", "external-metadata", "main.go", `{"folder": "$(CURDIR)/meta"}`, "keeps each key in a file of one folder"},
	{"eviction", "go", "external-eviction", "main.go", `{}`, "throws away what was used longest ago"},
	{"transport", "python", "external-transport-python", "copy_transport.py", `{}`, "moves bytes between the nodes of one host over Unix sockets"},
	{"metadata", "python", "external-metadata-python", "sqlite_metadata.py", `{"path": "$(CURDIR)/meta.db"}`, "keeps keys in an SQLite file"},
	{"eviction", "python", "external-eviction-python", "lru_eviction.py", `{}`, "throws away what was used longest ago"},
}

// goModule is this module, and goVersion what its go.mod asks for.
const (
	goModule  = "github.com/mooncake-agent/mooncake"
	goVersion = "1.26.0"
)

func newPluginNewCommand() *cobra.Command {
	var kind, lang, source string
	cmd := &cobra.Command{
		Use:   "new --kind transport|metadata|eviction --lang go|python NAME",
		Short: "Write a project for a plugin of your own, which builds and works as it is",
		Long: `Write a folder NAME with a plugin that a node runs in a process of its own: the source to change, which works, a
Makefile and a README. In Python the library and the protocol's files are in it. In Go the library is the module of
mooncake itself: of the version of this program, or the source tree at --source (as a rule the one you are in).

Nothing is installed or fetched until make. NAME may be a path; its last element is the project's name.`,
		Example: `  mooncake plugin new --kind metadata --lang python mystore
  make -C mystore check`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			i := slices.IndexFunc(pluginTemplates, func(t pluginTemplate) bool { return t.kind == kind && t.lang == lang })
			if i < 0 {
				return fmt.Errorf("--kind %q --lang %q: choose transport, metadata or eviction, and go or python", kind, lang)
			}
			t := pluginTemplates[i]
			files, err := t.project(filepath.Base(args[0]), source)
			if err != nil {
				return err
			}
			if err := writeProject(args[0], files); err != nil {
				return err
			}
			var names []string
			for _, f := range files {
				if !strings.Contains(f.name, "/") {
					names = append(names, f.name)
				}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n\nIt needs %s. Next:\n  make -C %s\n  make -C %s check\n", args[0], strings.Join(names, ", "), t.needs(), args[0], args[0])
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&kind, "kind", "", "transport, metadata or eviction")
	f.StringVar(&lang, "lang", "", "go or python")
	f.StringVar(&source, "source", "", "for go: the source tree of mooncake that the project builds on")
	for _, name := range []string{"kind", "lang"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err)
		}
	}
	return cmd
}

var pluginName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

func (t *pluginTemplate) needs() string {
	if t.lang == "go" {
		return "Go " + strings.TrimSuffix(goVersion, ".0") + " or newer"
	}
	return "Python 3.9 or newer with venv (Debian: apt-get install python3-venv)"
}

// program is what the node runs, from the project's folder.
func (t *pluginTemplate) program(name string) string {
	if t.lang == "go" {
		return "./" + name
	}
	return ".venv/bin/python " + name + ".py"
}

// project returns the files of a project, the one to change first.
func (t *pluginTemplate) project(name, source string) ([]projectFile, error) {
	if !pluginName.MatchString(name) {
		return nil, fmt.Errorf("%q: a plugin's name is lower case letters, digits and _, and begins with a letter", name)
	}
	if slices.Contains([]string{"mooncake_plugin", "protocol", "main", "mover"}, name) {
		return nil, fmt.Errorf("%q is the name of something in the library: choose another", name)
	}
	files, err := t.example(name)
	if err != nil {
		return nil, err
	}
	more, ignore := t.python, ".venv/\n__pycache__/\nmeta.db*\n"
	if t.lang == "go" {
		more, ignore = t.goModule, "/"+name+"\n/meta/\n"
	}
	lib, err := more(name, source)
	if err != nil {
		return nil, err
	}
	files = append(files, lib...)
	return append(files, projectFile{".gitignore", ignore}, projectFile{"README.md", t.readme(name)}), nil
}

// example is the source to start from.
func (t *pluginTemplate) example(name string) (files []projectFile, err error) {
	edit := strings.NewReplacer(
		path.Join(goModule, "plugins/examples", t.dir), "example.com/"+name,
		"Command "+t.dir+" is", "Command "+name+" is",
		"/opt/mooncake/"+t.dir, "/opt/mooncake/"+name,
	)
	err = fs.WalkDir(examples.External, t.dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(p, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(examples.External, p)
		at := strings.TrimPrefix(p, t.dir+"/")
		if at == t.source && t.lang == "python" {
			at = name + ".py"
		}
		files = append(files, projectFile{at, edit.Replace(string(text))})
		return err
	})
	return files, err
}

// python is what a project in Python has besides its source.
func (t *pluginTemplate) python(name, source string) ([]projectFile, error) {
	if source != "" {
		return nil, errors.New("--source is for --lang go: a project in Python has all it needs in it")
	}
	files := []projectFile{{"mooncake_plugin/protocol.binpb", string(pluginv1.Descriptor)}}
	err := fs.WalkDir(sdk.Python, "python", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(sdk.Python, p)
		files = append(files, projectFile{strings.TrimPrefix(p, "python/"), string(text)})
		return err
	})
	if err != nil {
		return nil, err
	}
	protos, err := fs.Glob(pluginv1.Sources, "*.proto")
	if err != nil {
		return nil, err
	}
	for _, p := range protos {
		text, err := fs.ReadFile(pluginv1.Sources, p)
		if err != nil {
			return nil, err
		}
		files = append(files, projectFile{"protocol/" + pluginv1.ImportDir + "/" + p, string(text)})
	}
	return append(files, projectFile{"Makefile", fmt.Sprintf(`# make installs the libraries into .venv; make check tries the plugin (FLAGS="--run watch" a part of its contract).
PYTHON   ?= python3
MOONCAKE ?= mooncake
CONFIG   ?= %s

all: .venv/ready

# The file project.pth lets the plugin find mooncake_plugin however it is started.
.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -q --disable-pip-version-check -r requirements.txt
	echo "$(CURDIR)" > "$$(.venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/project.pth"
	touch $@

check: all
	$(MOONCAKE) plugin check $(FLAGS) --config '$(CONFIG)' %s

.PHONY: all check
`, t.settings, t.program(name))}), nil
}

// goModule is what a project in Go has besides its source.
func (t *pluginTemplate) goModule(name, source string) ([]projectFile, error) {
	version, tree, err := goLibrary(source)
	if err != nil {
		return nil, err
	}
	mod := fmt.Sprintf("module example.com/%s\n\ngo %s\n\nrequire %s %s\n", name, goVersion, goModule, version)
	var files []projectFile
	if tree != "" {
		mod += fmt.Sprintf("\nreplace %s => %s\n", goModule, tree)
		sums, err := os.ReadFile(filepath.Join(tree, "go.sum"))
		if err != nil {
			return nil, err
		}
		files = append(files, projectFile{"go.sum", string(sums)}) // so that nothing has to be looked up
	}
	return append(files, projectFile{"go.mod", mod}, projectFile{"Makefile", fmt.Sprintf(`# make builds the plugin; make check tries it (FLAGS="--run sizes" a part of its contract).
GO       ?= go
MOONCAKE ?= mooncake
CONFIG   ?= %[1]s

%[2]s: go.mod $(wildcard *.go */*.go)
	$(GO) build -mod=mod -o $@ .

check: %[2]s
	$(MOONCAKE) plugin check $(FLAGS) --config '$(CONFIG)' %[3]s

.PHONY: check
`, t.settings, name, t.program(name))}), nil
}

var released = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// goLibrary finds the module that a project in Go builds on: a released version, or a source tree.
func goLibrary(source string) (version, tree string, err error) {
	if source == "" {
		if b, ok := debug.ReadBuildInfo(); ok && b.Main.Path == goModule && released.MatchString(b.Main.Version) {
			return b.Main.Version, "", nil
		}
		if source = sourceAround(); source == "" {
			return "", "", errors.New("this program is of no released version: name the source tree that it was built from with --source DIR")
		}
	}
	if source, err = filepath.Abs(source); err != nil {
		return "", "", err
	}
	if !isSource(source) {
		return "", "", fmt.Errorf("--source %s: this is not the source tree of %s", source, goModule)
	}
	return "v0.0.0", source, nil
}

// sourceAround is the source tree that the working folder is in, or "".
func sourceAround() string {
	dir, err := os.Getwd()
	for err == nil && !isSource(dir) {
		up := filepath.Dir(dir)
		if up == dir {
			return ""
		}
		dir = up
	}
	return dir
}

func isSource(dir string) bool {
	f, err := os.Open(filepath.Join(dir, "go.mod"))
	if err != nil {
		return false
	}
	defer f.Close()
	line, _ := bufio.NewReader(f).ReadString('\n')
	return strings.TrimSpace(line) == "module "+goModule
}

func (t *pluginTemplate) readme(name string) string {
	file := t.source
	if t.lang == "python" {
		file = name + ".py"
	}
	return fmt.Sprintf(`# %[1]s

%[2]s for the Mooncake agent, in a process of its own. As it is, it %[3]s. %[4]s is the file to change.

It needs %[5]s.

`+"```"+`sh
make         # builds it
make check   # starts it as a node does, tries its contract, says whether a node may have it, and how to configure it
`+"```"+`

The node starts it, watches it and starts it again when it ends. What it writes to standard error is in the node's log and
in `+"`mooncake plugins logs`"+`. The guide is docs/external-plugins.md of the agent; the contract is in the comments of
%[6]s.
`, name, strings.ToUpper(kindInWords[t.kind][:1])+kindInWords[t.kind][1:], t.about, file, t.needs(), t.contract())
}

// contract is where the author reads what a plugin has to do.
func (t *pluginTemplate) contract() string {
	if t.lang == "python" {
		return "protocol/" + pluginv1.ImportDir + "/" + t.kind + ".proto"
	}
	return map[string]string{"transport": "package transports", "metadata": "package metadata", "eviction": "package eviction"}[t.kind]
}
