package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mooncake-agent/mooncake/plugins/examples"
	"github.com/mooncake-agent/mooncake/plugins/sdk"
)

// A policyLanguage is what a new project in it is made of.
type policyLanguage struct {
	title  string
	sdk    string // folder of the library
	source string // the example to start from
	ext    string
	needs  string // what builds it
}

var policyLanguages = map[string]policyLanguage{
	"c":    {"C", "c", "lru-c/lru.c", ".c", "clang 22 with lld (Debian: apt-get install clang-22 lld-22)"},
	"go":   {"Go", "go", "lru-go/lru.go", ".go", "Go 1.24 or newer"},
	"rust": {"Rust", "rust", "lru-rust/lru.rs", ".rs", "rustc with the target wasm32-unknown-unknown (Debian: apt-get install rustc libstd-rust-dev-wasm32 lld-14)"},
	"as":   {"AssemblyScript", "assemblyscript", "lru-as/lru.ts", ".ts", "Node.js 18 or newer with npm"},
}

func newPolicyNewCommand() *cobra.Command {
	var lang string
	cmd := &cobra.Command{
		Use:   "new --lang c|go|rust|as NAME",
		Short: "Write a project for a policy of your own, which builds and works as it is",
		Long: `Write a folder NAME with an eviction policy that is built to WebAssembly: the source to change, which works as LRU, the
library for its language, a Makefile and a README. Nothing is installed or fetched; the README says which compiler
it takes. NAME may be a path; its last element is the policy's name.`,
		Example: `  mooncake policy new --lang c mypolicy
  make -C mypolicy
  mooncake policy check mypolicy/mypolicy.wasm`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, ok := policyLanguages[lang]
			if !ok {
				return fmt.Errorf("--lang %q: choose c, go, rust or as", lang)
			}
			files, err := writePolicyProject(args[0], l)
			if err != nil {
				return err
			}
			dir, name := args[0], filepath.Base(args[0])
			fmt.Fprintf(cmd.OutOrStdout(), `%s: %s

It needs %s. Next:
  make -C %s
  mooncake policy check %s
`, dir, strings.Join(files, ", "), l.needs, dir, filepath.Join(dir, name+".wasm"))
			return nil
		},
	}
	cmd.Flags().StringVar(&lang, "lang", "", "c, go, rust or as (AssemblyScript)")
	if err := cmd.MarkFlagRequired("lang"); err != nil {
		panic(err)
	}
	return cmd
}

// Names become file names, crate names and module paths.
var policyName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)

// writePolicyProject makes the folder and returns the files in it.
func writePolicyProject(dir string, l policyLanguage) ([]string, error) {
	name := filepath.Base(dir)
	if !policyName.MatchString(name) {
		return nil, fmt.Errorf("%q: a policy's name is lower case letters, digits, - and _, and begins with a letter", name)
	}
	if slices.Contains([]string{"abi", "mooncake", "policy", "makefile"}, name) {
		return nil, fmt.Errorf("%q is the name of a file of the library: choose another", name)
	}
	files, err := policyProject(name, l)
	if err != nil {
		return nil, err
	}
	if err := writeProject(dir, files); err != nil {
		return nil, err
	}
	var names []string
	for _, f := range files {
		names = append(names, f.name)
	}
	return names, nil
}

type projectFile struct{ name, text string }

// writeProject makes a folder with the files, which must not be there yet.
func writeProject(dir string, files []projectFile) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s is there already: choose another name", dir)
		}
		return err
	}
	for _, f := range files {
		at := filepath.Join(dir, filepath.FromSlash(f.name))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, []byte(f.text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// policyProject returns the files of a project, the one to change first.
func policyProject(name string, l policyLanguage) ([]projectFile, error) {
	source, err := fs.ReadFile(examples.Files, l.source)
	if err != nil {
		return nil, err
	}
	files := []projectFile{{name + l.ext, string(source)}}
	err = fs.WalkDir(sdk.Files, l.sdk, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(p, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(sdk.Files, p)
		files = append(files, projectFile{strings.TrimPrefix(p, l.sdk+"/"), string(text)})
		return err
	})
	if err != nil {
		return nil, err
	}
	if l.sdk == "go" {
		files = append(files, projectFile{"go.mod", "module example.com/" + name + "\n\ngo 1.24\n"})
	}
	files = append(files, projectFile{".gitignore", "*.wasm\nnode_modules/\n"}, projectFile{"README.md", policyReadme(name, l)})
	edit := strings.NewReplacer(
		"NAME ?= policy", "NAME ?= "+name,
		"NAME   ?= policy", "NAME   ?= "+name,
		path.Join("github.com/mooncake-agent/mooncake/plugins/sdk/go", "policy"), "example.com/"+name+"/policy",
		"// Command lru-go is", "// Command "+name+" is",
	)
	for i := range files {
		files[i].text = edit.Replace(files[i].text)
	}
	return files, nil
}

func policyReadme(name string, l policyLanguage) string {
	return fmt.Sprintf(`# %[1]s

An eviction policy for the Mooncake agent in %[2]s. As it is it throws away what was used longest ago, the end of
a chain first; %[1]s%[3]s is the file to change, the others are the library.

It needs %[4]s.

`+"```"+`sh
make                                            # builds %[1]s.wasm
mooncake policy check %[1]s.wasm                # is it a good guest? how fast?
mooncake policy set wasm:module=$PWD/%[1]s.wasm # the master on this machine uses it from now on
mooncake policy rollback                        # the one before again
`+"```"+`
`, name, l.title, l.ext, l.needs)
}
