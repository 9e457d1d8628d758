package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

const protocol = "../../plugins/proto/v1"

// What is committed was generated from the committed protocol files, and they keep the rules.
func TestCommittedFilesAreUpToDate(t *testing.T) {
	if err := run(t.Context(), protocol, true, false); err != nil {
		t.Fatal(err)
	}
}

// edited compiles a copy of the protocol with a change.
func edited(t *testing.T, file, old, new string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	paths, err := filepath.Glob(filepath.Join(protocol, "*.proto"))
	if err != nil || len(paths) < 3 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	for _, p := range paths {
		raw, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		text := string(raw)
		if filepath.Base(p) == file {
			if !strings.Contains(text, old) {
				t.Fatalf("%s does not contain %q", file, old)
			}
			text = strings.Replace(text, old, new, 1)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(p)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestBreakingChangesAreFound(t *testing.T) {
	old, err := committed(filepath.Join(protocol, descriptorFile))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ file, old, new, want string }{
		"field renumbered":   {"base.proto", "string version = 3;", "string version = 33;", "InfoResponse#version was field 3"},
		"field retyped":      {"metadata.proto", "bytes prefix = 1;", "string prefix = 1;", "ListRequest#prefix was"},
		"field renamed":      {"base.proto", "uint64 grace_ms = 1;", "uint64 patience_ms = 1;", "ShutdownRequest#grace_ms is gone"},
		"call gone":          {"eviction.proto", "rpc Victims(VictimsRequest) returns (VictimsResponse);", "", "EvictionService/Victims is gone"},
		"unary made stream":  {"eviction.proto", "rpc Apply(ApplyRequest)", "rpc Apply(stream ApplyRequest)", "EvictionService/Apply was"},
		"code renumbered":    {"base.proto", "ERROR_CODE_CONFLICT = 21;", "ERROR_CODE_CONFLICT = 29;", "ERROR_CODE_CONFLICT was value 21"},
		"field in a message": {"base.proto", "uint64 grace_ms = 1;", "uint64 grace_ms = 1;\n  uint64 more = 2;", ""},
		"value in an enum":   {"base.proto", "ERROR_CODE_CONFLICT = 21;", "ERROR_CODE_CONFLICT = 21;\n  ERROR_CODE_MORE = 99;", ""},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := compile(context.Background(), edited(t, c.file, c.old, c.new))
			if err != nil {
				t.Fatal(err)
			}
			got := errors.Join(breaks(old, descriptorSet(files))...)
			if c.want == "" {
				if got != nil {
					t.Fatalf("an addition is called breaking: %v", got)
				}
				return
			}
			if got == nil || !strings.Contains(got.Error(), c.want) {
				t.Fatalf("got %v\nwant %s", got, c.want)
			}
		})
	}
	if got := breaks(old, proto.CloneOf(old)); got != nil {
		t.Fatalf("the same protocol is called breaking: %v", got)
	}
}

func TestLint(t *testing.T) {
	for name, c := range map[string]struct{ file, old, new, want string }{
		"field name":     {"base.proto", "grace_ms", "graceMs", "not lower_snake_case"},
		"enum zero":      {"base.proto", "KIND_UNSPECIFIED = 0", "KIND_NONE = 0", "0 is KIND_UNSPECIFIED"},
		"enum value":     {"base.proto", "KIND_METADATA = 2", "METADATA = 2", "is not KIND_SOMETHING"},
		"service name":   {"eviction.proto", "service EvictionService", "service Eviction", "ends with Service"},
		"no comment":     {"eviction.proto", "  // Start makes the instance.\n", "", "has no comment"},
		"request name":   {"eviction.proto", "rpc Apply(ApplyRequest)", "rpc Tell(ApplyRequest)", "names begin with the call's"},
		"no error field": {"eviction.proto", "message LoadResponse {\n  Error error = 1;", "message LoadResponse {", "has no field error"},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := compile(context.Background(), edited(t, c.file, c.old, c.new))
			if err != nil {
				t.Fatal(err)
			}
			var errs []error
			for _, f := range files {
				errs = append(errs, lint(f)...)
			}
			if got := errors.Join(errs...); got == nil || !strings.Contains(got.Error(), c.want) {
				t.Fatalf("got %v\nwant %s", got, c.want)
			}
		})
	}
}

// A check with a file that is not what would be generated fails and names it.
func TestCheckFindsOldFiles(t *testing.T) {
	dir := edited(t, "base.proto", "", "")
	if err := run(t.Context(), dir, false, false); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), dir, true, false); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"base.pb.go", "gone.pb.go"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("package pluginv1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := run(t.Context(), dir, true, false)
	if err == nil || !strings.Contains(err.Error(), "base.pb.go") || !strings.Contains(err.Error(), "gone.pb.go") {
		t.Fatalf("got %v", err)
	}
	if err := run(t.Context(), dir, false, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "gone.pb.go")); !os.IsNotExist(err) {
		t.Fatal("a file that is not generated any more is still there")
	}
}
