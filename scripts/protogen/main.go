// Command protogen compiles the plugin protocol, plugins/proto/v1, and writes the Go code and the descriptor set.
// It refuses protocol files that break the rules of style (lint.go) or that would break plugins which were built
// with the committed descriptor set (breaking.go). With -check it writes nothing and fails if anything would change.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

const (
	// importPrefix is what the files call their folder: protoc -I mooncake_plugin/v1=plugins/proto/v1.
	importPrefix = "mooncake_plugin/v1/"
	// descriptorFile holds the compiled protocol, comments left out.
	descriptorFile = "descriptor.binpb"
)

func main() {
	dir := flag.String("dir", "plugins/proto/v1", "folder of the protocol files")
	check := flag.Bool("check", false, "write nothing, fail if the generated files are not those of the protocol files")
	breaking := flag.Bool("accept-breaking", false, "write even if plugins built earlier stop working (a new major version is the better way)")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := run(ctx, *dir, *check, *breaking); err != nil {
		fmt.Fprintf(os.Stderr, "protogen: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, check, acceptBreaking bool) error {
	files, err := compile(ctx, dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range files {
		errs = append(errs, lint(f)...)
	}
	set := descriptorSet(files)
	old, err := committed(filepath.Join(dir, descriptorFile))
	if err != nil {
		return err
	}
	if old != nil && !acceptBreaking {
		errs = append(errs, breaks(old, set)...)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	out, err := generate(ctx, files)
	if err != nil {
		return err
	}
	if out[descriptorFile], err = (proto.MarshalOptions{Deterministic: true}).Marshal(set); err != nil {
		return err
	}
	return write(dir, out, check)
}

// compile parses and links all protocol files of a folder, sorted by name.
func compile(ctx context.Context, dir string) ([]protoreflect.FileDescriptor, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.proto"))
	if err != nil || len(paths) == 0 {
		return nil, errors.Join(fmt.Errorf("no .proto file in %s", dir), err)
	}
	var names []string
	for _, p := range paths {
		names = append(names, importPrefix+filepath.Base(p))
	}
	slices.Sort(names)
	c := protocompile.Compiler{
		SourceInfoMode: protocompile.SourceInfoStandard,
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
			Accessor: func(name string) (io.ReadCloser, error) {
				base, ours := strings.CutPrefix(name, importPrefix)
				if !ours {
					return nil, os.ErrNotExist
				}
				return os.Open(filepath.Join(dir, base))
			},
		}),
	}
	linked, err := c.Compile(ctx, names...)
	if err != nil {
		return nil, err
	}
	var files []protoreflect.FileDescriptor
	for _, f := range linked {
		files = append(files, f)
	}
	return files, nil
}

// descriptorSet is what is committed: the protocol without comments and positions.
func descriptorSet(files []protoreflect.FileDescriptor) *descriptorpb.FileDescriptorSet {
	set := &descriptorpb.FileDescriptorSet{}
	for _, f := range files {
		p := protodesc.ToFileDescriptorProto(f)
		p.SourceCodeInfo = nil
		set.File = append(set.File, p)
	}
	return set
}

// committed reads the descriptor set of the last run, nil if there is none.
func committed(path string) (*descriptorpb.FileDescriptorSet, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	set := &descriptorpb.FileDescriptorSet{}
	if err := proto.Unmarshal(raw, set); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return set, nil
}

// generate runs the code generators, which are tools of this module. It returns contents by file name.
func generate(ctx context.Context, files []protoreflect.FileDescriptor) (map[string][]byte, error) {
	req := &pluginpb.CodeGeneratorRequest{Parameter: proto.String("paths=source_relative")}
	for _, f := range files {
		req.FileToGenerate = append(req.FileToGenerate, f.Path())
	}
	seen := map[string]bool{}
	var add func(f protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) { // what is imported comes first
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		req.ProtoFile = append(req.ProtoFile, protodesc.ToFileDescriptorProto(f))
	}
	for _, f := range files {
		add(f)
	}
	in, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, tool := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		cmd := exec.CommandContext(ctx, "go", "tool", tool)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
		raw, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go tool %s: %w", tool, err)
		}
		var resp pluginpb.CodeGeneratorResponse
		if err := proto.Unmarshal(raw, &resp); err != nil {
			return nil, fmt.Errorf("go tool %s: %w", tool, err)
		}
		if resp.Error != nil {
			return nil, fmt.Errorf("go tool %s: %s", tool, resp.GetError())
		}
		for _, f := range resp.File {
			out[filepath.Base(f.GetName())] = []byte(f.GetContent())
		}
	}
	return out, nil
}

// write puts the generated files into dir and removes those that are not generated any more.
func write(dir string, out map[string][]byte, check bool) error {
	old, err := filepath.Glob(filepath.Join(dir, "*.pb.go"))
	if err != nil {
		return err
	}
	var changed []string
	for _, p := range old {
		if _, ok := out[filepath.Base(p)]; ok {
			continue
		}
		changed = append(changed, p)
		if !check {
			if err := os.Remove(p); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(out)) {
		p := filepath.Join(dir, name)
		if was, err := os.ReadFile(p); err == nil && bytes.Equal(was, out[name]) {
			continue
		}
		changed = append(changed, p)
		if !check {
			if err := os.WriteFile(p, out[name], 0o644); err != nil {
				return err
			}
		}
	}
	if check && len(changed) > 0 {
		return fmt.Errorf("not up to date: %s; run make proto", strings.Join(changed, ", "))
	}
	return nil
}
