package abi

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/eviction"
	"github.com/mooncake-agent/mooncake/internal/testenv"
)

// numbers are the names of policy.h with their values on this side.
var numbers = map[string]int64{
	"MC_ABI_MINOR": Minor, "MC_RECORD_SIZE": RecordSize, "MC_HEADER_SIZE": HeaderSize, "MC_MAX_STATE": MaxState,
	"MC_MAX_CANDIDATES": MaxCandidates, "MC_ANY_TENANT": int64(eviction.AnyTenant), "MC_ANY_SEGMENT": 0,

	"MC_INSERT": int64(eviction.Insert), "MC_ACCESS": int64(eviction.Access), "MC_PROBE": int64(eviction.Probe),
	"MC_REMOVE": int64(eviction.Remove), "MC_REJECT": int64(eviction.Reject), "MC_PIN": int64(eviction.Pin),
	"MC_UNPIN": int64(eviction.Unpin), "MC_GHOST": int64(eviction.Ghost), "MC_TICK": int64(eviction.Tick),
	"MC_RESTORE": int64(eviction.Restore), "MC_RESIZE": int64(eviction.Resize), "MC_CANDIDATE": int64(eviction.Candidate),
	"MC_MOVED": int64(eviction.Moved),

	"MC_FLAG_SOFT_PIN": int64(eviction.FlagSoftPin), "MC_FLAG_HARD_PIN": int64(eviction.FlagHardPin),
	"MC_FLAG_LEASED": int64(eviction.FlagLeased), "MC_FLAG_PARTIAL": int64(eviction.FlagPartial),
	"MC_FLAG_GROUPED": int64(eviction.FlagGrouped), "MC_FLAG_TAIL_FIRST": int64(eviction.FlagTailFirst),

	"MC_REMOVED": int64(eviction.CodeRemoved), "MC_EVICTED": int64(eviction.CodeEvicted), "MC_EXPIRED": int64(eviction.CodeExpired),
	"MC_SEGMENT_LOST": int64(eviction.CodeSegmentLost), "MC_REPLACED": int64(eviction.CodeReplaced),

	"MC_REJECT_LEASED": int64(eviction.CodeLeased), "MC_REJECT_PINNED": int64(eviction.CodePinned),
	"MC_REJECT_BUSY": int64(eviction.CodeBusy), "MC_REJECT_UNKNOWN": int64(eviction.CodeUnknown),
	"MC_REJECT_DUPLICATE": int64(eviction.CodeDuplicate), "MC_REJECT_OTHER_TENANT": int64(eviction.CodeOtherTenant),
	"MC_REJECT_USED": int64(eviction.CodeUsed), "MC_REJECT_NOT_THERE": int64(eviction.CodeNotThere),

	"MC_BUFFER_CONFIG": int64(BufferConfig), "MC_BUFFER_EVENTS": int64(BufferEvents), "MC_BUFFER_VICTIMS": int64(BufferVictims),
	"MC_BUFFER_STATE": int64(BufferState), "MC_BUFFER_SCORES": int64(BufferScores), "MC_BUFFER_ADMIT": int64(BufferAdmit),

	"MC_NEED_SOFT_PINS": int64(eviction.NeedSoftPins), "MC_NEED_EMERGENCY": int64(eviction.NeedEmergency),

	"MC_LOAD_TAKEN": int64(LoadTaken), "MC_LOAD_NOT_MINE": int64(LoadNotMine),

	"MC_LOG_DEBUG": int64(LogDebug), "MC_LOG_INFO": int64(LogInfo), "MC_LOG_WARN": int64(LogWarn), "MC_LOG_ERROR": int64(LogError),
}

// functions are the exports and the import that policy.h declares, with their types in C.
var functions = map[string]string{
	Marker:      "int32_t (*)(void)",
	FuncBuffer:  "void *(*)(int32_t, int32_t)",
	FuncInit:    "int32_t (*)(void)",
	FuncEvents:  "int32_t (*)(int32_t)",
	FuncVictims: "int32_t (*)(int64_t, int32_t, int32_t, int32_t, int32_t)",
	FuncScore:   "int32_t (*)(int32_t)",
	FuncAdmit:   "int32_t (*)(int32_t)",
	FuncSave:    "int32_t (*)(void)",
	FuncLoad:    "int32_t (*)(int32_t)",
	FuncStats:   "int32_t (*)(void)",
}

