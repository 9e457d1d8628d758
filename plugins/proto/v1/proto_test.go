package pluginv1

import (
	"io/fs"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// The Go code, the embedded sources and the committed descriptor set are of the same files.
func TestDescriptorSetIsWhatIsLinked(t *testing.T) {
	raw, err := os.ReadFile("descriptor.binpb")
	if err != nil {
		t.Fatal(err)
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(raw, &set); err != nil {
		t.Fatal(err)
	}
	linked := map[string]bool{}
	protoregistry.GlobalFiles.RangeFilesByPackage("mooncake.plugin.v1", func(f protoreflect.FileDescriptor) bool {
		linked[f.Path()] = true
		return true
	})
	if len(set.File) == 0 || len(linked) != len(set.File) {
		t.Fatalf("%d files in the set, %d linked", len(set.File), len(linked))
	}
	for _, f := range set.File {
		if !linked[f.GetName()] {
			t.Errorf("%s is not linked", f.GetName())
		}
		base, _ := strings.CutPrefix(f.GetName(), ImportDir+"/")
		if _, err := fs.Stat(Sources, base); err != nil {
			t.Error(err)
		}
	}
}
