package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// What is not a configuration at all: one clear line that begins with the path.
func TestFilesThatAreNoConfiguration(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, text, want string }{
		{"empty.json", "", ": is empty; write {} to get the defaults"},
		{"blank.json", " \n\t\n", ": is empty; write {} to get the defaults"},
		{"comments.yaml", "# nothing\n", ": is empty; write {} to get the defaults"},
		{"list.json", "[]", ":1:1: the top level must be an object { ... }, got a list"},
		{"null.json", "\n null", ":2:2: the top level must be an object { ... }, got null"},
		{"text.json", `"x"`, ":1:1: the top level must be an object { ... }, got text"},
		{"number.json", `7`, ":1:1: the top level must be an object { ... }, got a number"},
		{"list.yaml", "- a\n", ":1:1: the top level must be a mapping of keys, got a list"},
		{"null.yaml", "null\n", ":1:1: the top level must be a mapping of keys, got null"},
		{"text.yaml", "hello\n", ":1:1: the top level must be a mapping of keys, got a single value"},
		{"bom.json", "\xef\xbb\xbf{}", ": starts with a byte order mark; save it as UTF-8 without one"},
		{"utf16.json", "\xff\xfe{\x00}\x00", ": is UTF-16; save it as UTF-8"},
		{"latin1.json", "{\"tenant_id\": \"\xe9\"}", ":1:16: is not UTF-8 text"},
		{"nul.json", "\x00", ":1:1: unexpected '\\x00'"},
		{"cut.json", `{"a": {"b": 1`, ":1:14: the text ends too early; a closing }, ] or \" is missing"},
		{"cutstring.json", `{"a": "b`, ":1:9: the text ends too early; a closing }, ] or \" is missing"},
		{"two.json", "{}\n{}", ":2:1: unexpected '{' after the end of the object"},
		{"two.yaml", "a: 1\n---\nb: 2\n", ": has more than one YAML document"},
		{"bad.yaml", "a: b: c\n", ": is not YAML: mapping values are not allowed in this context"},
		{"tab.yaml", "a:\n\t- b\n", ":2:1: is not YAML: found character that cannot start any token"},
		{"anchor.yaml", "metadata:\n  password: *hunter2\n", ": is not YAML: unknown anchor; put text that starts with * in quotes"},
	} {
		path := filepath.Join(dir, c.name)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		checkRefused(t, path, c.want)
	}
	checkRefused(t, filepath.Join(dir, "absent.json"), ": no such file")
	checkRefused(t, dir, ": is a directory; name the file in it")
	checkRefused(t, filepath.Join(dir, "empty.json", "x"), ": cannot be read: not a directory")
	checkRefused(t, "/dev/null", ": is not a regular file")

	huge := filepath.Join(dir, "huge.json")
	if err := os.WriteFile(huge, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(huge, 100<<20); err != nil {
		t.Fatal(err)
	}
	checkRefused(t, huge, ": has 104857600 bytes; a configuration has at most 4194304")

	fifo := filepath.Join(dir, "fifo.json")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	checkRefused(t, fifo, ": is not a regular file")

	secret := filepath.Join(dir, "secret.json")
	if err := os.WriteFile(secret, []byte("{}"), 0o000); err != nil {
		t.Fatal(err)
	}
	withoutRoot(t, func() { checkRefused(t, secret, ": cannot be read: permission denied") })
}

// withoutRoot runs f on a thread that has no more rights to files than anybody, also when the tests
// run as root.
func withoutRoot(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if os.Geteuid() == 0 {
			for dir := t.TempDir(); dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
				if err := os.Chmod(dir, 0o755); err != nil {
					t.Error(err)
				}
			}
			if _, err := unix.SetfsuidRetUid(65534); err != nil {
				t.Error(err)
				return
			}
		}
		f()
	}()
	<-done
}

