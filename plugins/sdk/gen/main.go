// Command gen writes what the guest libraries take from the ABI: the constants and record layouts of
// plugins/abi/policy.h in Go, Rust and AssemblyScript, and the copy of policy.h that comes with the C library.
//
// Run by "go generate ./plugins/sdk"; a test fails when its output is not current.
package main

import (
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	files, err := generate("../abi/policy.h")
	for name, text := range files {
		if err == nil {
			err = os.WriteFile(name, []byte(text), 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// generate returns the files by path relative to plugins/sdk.
func generate(policyH string) (map[string]string, error) {
	text, err := os.ReadFile(policyH)
	if err != nil {
		return nil, err
	}
	h, err := parse(string(text))
	if err != nil {
		return nil, err
	}
	goText, err := format.Source([]byte(goFile(h)))
	if err != nil {
		return nil, err
	}
	return map[string]string{
		filepath.FromSlash("c/policy.h"):            string(text),
		filepath.FromSlash("go/policy/abi.go"):      string(goText),
		filepath.FromSlash("rust/abi.rs"):           rustFile(h),
		filepath.FromSlash("assemblyscript/abi.ts"): assemblyFile(h),
	}, nil
}

const notice = "// Code generated from policy.h by plugins/sdk/gen. DO NOT EDIT.\n"

// camel turns KEY_HASH and key_hash into KeyHash.
func camel(s string) string {
	out := ""
	for _, w := range strings.Split(strings.ToLower(s), "_") {
		switch w {
		case "ms", "abi":
			w = strings.ToUpper(w)
		case "":
		default:
			w = strings.ToUpper(w[:1]) + w[1:]
		}
		out += w
	}
	return out
}

// comment is " // text" or nothing.
func comment(text string) string {
	if text == "" {
		return ""
	}
	return " // " + text
}

func goFile(h header) string {
	var b strings.Builder
	b.WriteString(notice + "\npackage policy\n")
	for _, g := range h.groups {
		fmt.Fprintf(&b, "\n// %s\nconst (\n", g.doc)
		for _, v := range g.values {
			fmt.Fprintf(&b, "\t%s = %s%s\n", camel(v.name), v.num, comment(v.doc))
		}
		b.WriteString(")\n")
	}
	for _, s := range h.structs {
		fmt.Fprintf(&b, "\n// %s: %s\ntype %s struct {\n", camel(s.name), s.doc, camel(s.name))
		for _, f := range s.fields {
			fmt.Fprintf(&b, "\t%s %s%s\n", camel(f.name), strings.TrimSuffix(f.num, "_t"), comment(f.doc))
		}
		b.WriteString("}\n")
	}
	return b.String()
}

func rustFile(h header) string {
	var b strings.Builder
	b.WriteString(notice)
	for _, g := range h.groups {
		fmt.Fprintf(&b, "\n// %s\n", g.doc)
		for _, v := range g.values {
			fmt.Fprintf(&b, "pub const %s: u32 = %s;%s\n", v.name, v.num, comment(v.doc))
		}
	}
	for _, s := range h.structs {
		fmt.Fprintf(&b, "\n/// %s\n#[repr(C)]\n#[derive(Clone, Copy)]\npub struct %s {\n", s.doc, camel(s.name))
		for _, f := range s.fields {
			fmt.Fprintf(&b, "    pub %s: %s,%s\n", f.name, "u"+bits(f.num), comment(f.doc))
		}
		b.WriteString("}\n")
	}
	return b.String()
}

func assemblyFile(h header) string {
	var b strings.Builder
	b.WriteString(notice)
	for _, g := range h.groups {
		fmt.Fprintf(&b, "\n// %s\n", g.doc)
		for _, v := range g.values {
			fmt.Fprintf(&b, "export const %s: u32 = %s;%s\n", v.name, v.num, comment(v.doc))
		}
	}
	for _, s := range h.structs {
		fmt.Fprintf(&b, "\n// %s\n@unmanaged\nexport class %s {\n", s.doc, camel(s.name))
		for _, f := range s.fields {
			fmt.Fprintf(&b, "  %s: u%s;%s\n", f.name, bits(f.num), comment(f.doc))
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// bits is "32" of "uint32_t".
func bits(c string) string { return strings.TrimSuffix(strings.TrimPrefix(c, "uint"), "_t") }
