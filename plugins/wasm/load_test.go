package wasm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/eviction"
)

// What a module is refused for, by name.
func TestRefusedModules(t *testing.T) {
	for name, want := range map[string]string{
		"import_function":  "imports the function env.open_file, which policies do not get; there is env.log",
		"import_wasi":      "imports the function wasi_snapshot_preview1.fork",
		"import_signature": "imports env.log with another signature than (i32 i32 i32) -> ()",
		"import_memory":    "imports the memory env.memory",
		"import_global":    "imports the global env.clock",
		"grab_table":       "table.grow",
		"large_table":      "table",
		"fuel_global":      "global",
		"fuel_export":      "mooncake_fuel",
		"no_marker":        "does not export mooncake_eviction_v1: it is no eviction policy",
		"no_victims":       "exports only one of policy_events and policy_victims",
		"no_memory_export": `does not export its memory as "memory"`,
		"wrong_type":       "exports policy_events as (i32) -> (), the ABI says (i32) -> (i32)",
	} {
		t.Run(name, func(t *testing.T) { refused(t, config(t, name), want) })
	}
}

func refused(t *testing.T, c Config, want string) {
	t.Helper()
	f, err := Open(context.Background(), c, nil)
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), c.Module) {
		t.Fatalf("Open = %v, want a refusal that says %q and names the file", err, want)
	}
	if f != nil {
		t.Error("Open returned a factory beside its error")
	}
	if strings.ContainsAny(err.Error(), "\n\x1b") {
		t.Errorf("more than one line: %q", err)
	}
}