func checkRefused(t *testing.T, path, want string) {
	t.Helper()
	_, err := Load(Options{Schema: testSchema(), Path: path})
	if err == nil {
		t.Errorf("%s was accepted", path)
	} else if err.Error() != path+want {
		t.Errorf("got  %s\nwant %s%s", err, path, want)
	}
}

func TestJSONSyntax(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"trailing comma", "{\"a\": 1,\n}", `2:1: trailing comma after "a"`},
		{"trailing comma, one line", `{"a": 1 , }`, `1:11: trailing comma after "a"`},
		{"trailing comma inside", `{"a": {"b": 1,}, "c": 2}`, `1:15: trailing comma after "b"`},
		{"trailing comma after an object", `{"a": {"b": 1},}`, `1:16: trailing comma after "a"`},
		{"trailing comma after a list", `{"a": [{"b": 1}],}`, `1:18: trailing comma after "a"`},
		{"trailing comma in a list", `{"a": [1, 2,]}`, `1:13: trailing comma before ']'`},
		{"only a comma", `{,}`, `1:3: trailing comma before '}'`},
		{"two commas", `{"a": 1,, "b": 2}`, `1:11: two commas in a row`},
		{"missing comma", "{\"a\": 1\n \"b\": 2}", `2:2: unexpected '"'; is a comma missing before it?`},
		{"missing comma after an object", "{\"a\": {}\n \"b\": 2}", `2:2: unexpected '"'; is a comma missing before it?`},
		{"missing colon", `{"a" 1}`, `1:6: unexpected '1'`},
		{"line comment", "{\n  // note\n}", `2:3: JSON has no comments; remove it, or use a .yaml file`},
		{"comment after a value", "{\"a\": 1 /* x */}", `1:9: JSON has no comments; remove it, or use a .yaml file`},
		{"hash", "{\n  # note\n}", `2:3: JSON has no comments; remove it, or use a .yaml file`},
		{"single quotes", `{'a': 1}`, `1:2: unexpected '; JSON strings are written in double quotes`},
		{"bare word", `{"a": abc}`, `1:7: unexpected 'a'`},
		{"bare key", `{a: 1}`, `1:2: unexpected 'a'`},
		{"NaN", `{"a": NaN}`, `1:7: NaN and Infinity are not numbers that JSON knows`},
		{"Infinity", `{"a": -Infinity}`, `1:7: NaN and Infinity are not numbers that JSON knows`},
		{"octal", `{"a": 010}`, `1:8: unexpected '1'`},
		{"plus", `{"a": +1}`, `1:7: unexpected '+'`},
		{"line break in a string", "{\"a\": \"x\ny\"}", `1:7: the string that starts here is not valid: no line breaks or control characters, only known \ escapes`},
		{"escape", `{"a": "\x"}`, `1:7: the string that starts here is not valid: no line breaks or control characters, only known \ escapes`},
		{"columns are characters", "{\"é\": 1, \"ü\" 2}", `1:14: unexpected '2'`},
		{"duplicate", "{\"tenant_id\": \"a\",\n\"tenant_id\": \"b\"}", `2:1: tenant_id: given twice, first in line 1`},
		{"duplicate inside", "{\"log\": {\"level\": \"info\",\n\"level\": \"info\"}}", `2:1: log.level: given twice, first in line 1`},
		{"empty key", `{"": 1}`, `1:2: a key is empty`},
		{"control character in a key", `{"log": {"a\u001fb": 1}}`, `1:10: log: the key "a\x1fb" contains a control character`},
		{"deep", strings.Repeat(`{"a":`, 70), `1:321: ` + strings.TrimSuffix(strings.Repeat("a.", 64), ".") + `: nested deeper than 64 levels`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := refusal(t, c.text); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestYAMLForms(t *testing.T) {
	text := `
local_hostname: 10.0.0.1   # a comment
tenant_id: 2024-01-02
device_name: yes
enable_offload: True
global_segment_size: 1048576
client_http_port: "9301"
metadata: ~
transfer:
  ratio: 0.5
  labels: {a: "1"}
`
	l, msg := loadText(t, "c.yml", text)
	if msg != "" {
		t.Fatal(msg)
	}
	r := l.Root()
	got := []any{r.LocalHostname, r.TenantID, r.DeviceName, r.EnableOffload, uint64(r.GlobalSegment), r.HTTPPort, r.Metadata.P2P()}
	if d := cmp.Diff([]any{"10.0.0.1", "2024-01-02", "yes", true, uint64(1 << 20), 9301, true}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for in, want := range map[string]string{
		"transfer: {serial: 0x10}":               `1:20: transfer.serial: write the number in plain decimal, or put it in quotes if it is text`,
		"transfer: {serial: 1_000}":              `1:20: transfer.serial: write the number in plain decimal, or put it in quotes if it is text`,
		"transfer: {ratio: .inf}":                `1:19: transfer.ratio: write the number in plain decimal, or put it in quotes if it is text`,
		"transfer: {peers: [a, .nan, b]}":        `1:23: transfer.peers[1]: write the number in plain decimal, or put it in quotes if it is text`,
		"log: {level: info}\nlog: {level: warn}": `2:1: log: given twice, first in line 1`,
		"? [a, b]\n: c":                          `1:3: a key must be plain text; merge keys (<<) are not supported`,
		"tenant_id: !!binary aGk=":               `1:12: tenant_id: YAML tags are not supported; put text that starts with ! in quotes`,
		"\"a\\nb\": 1":                           `1:1: the key "a\nb" contains a control character`,
		"transfer: {serial: 9007199254740993}":   ``,
	} {
		_, msg := loadText(t, "c.yaml", in)
		if got := strings.TrimPrefix(msg, "c.yaml:"); got != want {
			t.Errorf("%s:\n got %s\nwant %s", in, got, want)
		}
	}
}

// Integers keep every digit in both formats.
func TestIntegersAreExact(t *testing.T) {
	for _, n := range []string{"9007199254740993", "9223372036854775807", "-9223372036854775808"} {
		for name, text := range map[string]string{"c.json": `{"transfer": {"serial": ` + n + `}}`, "c.yaml": "transfer:\n  serial: " + n} {
			l, msg := loadText(t, name, text)
			if msg != "" {
				t.Fatal(msg)
			}
			if v := value(t, l, "transfer.serial"); fmt.Sprint(v.Value) != n {
				t.Errorf("%s in %s became %v", n, name, v.Value)
			}
		}
	}
}

func TestPositionsOfTheWalk(t *testing.T) {
	for _, text := range []string{"{\n  \"a\": {\"b\": [true,\n   \"x\", {\"c\": null}]},\n  \"é\": 1\n}", "\n  {\"a\":\n{}}"} {
		d := parse("f.json", []byte(text))
		if len(d.problems) > 0 {
			t.Fatal(d.problems)
		}
		lines := strings.Split(text, "\n")
		for path, s := range d.at {
			rest := string([]rune(lines[s.line-1])[s.col-1:])
			last := path[strings.LastIndex(path, sep)+1:]
			if !strings.HasPrefix(last, "[") && !strings.HasPrefix(rest, `"`+last+`"`) {
				t.Errorf("%s at %d:%d is %q", dotted(path), s.line, s.col, rest)
			}
		}
		if s, ok := d.at[join("a", "b", "[1]")]; ok && (s.line != 3 || s.col != 4) {
			t.Errorf("a.b[1] at %d:%d", s.line, s.col)
		}
		var want map[string]any
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(toJSON(t, want), toJSON(t, d.values)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
}

func TestSchemaKeyForEditorsIsAccepted(t *testing.T) {
	if w := warnings(mustLoad(t, `{"$schema": "https://example.com/x.json"}`)); w != "" {
		t.Error(w)
	}
}
