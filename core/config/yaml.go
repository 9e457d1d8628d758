package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// yamlLine finds the line in the library's messages ("yaml: line 3: ...").
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)

// jsonNumber is the number syntax that both file formats share here: plain decimal.
var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

func (d *document) parseYAML() {
	var root, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(d.data))
	switch err := decodeYAML(dec, &root); {
	case errors.Is(err, io.EOF):
		d.fatal = true
		d.fail("is empty; write {} to get the defaults")
		return
	case err != nil:
		d.yamlSyntax(err)
		return
	}
	if err := decodeYAML(dec, &more); !errors.Is(err, io.EOF) {
		d.fatal = true
		d.fail("has more than one YAML document")
		return
	}
	top := root.Content[0]
	if top.Kind != yaml.MappingNode {
		d.fatal = true
		d.yamlProblem(top, "", "the top level must be a mapping of keys, got %s", yamlKind(top))
		return
	}
	d.values = d.yamlMapping(top, "", 1)
}

func (d *document) yamlSyntax(err error) {
	d.fatal = true
	p := Problem{File: d.file, Msg: "is not YAML: " + err.Error()}
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		p.Msg = "is not YAML: " + m[2]
		if p.Line, _ = strconv.Atoi(m[1]); p.Line > 0 {
			p.Col = 1
		}
	}
	if strings.Contains(p.Msg, "unknown anchor") { // would show the value, which may be a password
		p.Msg = "is not YAML: unknown anchor; put text that starts with * in quotes"
	}
	d.problems = append(d.problems, p)
}

// decodeYAML keeps a defect of the library on hostile input from ending the process.
func decodeYAML(dec *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("yaml: %v", p)
		}
	}()
	return dec.Decode(n)
}

func yamlKind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.ShortTag() == "!!null":
		return "null"
	default:
		return "a single value"
	}
}

func (d *document) yamlSource(n *yaml.Node) source {
	return source{layer: fromFile, name: d.file, line: n.Line, col: n.Column}
}

func (d *document) yamlProblem(n *yaml.Node, path, format string, args ...any) {
	d.problems = append(d.problems, d.yamlSource(n).problem(path, fmt.Sprintf(format, args...)))
}

// yamlValue answers false if the value cannot be used; the reason is then among the problems. Messages
// do not show the value: it may be a password.
func (d *document) yamlValue(n *yaml.Node, path string, depth int) (any, bool) {
	if d.tooMany(d.yamlSource(n)) {
		return nil, false
	}
	if depth > maxDepth {
		d.yamlProblem(n, path, "nested deeper than %d levels", maxDepth)
		return nil, false
	}
	switch n.Kind {
	case yaml.MappingNode:
		return d.yamlMapping(n, path, depth), true
	case yaml.SequenceNode:
		list := []any{}
		for _, c := range n.Content {
			elem := join(path, fmt.Sprintf("[%d]", len(list)))
			d.at[elem] = d.yamlSource(c)
			if v, ok := d.yamlValue(c, elem, depth+1); ok {
				list = append(list, v)
			}
		}
		return list, true
	case yaml.ScalarNode:
		return d.yamlScalar(n, path)
	default: // an alias could expand to any amount of text
		d.yamlProblem(n, path, "YAML anchors and aliases are not supported; write the value out, or put text that starts with * in quotes")
		return nil, false
	}
}

func (d *document) yamlMapping(n *yaml.Node, path string, depth int) map[string]any {
	out := map[string]any{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if k.Kind != yaml.ScalarNode || k.ShortTag() == "!!merge" {
			d.yamlProblem(k, path, "a key must be plain text; merge keys (<<) are not supported")
			continue
		}
		if why := badKey(k.Value); why != "" {
			d.yamlProblem(k, path, "%s", why)
			continue
		}
		at := join(path, k.Value)
		if first, dup := d.at[at]; dup {
			d.yamlProblem(k, at, "given twice, first in line %d", first.line)
			continue
		}
		d.at[at] = d.yamlSource(k)
		if v, ok := d.yamlValue(n.Content[i+1], at, depth+1); ok {
			out[k.Value] = v
		}
	}
	return out
}

func (d *document) yamlScalar(n *yaml.Node, path string) (any, bool) {
	switch n.ShortTag() {
	case "!!null":
		return nil, true
	case "!!bool":
		return strings.EqualFold(n.Value, "true"), true
	case "!!int", "!!float":
		if jsonNumber.MatchString(n.Value) {
			return json.Number(n.Value), true
		}
		d.yamlProblem(n, path, "write the number in plain decimal, or put it in quotes if it is text")
		return nil, false
	case "!!str", "!!timestamp":
		return n.Value, true
	default:
		d.yamlProblem(n, path, "YAML tags are not supported; put text that starts with ! in quotes")
		return nil, false
	}
}
