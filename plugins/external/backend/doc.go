// Package backend runs metadata backends that are programs of their own, in any language with gRPC. It registers itself
// in metadata.Kind as type "external":
//
//	"metadata": {"type": "external", "command": ["/opt/p/sqlite-backend"], "sha256": {"/opt/p/sqlite-backend": "9f86..."},
//	             "config": {"file": "/var/lib/mooncake/meta.db"}}
//
// The abilities of a backend are the features that its program announces. The config keys are those of package external.
//
// The process is started by the first call. While none is ready calls fail at once with metadata.ErrUnavailable; a watch
// yields that error, goes on and begins anew with a reset; leases that a process held are lost when it ends, and
// their keys vanish when the service has waited for their time to live.
package backend
