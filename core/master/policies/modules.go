package policies

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/mooncake-agent/mooncake/core/config"
)

// A policy of type guestType is a WebAssembly module in a file; these are its settings that name the file and what
// its SHA-256 must be.
const (
	guestType = "wasm"
	moduleKey = "module"
	digestKey = "sha256"
	cacheKey  = "cache_dir"
	moduleExt = ".wasm"
)

// IsFile tells that a text names a module's file, FILE.wasm[:key=value,...].
func IsFile(text string) bool {
	name, _, _ := strings.Cut(text, ":")
	return strings.HasSuffix(strings.TrimSpace(name), moduleExt)
}

// ofFile turns FILE.wasm with settings into the type wasm with the file among them. Everything else stays.
func ofFile(typ string, params config.Params) (string, config.Params, error) {
	if !strings.HasSuffix(typ, moduleExt) {
		return typ, params, nil
	}
	if _, twice := params[moduleKey]; twice {
		return "", nil, fmt.Errorf("%s: the file is named already: %s", moduleKey, typ)
	}
	params[moduleKey] = typ
	return guestType, params, nil
}

// shown is the text of a policy for people: of a module the file's name and its settings, without the digest.
func shown(text, typ string, params config.Params) string {
	file := params[moduleKey]
	if typ != guestType || file == "" {
		return text
	}
	rest := config.Params{}
	for k, v := range params {
		if k != moduleKey && k != digestKey {
			rest[k] = v
		}
	}
	if len(rest) == 0 {
		return filepath.Base(file)
	}
	return filepath.Base(file) + ":" + rest.String()
}

// ErrModule is wrapped by the errors of [Manager.Set] for a module that may not be taken from where it is.
var ErrModule = errors.New("module not taken")

// locate finds the module that a text from outside names: in the configured folder and nowhere else, so that who may
// change policies cannot make the master read or run any file there is. A plain name is one in that folder; links
// are followed and must end in it too.
func (m *Manager) locate(name string) (path string, err error) {
	m.mu.Lock()
	dir := m.dir
	m.mu.Unlock()
	if dir == "" {
		return "", fmt.Errorf("%w: %s: no folder for modules is configured; start the master with --eviction_module_dir=DIR (of a node: the key eviction.module_dir) and copy the file there", ErrModule, name)
	}
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("%w: eviction.module_dir: %w; make the folder and copy %s there", ErrModule, err, filepath.Base(name))
	}
	path = name
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	file, err := filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && inside(dir, path):
		return "", fmt.Errorf("%w: there is no file %s in eviction.module_dir %s%s; copy it there and set it again", ErrModule, filepath.Base(name), dir, listing(root))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%w: %w", ErrModule, err)
	case err != nil || !inside(root, file):
		return "", fmt.Errorf("%w: %s is not in eviction.module_dir: cp %s %s/ and then mooncake policy set %s", ErrModule, path, path, dir, filepath.Base(name))
	}
	return file, nil
}

// inside tells that a clean path is below a folder.
func inside(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != "." && filepath.IsLocal(rel)
}

// listing is what modules a folder has, for messages.
func listing(dir string) string {
	list, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	var names []string
	for _, e := range list {
		if strings.HasSuffix(e.Name(), moduleExt) {
			names = append(names, e.Name())
		}
	}
	switch n := len(names); {
	case n == 0:
		return ", which has none"
	case n > 10:
		names = append(names[:10], "...")
	}
	return ", which has " + strings.Join(names, ", ")
}
