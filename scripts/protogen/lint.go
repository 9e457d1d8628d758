package main

import (
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

var (
	lowerSnake = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	upperSnake = regexp.MustCompile(`^[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$`)
	camel      = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	words      = regexp.MustCompile(`[A-Z]+[a-z0-9]*`)
)

// lint reports where a file departs from the rules of style, which are those of buf's STANDARD set where they apply:
// names, an UNSPECIFIED zero in each enum, one request and one response for each call, and a comment on whatever a
// reader has to know.
func lint(f protoreflect.FileDescriptor) (errs []error) {
	bad := func(d protoreflect.Descriptor, format string, args ...any) {
		at := f.SourceLocations().ByDescriptor(d)
		errs = append(errs, fmt.Errorf("%s:%d: %s: %s", f.Path(), at.StartLine+1, d.FullName(), fmt.Sprintf(format, args...)))
	}
	commented := func(d protoreflect.Descriptor) bool {
		return strings.TrimSpace(f.SourceLocations().ByDescriptor(d).LeadingComments) != ""
	}
	if f.Syntax() != protoreflect.Proto3 || f.Package() != "mooncake.plugin.v1" {
		errs = append(errs, fmt.Errorf("%s: syntax proto3 and package mooncake.plugin.v1 are wanted", f.Path()))
	}
	for i := range f.Services().Len() {
		s := f.Services().Get(i)
		if !camel.MatchString(string(s.Name())) || !strings.HasSuffix(string(s.Name()), "Service") {
			bad(s, "the name of a service ends with Service")
		}
		if !commented(s) {
			bad(s, "has no comment")
		}
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			in, out := string(m.Input().Name()), string(m.Output().Name())
			if !strings.HasPrefix(in, string(m.Name())) || strings.TrimSuffix(in, "Request")+"Response" != out {
				bad(m, "takes %s and returns %s: the names begin with the call's and end with Request and Response", in, out)
			}
			if !commented(m) {
				bad(m, "has no comment")
			}
		}
	}
	for i := range f.Enums().Len() {
		e := f.Enums().Get(i)
		prefix := strings.ToUpper(strings.Join(words.FindAllString(string(e.Name()), -1), "_")) + "_"
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			if !upperSnake.MatchString(string(v.Name())) || !strings.HasPrefix(string(v.Name()), prefix) {
				bad(v, "is not %sSOMETHING", prefix)
			}
			if v.Number() == 0 && string(v.Name()) != prefix+"UNSPECIFIED" {
				bad(v, "0 is %sUNSPECIFIED", prefix)
			}
		}
	}
	var message func(m protoreflect.MessageDescriptor)
	message = func(m protoreflect.MessageDescriptor) {
		if m.IsMapEntry() {
			return
		}
		n := string(m.Name())
		if !camel.MatchString(n) {
			bad(m, "is not CamelCase")
		}
		if !commented(m) && !strings.HasSuffix(n, "Request") && !strings.HasSuffix(n, "Response") {
			bad(m, "has no comment")
		}
		if strings.HasSuffix(n, "Response") && !strings.HasPrefix(n, "Info") && !strings.HasPrefix(n, "Health") && !strings.HasPrefix(n, "Transfer") {
			if e := m.Fields().ByName("error"); e == nil || e.Kind() != protoreflect.MessageKind || e.Message().Name() != "Error" {
				bad(m, "has no field error of type Error")
			}
		}
		for j := range m.Fields().Len() {
			if d := m.Fields().Get(j); !lowerSnake.MatchString(string(d.Name())) {
				bad(d, "is not lower_snake_case")
			}
		}
		for j := range m.Messages().Len() {
			message(m.Messages().Get(j))
		}
	}
	for i := range f.Messages().Len() {
		message(f.Messages().Get(i))
	}
	return errs
}
