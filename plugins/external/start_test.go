package external

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

// refusal accepts c and returns the error that has to come.
func refusal(t *testing.T, c Config) error {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), pluginv1.Kind_KIND_EVICTION, c, environmentOf(t, "test"))
	if err == nil {
		t.Fatal("the program was accepted")
	}
	return err
}

// Programs that cannot become plugins: each has its own message.
func TestProgramsThatAreNoPlugins(t *testing.T) {
	for mode, want := range map[string]struct {
		text    string
		refused bool
	}{
		"exit":      {`ended before it was ready (exit status 7) and wrote "last words of a program that cannot start"`, false},
		"silent":    {"not ready within 2s", false},
		"chatty":    {"is it a plugin?", false},
		"version":   {"speaks another version of the plugin protocol", true},
		"elsewhere": {"a unix socket in PLUGIN_UNIX_SOCKET_DIR is wanted", true},
		"nocert":    {"", false},
		"kind":      {"it is a plugin of kind metadata, this section wants eviction", true},
	} {
		t.Run(mode, func(t *testing.T) {
			c := faulty(t, mode, nil)
			if mode == "silent" || mode == "nocert" {
				c.StartTimeout = 2 * time.Second
			}
			err := refusal(t, c)
			if !strings.Contains(err.Error(), want.text) || errors.Is(err, ErrRefused) != want.refused {
				t.Errorf("got %v\nwant %q, refused %v", err, want.text, want.refused)
			}
		})
	}
}

func TestFilesThatAreNoPrograms(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { // whatever the umask is
			t.Fatal(err)
		}
		return path
	}
	sum := func(text string) string {
		h := sha256.Sum256([]byte(text))
		return hex.EncodeToString(h[:])
	}
	script := write("script", "#!/bin/sh\nexit 3\n", 0o755)
	open := write("open", "#!/bin/sh\nexit 3\n", 0o757)
	for name, c := range map[string]struct {
		command []string
		sums    map[string]string
		want    string
	}{
		"missing":          {[]string{filepath.Join(dir, "none")}, nil, "no such file"},
		"not in the path":  {[]string{"mooncake-no-such-program"}, nil, "not found in $PATH"},
		"not executable":   {[]string{write("plain", "x", 0o644)}, nil, "not executable"},
		"no program":       {[]string{write("text", "x", 0o755)}, nil, "exec format error"},
		"a folder":         {[]string{dir}, nil, ""},
		"wrong digest":     {[]string{script}, map[string]string{script: strings.Repeat("0", 64)}, "the config wants 0000"},
		"argument unnamed": {[]string{script, write("lib.py", "x", 0o644)}, map[string]string{script: sum("#!/bin/sh\nexit 3\n")}, "lib.py has no digest"},
		"argument changed": {[]string{script, write("lib2.py", "x", 0o644)}, map[string]string{script: sum("#!/bin/sh\nexit 3\n"), filepath.Join(dir, "lib2.py"): sum("y")}, "lib2.py: its SHA-256 is"},
		"library changed":  {[]string{script}, map[string]string{script: sum("#!/bin/sh\nexit 3\n"), write("lib3.py", "x", 0o644): sum("y")}, "lib3.py: its SHA-256 is"},
		"anyone may write": {[]string{open}, map[string]string{open: sum("#!/bin/sh\nexit 3\n")}, "everybody may write to it"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := faulty(t, "", nil)
			cfg.Command, cfg.SHA256 = c.command, c.sums
			err := refusal(t, cfg)
			if !strings.Contains(err.Error(), c.want) || !errors.Is(err, ErrRefused) {
				t.Errorf("got %v\nwant %q", err, c.want)
			}
			if name == "no program" {
				return // the kernel finds that
			}
			early := cfg.Preflight()
			if early == nil || !strings.Contains(early.Error(), c.want) || !strings.HasPrefix(early.Error(), "command: ") && !strings.HasPrefix(early.Error(), "sha256: ") {
				t.Errorf("preflight: got %v\nwant a key and %q", early, c.want)
			}
		})
	}
}

// A program with the right digest runs, by descriptor, also when its name has come to mean another file.
func TestPinnedProgram(t *testing.T) {
	c := faulty(t, "", nil)
	raw, err := os.ReadFile(c.Command[0])
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.Sum256(raw)
	c.SHA256 = map[string]string{c.Command[0]: strings.ToUpper(hex.EncodeToString(h[:]))}
	p := open(t, c).Plugin()
	defer p.Stop()
	if err := p.Run(within(t, time.Minute), nil); err != nil {
		t.Fatal(err)
	}
}

func TestPinnedArgumentIsReadByDescriptor(t *testing.T) {
	dir := t.TempDir()
	arg := filepath.Join(dir, "argument")
	if err := os.WriteFile(arg, []byte("right"), 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	digest := func(path string) string {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.Sum256(raw)
		return hex.EncodeToString(h[:])
	}
	c := DefaultConfig()
	c.Command = []string{program, "-v", arg}
	c.SHA256 = map[string]string{program: digest(program), arg: digest(arg)}
	prog, err := openProgram(&c)
	if err != nil {
		t.Fatal(err)
	}
	defer prog.close()
	if want := []string{program, "-v", "/proc/self/fd/5"}; !slices.Equal(prog.argv, want) {
		t.Errorf("arguments %q, want %q", prog.argv, want)
	}
	if err := os.Rename(arg, arg+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(arg, []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 16)
	if n, _ := prog.files[1].Read(got); string(got[:n]) != "right" {
		t.Errorf("the descriptor reads %q", got[:n])
	}
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"command: name the program": func(c *Config) { c.Command = nil },
		"sha256: \"xyz\"":           func(c *Config) { c.SHA256 = map[string]string{"f": "xyz"} },
		"env: \"\"":                 func(c *Config) { c.Env = []string{"=x"} },
		"env: PLUGIN_CLIENT_CERT":   func(c *Config) { c.Env = []string{"PLUGIN_CLIENT_CERT=x"} },
		"memory_limit: 1 bytes":     func(c *Config) { c.MemoryLimit = 1 },
		"config: 7":                 func(c *Config) { c.Config = map[string]any{"x": strings.Repeat("y", 70_000)} },
	} {
		c := DefaultConfig()
		c.Command = []string{"p"}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// The plugin's environment is what the configuration says and nothing else.
func TestEnvironment(t *testing.T) {
	t.Setenv("MOONCAKE_SECRET_OF_THE_HOST", "x")
	t.Setenv("PASSED_ON", "from the host")
	c := faulty(t, "", nil)
	c.Env = []string{"MINE=1", "PASSED_ON", "NOT_SET_ANYWHERE", "PATH=/bin"}
	p := open(t, c).Plugin()
	defer p.Stop()
	if err := p.Run(within(t, time.Minute), nil); err != nil {
		t.Fatal(err)
	}
	proc, err := p.Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("/proc/" + proc.run.ID() + "/environ")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for e := range strings.SplitSeq(strings.TrimRight(string(raw), "\x00"), "\x00") {
		name, v, _ := strings.Cut(e, "=")
		got[name] = v
	}
	if got["MINE"] != "1" || got["PASSED_ON"] != "from the host" || got["PATH"] != "/bin" {
		t.Errorf("environment %v", got)
	}
	for name := range got {
		switch {
		case slices.Contains([]string{"MINE", "PASSED_ON", "PATH", "LANG"}, name), strings.HasPrefix(name, "PLUGIN_"), strings.HasPrefix(name, "MOONCAKE_PLUGIN"):
		default:
			t.Errorf("%s is passed on", name)
		}
	}
}
