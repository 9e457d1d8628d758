package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Report is the machine-readable result of "config check".
type Report struct {
	OK       bool      `json:"ok"`
	File     string    `json:"file,omitempty"`
	Errors   []Problem `json:"errors"`
	Warnings []Problem `json:"warnings"`
}

// WriteCheck writes the result of Load: one line a problem, warnings first, then a verdict.
func WriteCheck(w io.Writer, l *Loaded, err error, asJSON bool) error {
	r := Report{OK: err == nil, Errors: []Problem{}, Warnings: []Problem{}}
	if l != nil {
		r.File = l.path
		r.Warnings = append(r.Warnings, l.warnings...)
	}
	if es := (*Errors)(nil); errors.As(err, &es) {
		r.Errors = es.Problems
		r.Warnings = append(r.Warnings, es.Warnings...)
	} else if err != nil {
		r.Errors = []Problem{{Msg: err.Error()}}
	}
	if asJSON {
		return writeJSON(w, r)
	}
	var b strings.Builder
	for _, p := range r.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", p)
	}
	for _, p := range r.Errors {
		fmt.Fprintf(&b, "error: %s\n", p)
	}
	switch {
	case !r.OK:
		fmt.Fprintf(&b, "%d error(s); the configuration cannot be used\n", len(r.Errors))
	case r.File == "":
		b.WriteString("no file; the defaults are fine\n")
	default:
		fmt.Fprintf(&b, "%s is fine\n", r.File)
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// WriteEffective writes every key with its value and source, as "config show" does: text in columns,
// or a JSON list of [Value].
func WriteEffective(w io.Writer, l *Loaded, asJSON bool) error {
	if asJSON {
		return writeJSON(w, l.values)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, v := range l.values {
		fmt.Fprintf(t, "%s\t= %s\t# %s\n", v.Key, compact(v.Value), v.Source)
	}
	return t.Flush()
}

// WriteChanges writes the result of [Diff] for people.
func WriteChanges(w io.Writer, live, restart []Change) error {
	var b strings.Builder
	for _, c := range live {
		fmt.Fprintf(&b, "changed: %s: %s -> %s\n", c.Key, compact(c.Old), compact(c.New))
	}
	for _, c := range restart {
		fmt.Fprintf(&b, "needs a restart: %s: %s -> %s\n", c.Key, compact(c.Old), compact(c.New))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteSchema writes every key the binary knows. format is "text", "json" (a list of [KeyInfo]) or
// "markdown" (one table a section).
func WriteSchema(w io.Writer, s Schema, format string) error {
	keys := s.Keys()
	switch format {
	case "json":
		return writeJSON(w, keys)
	case "markdown":
		return s.markdown(w, keys)
	case "text", "":
	default:
		return fmt.Errorf("unknown format %q; known: text, json, markdown", format)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tTYPE\tDEFAULT\tCHANGES\tDESCRIPTION")
	for _, k := range keys {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", k.Key, k.Type, compact(k.Default), k.changes(), k.describe())
	}
	return t.Flush()
}

func (s Schema) markdown(w io.Writer, keys []KeyInfo) error {
	var b strings.Builder
	last := "\x00"
	for _, k := range keys {
		if title := k.title(); title != last {
			last = title
			fmt.Fprintf(&b, "\n## %s\n\n", title)
			if doc := s.doc(k); doc != "" {
				fmt.Fprintf(&b, "%s\n\n", doc)
			}
			b.WriteString("| key | type | default | changes | meaning |\n|---|---|---|---|---|\n")
		}
		cell := func(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
		fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s | %s |\n", k.Key, k.Type, cell(compact(k.Default)), k.changes(), cell(k.describe()))
	}
	_, err := io.WriteString(w, strings.TrimPrefix(b.String(), "\n"))
	return err
}

func (k KeyInfo) title() string {
	switch {
	case k.Section == "":
		return "Flat keys"
	case k.Part == "":
		return k.Section
	default:
		return k.Section + ": " + k.Part
	}
}

func (s *Schema) doc(k KeyInfo) string {
	if sec := s.section(k.Section); sec != nil {
		return sec.Doc
	}
	if kind := s.kind(k.Section); kind != nil {
		if part := kind.part(k.Part); part != nil {
			return part.Doc
		}
	}
	return ""
}

func (k KeyInfo) changes() string {
	if k.Live {
		return "live"
	}
	return "restart"
}

func (k KeyInfo) describe() string {
	s := []string{k.Doc}
	if k.Range != "" {
		s = append(s, k.Range)
	}
	if len(k.Enum) > 0 {
		s = append(s, strings.Join(k.Enum, "|"))
	}
	if len(k.Aliases) > 0 {
		s = append(s, "also: "+strings.Join(k.Aliases, ", "))
	}
	if len(k.Env) > 0 {
		s = append(s, "env: "+strings.Join(k.Env, ", "))
	}
	if k.Note != "" {
		s = append(s, k.Note)
	}
	return strings.Join(s, "; ")
}

// compact is a value as JSON on one line.
func compact(v any) string {
	b, err := marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return b
}

func marshal(v any) (string, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
