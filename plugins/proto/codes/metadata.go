// Package codes says which error of a Go contract each code of the plugin protocol stands for, for hosts and plugins
// in Go alike.
package codes

import (
	"errors"

	"github.com/mooncake-agent/mooncake/metadata"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

// metadataCodes is in the order in which an error that wraps several is classified.
var metadataCodes = []struct {
	code pluginv1.ErrorCode
	err  error
}{
	{pluginv1.ErrorCode_ERROR_CODE_NOT_FOUND, metadata.ErrNotFound},
	{pluginv1.ErrorCode_ERROR_CODE_CONFLICT, metadata.ErrConflict},
	{pluginv1.ErrorCode_ERROR_CODE_TOO_LARGE, metadata.ErrTooLarge},
	{pluginv1.ErrorCode_ERROR_CODE_REFUSED, metadata.ErrRefused},
	{pluginv1.ErrorCode_ERROR_CODE_LEASE_LOST, metadata.ErrLeaseLost},
	{pluginv1.ErrorCode_ERROR_CODE_CLOSED, metadata.ErrClosed},
	{pluginv1.ErrorCode_ERROR_CODE_UNAVAILABLE, metadata.ErrUnavailable},
}

// MetadataCode classifies an error of a metadata backend; one that wraps none of the contract's is INTERNAL.
func MetadataCode(err error) pluginv1.ErrorCode {
	for _, c := range metadataCodes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return pluginv1.ErrorCode_ERROR_CODE_INTERNAL
}

// MetadataError is the contract's error for a code, nil for a code that no metadata backend may answer.
func MetadataError(code pluginv1.ErrorCode) error {
	for _, c := range metadataCodes {
		if code == c.code {
			return c.err
		}
	}
	if code == pluginv1.ErrorCode_ERROR_CODE_CANCELLED { // its own idea of the time that it has
		return metadata.ErrUnavailable
	}
	return nil
}