// file writes a module for a test and returns a config for it.
func file(t *testing.T, b []byte) Config {
	t.Helper()
	c := config(t, "lru")
	c.Module = filepath.Join(t.TempDir(), "p.wasm")
	if err := os.WriteFile(c.Module, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

func lruBytes(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "lru.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// section encodes one section of a module.
func section(id byte, content []byte) []byte {
	return append(append([]byte{id}, leb(len(content))...), content...)
}

func leb(n int) (out []byte) {
	for n >= 0x80 {
		out = append(out, byte(n)|0x80)
		n >>= 7
	}
	return append(out, byte(n))
}

// oneFunction is a module with a single function of that code.
func oneFunction(body []byte) []byte {
	m := []byte("\x00asm\x01\x00\x00\x00")
	m = append(m, section(1, []byte{1, 0x60, 0, 0})...)
	m = append(m, section(3, []byte{1, 0})...)
	body = append(append([]byte{0}, body...), 0x0b)
	return append(m, section(10, append(append([]byte{1}, leb(len(body))...), body...))...)
}

func TestRefusedSizes(t *testing.T) {
	t.Run("9 MiB", func(t *testing.T) {
		custom := append([]byte{4, 'p', 'a', 'd', 's'}, make([]byte, 9<<20)...)
		refused(t, file(t, append(lruBytes(t), section(0, custom)...)), "larger than 8388608 bytes (max_module_bytes)")
	})
	t.Run("giant function", func(t *testing.T) {
		refused(t, file(t, oneFunction(bytes.Repeat([]byte{1}, 300<<10))), "function 0")
	})
	t.Run("not a module", func(t *testing.T) { refused(t, file(t, []byte("#!/bin/sh\n")), "module") })
	t.Run("cut off", func(t *testing.T) { refused(t, file(t, lruBytes(t)[:1000]), "module") })
	t.Run("empty", func(t *testing.T) { refused(t, file(t, nil), "module") })
	t.Run("invalid code", func(t *testing.T) { refused(t, file(t, oneFunction([]byte{0x6a})), "not a valid module") })
	t.Run("a folder", func(t *testing.T) {
		c := config(t, "lru")
		c.Module = t.TempDir()
		if _, err := Open(context.Background(), c, nil); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Error(err)
		}
	})
	t.Run("no file", func(t *testing.T) {
		c := config(t, "there_is_none")
		if _, err := Open(context.Background(), c, nil); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	})
}

func TestDigestPin(t *testing.T) {
	c := config(t, "lru")
	sum := sha256.Sum256(lruBytes(t))
	c.SHA256 = strings.ToUpper(hex.EncodeToString(sum[:]))
	if got := open(t, c, nil).Info().SHA256; got != hex.EncodeToString(sum[:]) {
		t.Errorf("digest %s", got)
	}
	c.SHA256 = strings.Repeat("0", 64)
	refused(t, c, "not 0000")
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no module":    {func(c *Config) { c.Module = "" }, "module: name the .wasm file"},
		"short digest": {func(c *Config) { c.SHA256 = "abc" }, "sha256: "},
		"no page":      {func(c *Config) { c.MemoryLimit = 100 }, "memory_limit: "},
		"params":       {func(c *Config) { c.Params = map[string]any{"x": strings.Repeat("x", maxParams)} }, "params: "},
	} {
		cfg := DefaultConfig()
		cfg.Module = "x"
		c.change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := eviction.Kind.Check("wasm", module.NoConfig{}); err == nil {
		t.Error("an empty section names no module and passes")
	}
}

type configured struct{ c Config }

func (s configured) Decode(into any) error { *into.(*Config) = s.c; return nil }

func TestRegistered(t *testing.T) {
	c := config(t, "abilities")
	c.Params = map[string]any{"a": 1}
	c.Reserve, c.Admission = 7, "on"
	f, err := eviction.Kind.Build(context.Background(), "wasm", module.Env{Name: "*"}, configured{c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.(*Factory).Close() })
	if s := f.(eviction.DomainConfig).DomainSettings(); s != (eviction.Settings{Reserve: 7, Admission: true, Aside: true}) {
		t.Errorf("settings %+v", s)
	}
	p := instanceOf(t, f, spec(10))
	if raw, err := p.(eviction.Statser).Stats(); err != nil || string(raw) != `{"even":0,"odd":0,"params":7}` {
		t.Errorf("stats %s, %v", raw, err)
	}
	i := f.(*Factory).Info()
	if i.Score || !i.Admit || !i.State || !i.Stats || len(i.Imports) != 0 || len(i.Exports) != 9 || i.CodeBytes == 0 {
		t.Errorf("%+v", i)
	}
	c.Module = "no.wasm"
	if f, err := eviction.Kind.Build(context.Background(), "wasm", module.Env{Name: "*"}, configured{c}); err == nil || f != nil {
		t.Errorf("Build of nothing = %v, %v", f, err)
	}
}

func TestCompiledOnce(t *testing.T) {
	c := file(t, lruBytes(t))
	c.CacheDir = filepath.Join(t.TempDir(), "code")
	if i := open(t, c, nil).Info(); !i.Compiled {
		t.Error("the first Open found machine code")
	}
	if i := open(t, c, nil).Info(); i.Compiled {
		t.Error("the second Open compiled again")
	}
	st, err := os.Stat(c.CacheDir)
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v, %v", st.Mode(), err)
	}
	// Damage is found, by size or by wazero's checksum, and the entry made anew.
	for name, damage := range map[string]func(path string) error{
		"cut off": func(p string) error { return os.Truncate(p, 100) },
		"flipped": func(p string) error {
			b, err := os.ReadFile(p)
			if err == nil {
				b[len(b)/2] ^= 0xff
				err = os.WriteFile(p, b, 0o600)
			}
			return err
		},
		"gone": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			n := 0
			err := filepath.WalkDir(c.CacheDir, func(p string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() || d.Name() == entryFile {
					return err
				}
				n++
				return damage(p)
			})
			if err != nil || n != 1 {
				t.Fatalf("%d files, %v", n, err)
			}
			if i := open(t, c, nil).Info(); !i.Compiled {
				t.Error("damaged code was used")
			}
			if i := open(t, c, nil).Info(); i.Compiled {
				t.Error("the entry is still damaged")
			}
		})
	}
	left, err := filepath.Glob(filepath.Join(c.CacheDir, partPrefix+"*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestCacheFolder(t *testing.T) {
	c := config(t, "lru")
	bad := func(name, dir, want string) {
		t.Helper()
		c.CacheDir = dir
		if _, err := Open(context.Background(), c, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o750); err != nil {
		t.Fatal(err)
	}
	bad("others may enter", open, "chmod 700")
	link := filepath.Join(dir, "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	bad("a link", link, "not a folder")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bad("a file", file, "cache_dir")
	foreign := owned{uid: uint32(os.Geteuid()) + 1, mode: fs.ModeDir | 0o700}
	if err := checkFolder("x", foreign); err == nil || !strings.Contains(err.Error(), "belongs to user") {
		t.Errorf("a folder of somebody else: %v", err)
	}
	if err := checkFolder("x", owned{uid: uint32(os.Geteuid()), mode: fs.ModeDir | 0o700}); err != nil {
		t.Errorf("one's own folder: %v", err)
	}
}

// owned is the FileInfo of a folder.
type owned struct {
	uid  uint32
	mode fs.FileMode
}

func (o owned) Name() string       { return "x" }
func (o owned) Size() int64        { return 0 }
func (o owned) Mode() fs.FileMode  { return o.mode }
func (o owned) ModTime() time.Time { return time.Time{} }
func (o owned) IsDir() bool        { return o.mode.IsDir() }
func (o owned) Sys() any           { return &syscall.Stat_t{Uid: o.uid} }

// The cache keeps what was used last.
func TestCacheIsBounded(t *testing.T) {
	c, err := openCache(filepath.Join(t.TempDir(), "code"))
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-24 * time.Hour)
	for i := range 2 * keepEntries {
		dir := c.path(strings.Repeat("x", i+1))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		at := old.Add(time.Duration(i) * time.Minute)
		if err := os.Chtimes(dir, at, at); err != nil {
			t.Fatal(err)
		}
	}
	stale, err := c.begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(stale, old, old); err != nil {
		t.Fatal(err)
	}
	fresh, err := c.begin()
	if err != nil {
		t.Fatal(err)
	}
	part, err := c.begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(part, "code"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.finish(part, "new", entry{Metered: "m"}); err != nil {
		t.Fatal(err)
	}
	if e, ok := c.find("new"); !ok || e.CodeBytes != 1 {
		t.Errorf("the new entry: %+v, %v", e, ok)
	}
	for path, want := range map[string]bool{stale: false, fresh: true, c.path("x"): false, c.path(strings.Repeat("x", 2*keepEntries)): true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", filepath.Base(path), err == nil, want)
		}
	}
	list, err := os.ReadDir(c.dir)
	if err != nil || len(list) != keepEntries+1 {
		t.Errorf("%d folders, want %d entries and an unfinished one; %v", len(list), keepEntries, err)
	}
}
