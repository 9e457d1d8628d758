package codes

import (
	"errors"
	"fmt"
	"testing"

	"github.com/mooncake-agent/mooncake/metadata"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

func TestMetadataCodes(t *testing.T) {
	for _, err := range []error{metadata.ErrNotFound, metadata.ErrConflict, metadata.ErrUnavailable, metadata.ErrTooLarge, metadata.ErrRefused, metadata.ErrLeaseLost, metadata.ErrClosed} {
		if back := MetadataError(MetadataCode(fmt.Errorf("backend: %w", err))); !errors.Is(back, err) {
			t.Errorf("%v came back as %v", err, back)
		}
	}
	if c := MetadataCode(errors.New("surprise")); c != pluginv1.ErrorCode_ERROR_CODE_INTERNAL || MetadataError(c) != nil {
		t.Errorf("an error of no class is %v", c)
	}
	if MetadataError(pluginv1.ErrorCode_ERROR_CODE_REJECTED) != nil || MetadataError(pluginv1.ErrorCode(12345)) != nil {
		t.Error("a code that is not for metadata has an error")
	}
}