func header(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("policy.h")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Everything that the header declares is known here, so that the assertions below miss nothing.
func TestHeaderDeclaresWhatIsChecked(t *testing.T) {
	text := header(t)
	var found []string
	for _, m := range regexp.MustCompile(`(?m)^\s(MC_[A-Z0-9_]+) = |^#define (MC_[A-Z0-9_]+) [0-9U]`).FindAllStringSubmatch(text, -1) {
		found = append(found, m[1]+m[2])
	}
	compareNames(t, "number", found, slices.Collect(keys(numbers)))

	found = nil
	for _, m := range regexp.MustCompile(`(?m)^MC_EXPORT\(([a-z0-9_]+)\) `).FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	compareNames(t, "export", found, slices.Collect(keys(functions)))

	for _, s := range []struct {
		name   string
		fields []field
	}{{"mc_event", recordFields}, {"mc_config", headerFields}} {
		body := regexp.MustCompile(`(?s)struct ` + s.name + ` \{(.*?)\n\};`).FindStringSubmatch(text)
		if body == nil {
			t.Fatalf("policy.h has no struct %s", s.name)
		}
		var names, want []string
		for _, m := range regexp.MustCompile(`(?m)^\suint(?:8|16|32|64)_t (\w+);`).FindAllStringSubmatch(body[1], -1) {
			names = append(names, m[1])
		}
		for _, f := range s.fields {
			want = append(want, f.c)
		}
		compareNames(t, "field of "+s.name, names, want)
	}
}

func keys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func compareNames(t *testing.T, what string, found, want []string) {
	t.Helper()
	for _, n := range found {
		if !slices.Contains(want, n) {
			t.Errorf("policy.h declares the %s %s, which no Go constant in the test stands for", what, n)
		}
	}
	for _, n := range want {
		if !slices.Contains(found, n) {
			t.Errorf("policy.h declares no %s %s", what, n)
		}
	}
}

// assertions is a C file that compiles only if policy.h agrees with this package.
func assertions() string {
	var b strings.Builder
	b.WriteString("#include \"policy.h\"\n")
	for _, s := range []struct {
		name   string
		size   int
		fields []field
	}{{"struct mc_event", RecordSize, recordFields}, {"struct mc_config", HeaderSize, headerFields}} {
		fmt.Fprintf(&b, "MC_STATIC_ASSERT(sizeof(%s) == %d, \"size of %[1]s\");\n", s.name, s.size)
		for _, f := range s.fields {
			fmt.Fprintf(&b, "MC_STATIC_ASSERT(offsetof(%s, %s) == %d, \"offset of %[2]s\");\n", s.name, f.c, f.off)
			fmt.Fprintf(&b, "MC_STATIC_ASSERT(sizeof(((%s *)0)->%s) == %d, \"size of %[2]s\");\n", s.name, f.c, f.size)
		}
	}
	for _, n := range slices.Sorted(keys(numbers)) {
		fmt.Fprintf(&b, "MC_STATIC_ASSERT((int64_t)%s == %d, \"%[1]s\");\n", n, numbers[n])
	}
	for i, n := range slices.Sorted(keys(functions)) {
		decl := strings.Replace(functions[n], "(*)", fmt.Sprintf("(*check%d)", i), 1)
		fmt.Fprintf(&b, "extern %s;\n%s = %s;\n", decl, decl, n)
	}
	b.WriteString("void (*check_log)(int32_t, const char *, int32_t) = mc_log;\n")
	return b.String()
}

func TestHeaderAgreesWithTheEncoder(t *testing.T) {
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	source := assertions()
	compiled := false
	for _, c := range []struct {
		name string
		args []string
	}{
		{"clang-22", []string{"--target=wasm32-unknown-unknown", "-ffreestanding", "-std=c11"}},
		{"gcc", []string{"-std=c11", "-pedantic"}},
		{"gcc", []string{"-std=c++11", "-xc++"}},
	} {
		path, err := exec.LookPath(c.name)
		if err != nil {
			continue
		}
		if c.args[0] == "-std=c++11" && exec.Command(path, "-xc++", "-fsyntax-only", os.DevNull).Run() != nil {
			continue // gcc without g++
		}
		compiled = true
		t.Run(strings.Join(append([]string{c.name}, c.args...), " "), func(t *testing.T) {
			if out, err := compile(path, here, c.args, source); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			// The same compiler refuses a wrong number, so a pass means something.
			wrong := strings.Replace(source, "MC_EVICTED == 2", "MC_EVICTED == 3", 1)
			if out, err := compile(path, here, c.args, wrong); err == nil || !strings.Contains(out, "MC_EVICTED") {
				t.Errorf("a wrong number compiles: %v\n%s", err, out)
			}
		})
	}
	if !compiled {
		testenv.MustNotSkip(t, "neither clang-22 nor gcc is installed: run scripts/setup.sh")
	}
}

func compile(compiler, include string, args []string, source string) (string, error) {
	args = append(slices.Clone(args), "-I", include, "-Wall", "-Wextra", "-Werror", "-fsyntax-only")
	if !slices.Contains(args, "-xc++") {
		args = append(args, "-xc")
	}
	cmd := exec.Command(compiler, append(args, "-")...)
	cmd.Stdin = strings.NewReader(source)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}
