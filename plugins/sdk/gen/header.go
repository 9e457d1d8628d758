package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// A group is what belongs together in policy.h: an enum, or the defines before the first one.
type group struct {
	doc    string
	values []value
}

type value struct {
	name string // without MC_
	num  string // decimal
	doc  string
}

type structure struct {
	name   string // without mc_
	doc    string
	fields []value // num is the type in C
}

type header struct {
	groups  []group
	structs []structure
}

var (
	defineLine = regexp.MustCompile(`^#define MC_(\w+) (\d+|UINT32_MAX)(?:\s+/\* (.*) \*/)?$`)
	enumLine   = regexp.MustCompile(`^\tMC_(\w+) = (\d+),?\s*(?:/\* (.*) \*/)?$`)
	fieldLine  = regexp.MustCompile(`^\t(uint(?:8|16|32|64)_t) (\w+);\s*(?:/\* (.*) \*/)?$`)
	docLine    = regexp.MustCompile(`^/\* (.*) \*/$`)
	structLine = regexp.MustCompile(`^struct mc_(\w+) \{$`)
)

// elsewhere makes a comment of policy.h right in other languages.
var elsewhere = strings.NewReplacer("mc_event", "Event", "mc_config", "Config", "MC_", "")

// parse reads what guests in other languages need. A line inside an enum or a struct that it does not know is
// an error, so that nothing is left out silently.
func parse(text string) (header, error) {
	var h header
	defines := group{doc: "Sizes in bytes, and values with a meaning of their own."}
	doc, inside := "", ""
	for i, line := range strings.Split(text, "\n") {
		switch {
		case inside != "" && line == "};":
			inside = ""
		case inside == "enum":
			m := enumLine.FindStringSubmatch(line)
			if m == nil {
				return h, fmt.Errorf("policy.h:%d: not a line of an enum: %q", i+1, line)
			}
			g := &h.groups[len(h.groups)-1]
			g.values = append(g.values, value{m[1], m[2], elsewhere.Replace(m[3])})
		case inside == "struct":
			m := fieldLine.FindStringSubmatch(line)
			if m == nil {
				return h, fmt.Errorf("policy.h:%d: not a field: %q", i+1, line)
			}
			s := &h.structs[len(h.structs)-1]
			s.fields = append(s.fields, value{m[2], m[1], elsewhere.Replace(m[3])})
		case line == "enum {":
			inside = "enum"
			h.groups = append(h.groups, group{doc: doc})
		case structLine.MatchString(line):
			inside = "struct"
			h.structs = append(h.structs, structure{name: structLine.FindStringSubmatch(line)[1], doc: doc})
		case docLine.MatchString(line):
			doc = elsewhere.Replace(docLine.FindStringSubmatch(line)[1])
		default:
			if m := defineLine.FindStringSubmatch(line); m != nil {
				if m[2] == "UINT32_MAX" {
					m[2] = "4294967295"
				}
				defines.values = append(defines.values, value{m[1], m[2], elsewhere.Replace(m[3])})
			}
		}
	}
	h.groups = append([]group{defines}, h.groups...)
	if len(h.groups) < 5 || len(h.structs) < 2 || len(defines.values) == 0 {
		return h, errors.New("policy.h: no constants or no structs found in it")
	}
	return h, nil
}
