package main

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/descriptorpb"
)

// breaks reports what an old program could not understand any more, on the wire or by name: calls, messages, fields,
// enums and values that are gone or have another type, number or name. Additions are fine.
func breaks(old, now *descriptorpb.FileDescriptorSet) (errs []error) {
	was, is := flatten(old), flatten(now)
	for _, name := range slices.Sorted(maps.Keys(was)) {
		before := was[name]
		after, there := is[name]
		switch {
		case !there:
			errs = append(errs, fmt.Errorf("breaking: %s is gone", name))
		case before != after:
			errs = append(errs, fmt.Errorf("breaking: %s was %s and is %s", name, before, after))
		}
	}
	return errs
}

// flatten lists everything that matters by its full name.
func flatten(set *descriptorpb.FileDescriptorSet) map[string]string {
	out := map[string]string{}
	for _, f := range set.File {
		for _, s := range f.Service {
			name := f.GetPackage() + "." + s.GetName()
			out[name] = "a service"
			for _, m := range s.Method {
				out[name+"/"+m.GetName()] = fmt.Sprintf("%s(stream %v) returns %s(stream %v)",
					m.GetInputType(), m.GetClientStreaming(), m.GetOutputType(), m.GetServerStreaming())
			}
		}
		flattenEnums(out, f.GetPackage(), f.EnumType)
		flattenMessages(out, f.GetPackage(), f.MessageType)
	}
	return out
}

func flattenMessages(out map[string]string, scope string, messages []*descriptorpb.DescriptorProto) {
	for _, m := range messages {
		name := scope + "." + m.GetName()
		out[name] = "a message"
		for _, f := range m.Field {
			oneof := ""
			if f.OneofIndex != nil {
				oneof = " in oneof " + m.OneofDecl[f.GetOneofIndex()].GetName()
			}
			out[name+"#"+f.GetName()] = fmt.Sprintf("field %d, %s %s %s%s", f.GetNumber(), f.GetLabel(), f.GetType(), f.GetTypeName(), oneof)
		}
		flattenEnums(out, name, m.EnumType)
		flattenMessages(out, name, m.NestedType)
	}
}

func flattenEnums(out map[string]string, scope string, enums []*descriptorpb.EnumDescriptorProto) {
	for _, e := range enums {
		name := scope + "." + e.GetName()
		out[name] = "an enum"
		for _, v := range e.Value {
			out[name+"#"+v.GetName()] = fmt.Sprintf("value %d", v.GetNumber())
		}
	}
}
