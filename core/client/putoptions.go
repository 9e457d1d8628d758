package client

import (
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/structpack"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// PutOption shapes a put or upsert; in a batch it applies to every object.
type PutOption func(*putSpec)

type putSpec struct {
	cfg      wire.ReplicateConfig
	group    string
	groups   []string
	existsOK bool
	whole    bool
	wait     time.Duration
	progress func(moved, total uint64)
}

// Replicas asks for n copies of the object in n different segments; the default is 1. If fewer segments have
// room, the master may place fewer, at least one.
func Replicas(n int) PutOption {
	return func(s *putSpec) { s.cfg.Replicas = uint64(max(n, 0)) }
}

// Prefer names segments that are tried first, in this order. It is a wish: without room there the object goes
// elsewhere. The name of a client's own segment is that of its Mount.
func Prefer(segments ...string) PutOption {
	return func(s *putSpec) { s.cfg.PreferredSegments = segments }
}

// SameNode keeps all objects of a batch on the segments of the first one, if there is room.
func SameNode() PutOption {
	return func(s *putSpec) { s.cfg.PreferSameNode = true }
}

// SoftPin protects the object from eviction for ttl from now on, as long as there is anything else to evict; 0
// means the master's default time.
func SoftPin(ttl time.Duration) PutOption {
	return func(s *putSpec) {
		s.cfg.SoftPin, s.cfg.SoftPinTTLMS = wire.SoftPinEnable, wire.Opt[uint64]{}
		if ttl > 0 {
			s.cfg.SoftPinTTLMS = structpack.Some(uint64(max(ttl.Milliseconds(), 1)))
		}
	}
}

// Unpin ends the soft pin of an object that is replaced by Upsert; without it the pin stays as it is.
func Unpin() PutOption {
	return func(s *putSpec) { s.cfg.SoftPin, s.cfg.SoftPinTTLMS = wire.SoftPinDisable, wire.Opt[uint64]{} }
}

// HardPin protects the object from eviction until it is removed.
func HardPin() PutOption {
	return func(s *putSpec) { s.cfg.HardPin = true }
}

// Group puts objects into a group: reading one of them protects all, and they are evicted together.
func Group(id string) PutOption {
	return func(s *putSpec) { s.group, s.groups = id, nil }
}

// Groups is Group with an id for each object of a batch.
func Groups(ids ...string) PutOption {
	return func(s *putSpec) { s.groups = ids }
}

// DataType says what an object is: a hint for eviction policies.
type DataType uint8

// The data types of the protocol.
const (
	Unknown DataType = iota
	KVCache
	Tensor
	Weight
	Sample
	Activation
	Gradient
	OptimizerState
	Metadata
	General
)

// Class tells the master's eviction policy what the object is.
func Class(t DataType) PutOption {
	return func(s *putSpec) { s.cfg.DataType = uint8(t) }
}

// ExistsOK makes a put of an existing key succeed without writing anything, as upstream's clients do.
func ExistsOK() PutOption {
	return func(s *putSpec) { s.existsOK = true }
}

// AllOrNothing makes a batch put all of its objects or none: if one cannot be put, those that could be are
// revoked and report ErrAborted. Objects of the batch become visible one after the other all the same.
func AllOrNothing() PutOption {
	return func(s *putSpec) { s.whole = true }
}

// WaitForSpace tries again for so long when no segment has room, which makes the master evict.
func WaitForSpace(d time.Duration) PutOption {
	return func(s *putSpec) { s.wait = d }
}

// Progress calls f now and then while the data is moved, from one goroutine at a time. A part of an object counts
// when all of it was moved, and each replica counts.
func Progress(f func(moved, total uint64)) PutOption {
	return func(s *putSpec) { s.progress = f }
}

// spec applies options for n objects.
func (c *Client) spec(opts []PutOption, n int) *putSpec {
	s := &putSpec{cfg: wire.ReplicateConfig{Replicas: 1, HostID: c.opt.HostID}}
	for _, o := range opts {
		o(s)
	}
	if s.group != "" {
		s.groups = make([]string, n)
		for i := range s.groups {
			s.groups[i] = s.group
		}
	}
	return s
}

// config is the wire form for the objects with these indices of the batch.
func (s *putSpec) config(ws []*writing) wire.ReplicateConfig {
	cfg := s.cfg
	if s.groups != nil {
		ids := make([]string, len(ws))
		for i, w := range ws {
			if w.index < len(s.groups) { // else the lengths differ, which was refused
				ids[i] = s.groups[w.index]
			}
		}
		cfg.GroupIDs = structpack.Some(ids)
	}
	return cfg
}
