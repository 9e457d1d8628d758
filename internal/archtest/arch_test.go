package archtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mooncake-agent/mooncake/internal/testenv"
)

type goPackage struct {
	Path         string // relative to the module
	ImportPath   string
	Name         string
	Doc          string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

var list = sync.OnceValues(func() ([]goPackage, error) {
	cmd := exec.Command("go", "list", "-e", "-json", "./...")
	cmd.Dir = "../.."
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, &errOut)
	}
	var pkgs []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); err == io.EOF {
			return pkgs, nil
		} else if err != nil {
			return nil, err
		}
		p.Path = strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, Module), "/")
		pkgs = append(pkgs, p)
	}
})

func packages(t *testing.T) []goPackage {
	t.Helper()
	pkgs, err := list()
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) < 5 {
		t.Fatalf("only %d packages found", len(pkgs))
	}
	return pkgs
}

func TestImportsPointOneWay(t *testing.T) {
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			if to, ours := strings.CutPrefix(imp, Module+"/"); ours {
				if why := wrongArrow(p.Path, to); why != "" {
					t.Error(why)
				}
			}
		}
	}
}

// The framework that wires the node is an implementation detail of one package.
func TestOnlyTheNodeImportsFx(t *testing.T) {
	for _, p := range packages(t) {
		for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if strings.HasPrefix(imp, "go.uber.org/fx") && p.Path != "core/node" {
				t.Errorf("%s imports %s", p.Path, imp)
			}
		}
	}
}

func TestEveryPackageIsDocumentedAndTested(t *testing.T) {
	pkgs := packages(t)
	usedByTests, usedBySuites := map[string]bool{}, map[string]bool{}
	for _, p := range pkgs {
		for _, imp := range slices.Concat(p.TestImports, p.XTestImports) {
			usedByTests[imp] = true
		}
		if layerOf(p.Path) == suite {
			for _, imp := range p.Imports {
				usedBySuites[imp] = true
			}
		}
	}
	for _, p := range pkgs {
		if len(p.GoFiles) == 0 {
			continue // only tests
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.Path)
		}
		tested := len(p.TestGoFiles)+len(p.XTestGoFiles) > 0
		switch {
		case p.Name == "main", layerOf(p.Path) == all, tested:
		case layerOf(p.Path) == suite && usedByTests[p.ImportPath]:
		case layerOf(p.Path) == contract && usedBySuites[p.ImportPath]:
		default:
			t.Errorf("%s has no tests", p.Path)
		}
	}
}

func TestRules(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"transports", "core/module", true},
		{"transports", "core/units", true},
		{"transports", "core/transfer", false},
		{"transports", "metadata", false},
		{"core/module", "core/units", true},
		{"core/units", "core/logx", false},
		{"transports/tcp", "transports", true},
		{"transports/tcp", "core/module", true},
		{"transports/tcp", "transports/tcp/frame", true},
		{"transports/tcp/frame", "transports/tcp", true},
		{"transports/tcp", "transports/shm", false},
		{"transports/tcp", "core/segment", false},
		{"eviction/lru", "eviction/order", true},
		{"metadata/etcd", "metadata/internal/remote", true},
		{"eviction/replay", "eviction/trace", true},
		{"eviction/replay", "eviction/lru", false},
		{"core/master", "eviction/trace", true},
		{"core/master", "eviction/replay", false},
		{"cmd/mooncake", "eviction/replay", true},
		{"metadata/etcd", "transports", false},
		{"metadata/etcd", "internal/testenv", false},
		{"metadata/etcd", "internal/jsoncpp", true},
		{"scripts/benchkv", "internal/sidebyside", true},
		{"scripts/benchkv", "internal/testenv", false},
		{"core/bench", "internal/sidebyside", false},
		{"internal/sidebyside", "internal/procstat", true},
		{"internal/jsoncpp", "core/transfer", false},
		{"metadata/etcd", "metadata/metadatatest", false},
		{"metadata/metadatatest", "metadata", true},
		{"metadata/metadatatest", "internal/testenv", true},
		{"metadata/metadatatest", "metadata/memory", false},
		{"metadata/all", "metadata/etcd", true},
		{"metadata/all", "transports/tcp", false},
		{"core/transfer", "transports", true},
		{"core/transfer", "core/segment", true},
		{"core/transfer/handshake", "core/transfer", true},
		{"core/transfer", "transports/tcp", false},
		{"core/transfer", "metadata/all", false},
		{"core/transfer", "core/node", false},
		{"core/node", "core/transfer", true},
		{"core/node", "transports/tcp", false},
		{"cmd/mooncake", "core/node", true},
		{"cmd/mooncake", "transports/all", true},
		{"cmd/mooncake", "plugins/wasm", true},
		{"cmd/mooncake", "transports/tcp", false},
		{"cmd/mooncake", "eviction/conformance", true},
		{"eviction/evictiontest", "eviction/conformance", true},
		{"eviction/evictiontest", "eviction/lru", false},
		{"metadata/metadatatest", "metadata/conformance", true},
		{"cmd/mooncake", "transports/conformance", true},
		{"cmd/mooncake", "transports/transporttest", false},
		{"core/node", "cmd/mooncake", false},
		{"plugins/external", "transports", true},
		{"plugins/external", "core/transfer", false},
		{"elsewhere", "core/units", false},
	} {
		if why := wrongArrow(c.from, c.to); (why == "") != c.ok {
			t.Errorf("%s → %s: %q", c.from, c.to, why)
		}
	}
}

const maxLines = 600

// Spelled with brackets so that this file passes its own test.
var (
	machinePath = regexp.MustCompile(`/(?:wor[k]|hom[e]|roo[t]|User[s])/[A-Za-z0-9_.-]`)
	unfinished  = regexp.MustCompile(`\b(?:TOD[O]|FIXM[E]|XX[X])\b`)
)

func TestFiles(t *testing.T) {
	root := testenv.RepoRoot(t)
	cmd := exec.Command("git", "-c", "safe.directory=*", "ls-files", "-z")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("skipped: not a git checkout: %v", err)
	}
	n := 0
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted in the work tree
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(text, 0) >= 0 || filepath.Base(name) == "go.sum" {
			continue
		}
		n++
		if strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, ".pb.go") && !strings.HasSuffix(name, "_gen.go") {
			if lines := bytes.Count(text, []byte("\n")); lines > maxLines {
				t.Errorf("%s has %d lines: one file, one subject, at most %d", name, lines, maxLines)
			}
		}
		for i, line := range bytes.Split(text, []byte("\n")) {
			if m := machinePath.Find(line); m != nil {
				t.Errorf("%s:%d: path of one machine: %s...", name, i+1, m)
			}
			if m := unfinished.Find(line); m != nil {
				t.Errorf("%s:%d: %s", name, i+1, m)
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d files checked", n)
	}
}
