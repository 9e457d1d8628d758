// Package policy is for eviction policies in Go that run as WebAssembly guests of the Mooncake agent. It needs
// nothing but the standard library; copy the folder into a project.
//
// A policy registers itself and builds as a reactor module:
//
//	func init() { policy.Register(newLRU) }
//	func main() {}
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w' -o lru.wasm
//
// Allocate in the constructor and not later: what a collection of the guest's garbage costs is charged to the
// call that it happens in. What is optional in the ABI (policy_admit, policy_save, policy_load, policy_stats) a
// policy exports itself with go:wasmexport, using Records, Buffer and Text.
package policy

import (
	"errors"
	"unsafe"
)

// Policy ranks the objects of one domain. The host calls it from one thread.
type Policy interface {
	// Apply is told what happened, oldest first. The records are valid only during the call. An error is a
	// fault: it is logged and the host discards the instance.
	Apply(records []Event) error
	// Victims appends at most need.Max handles to dst, best victim first. It changes nothing.
	Victims(dst []uint32, need Need) []uint32
}

// Need is the question for victims.
type Need struct {
	Bytes   int64  // missing; 0 if the number of handles is what counts
	Max     int    // handles to name at most
	Tenant  uint32 // only these, unless it is AnyTenant
	Segment uint32 // only objects there, unless it is AnySegment
	Flags   uint32 // NeedSoftPins, NeedEmergency
}

// Wants tells whether an object of that tenant and segment may be named.
func (n *Need) Wants(tenant, segment uint32) bool {
	return (n.Tenant == AnyTenant || n.Tenant == tenant) && (n.Segment == AnySegment || segment == 0 || n.Segment == segment)
}

// ErrEvent is for events that the ABI does not allow.
var ErrEvent = errors.New("an event that is not allowed: bad handle, or resident already")

// New makes an instance. c is valid only during the call.
type New func(c *Config) (Policy, error)

var makes New

// Register names the constructor of the module's policy. Call it in init.
func Register(f New) { makes = f }

// Params are the parameters from the configuration, a JSON object or nothing.
func (c *Config) Params() string {
	if c.ParamsLen == 0 {
		return ""
	}
	return unsafe.String((*byte)(unsafe.Add(unsafe.Pointer(c), c.ParamsOff)), c.ParamsLen)
}

// Param is the number that the params have under key, or otherwise. The params are taken to be flat.
func (c *Config) Param(key string, otherwise float64) float64 {
	return number(c.Params(), key, otherwise)
}
