package transports

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
)

// Descriptor is a segment document: where a segment's memory is and how to reach it. It is upstream's
// SegmentDesc (mooncake-transfer-engine/src/transfer_metadata.cpp), plus our extension key
// "mooncake_agent", which C++ readers ignore.
//
// [ParseDescriptor] and [Descriptor.Encode] convert from and to upstream's JSON.
type Descriptor struct {
	// Name is the segment's own name; in P2P mode its host part must be routable.
	Name string
	// Protocol is upstream's transport name: "tcp", "rdma", ... A document with several protocols (a
	// multi-protocol build's JSON array) keeps the first here and all in Protocols.
	// Protocols is nil for all others.
	Protocol  string
	Protocols []string
	// Buffers lists the registered regions in registration order.
	Buffers []Buffer

	// TCPDataHost is the host of the data port without brackets; "" = legacy rule (see DialHost).
	TCPDataHost     string
	TCPDataPort     int
	TCPProtoVersion int // 1 when absent

	RDMAServerName string
	Devices        []Device        // rdma only
	PriorityMatrix json.RawMessage // rdma only

	// Agent is our extension; nil in documents of other implementations.
	Agent *AgentExt

	// DialHost is not part of the document: the host that the document was obtained for (P2P: host of
	// the dialled name; storage: ip_or_host_name of rpc_meta). TCP uses it when TCPDataHost is "".
	DialHost string
}

// Buffer is one registered region of a segment.
type Buffer struct {
	Name   string // tcp: the segment's name; rdma: the memory location
	Addr   uint64
	Length uint64
	RKey   []uint32 // rdma: one per device
	LKey   []uint32
}

// Device is one NIC of an rdma segment.
type Device struct {
	Name string
	LID  uint16
	GID  string
}

// AgentExt is the extension key "mooncake_agent" of our own nodes.
type AgentExt struct {
	V        int    `json:"v"`
	Instance string `json:"instance"`
	Paths    []Path `json:"paths,omitempty"`
}

// Path is one way to reach the segment's memory, besides the upstream keys.
type Path struct {
	Type string `json:"type"` // transport name
	Host string `json:"host,omitempty"`
	Port int    `json:"port,omitempty"`
	// Attr holds what only that transport understands.
	Attr map[string]string `json:"attr,omitempty"`
}

// Contains tells whether one buffer holds the whole range, or, of buffers with keys, several without a gap: a large
// region of an rdma segment is published in pieces.
func (d *Descriptor) Contains(addr, n uint64) bool {
	for found := true; found; {
		found = false
		for i := range d.Buffers {
			b := &d.Buffers[i]
			if addr < b.Addr || addr-b.Addr > b.Length {
				continue
			}
			if n <= b.Length-(addr-b.Addr) {
				return true
			}
			if part := b.Length - (addr - b.Addr); len(b.RKey) > 0 && part > 0 {
				addr, n, found = addr+part, n-part, true
				break
			}
		}
	}
	return false
}

// Equal tells whether d and o describe the same segment state, DialHost included. The timestamp is
// not part of a Descriptor.
func (d *Descriptor) Equal(o *Descriptor) bool {
	if d == nil || o == nil {
		return d == o
	}
	return d.Name == o.Name && d.Protocol == o.Protocol && slices.Equal(d.Protocols, o.Protocols) &&
		d.TCPDataHost == o.TCPDataHost && d.TCPDataPort == o.TCPDataPort && d.TCPProtoVersion == o.TCPProtoVersion &&
		d.RDMAServerName == o.RDMAServerName && d.DialHost == o.DialHost && slices.Equal(d.Devices, o.Devices) &&
		bytes.Equal(d.PriorityMatrix, o.PriorityMatrix) && reflect.DeepEqual(d.Agent, o.Agent) &&
		slices.EqualFunc(d.Buffers, o.Buffers, func(a, b Buffer) bool {
			return a.Addr == b.Addr && a.Length == b.Length && a.Name == b.Name &&
				slices.Equal(a.RKey, b.RKey) && slices.Equal(a.LKey, b.LKey)
		})
}

// Clone returns a copy that shares nothing a caller could change.
func (d *Descriptor) Clone() *Descriptor {
	c := *d
	c.Protocols = slices.Clone(d.Protocols)
	c.Buffers = slices.Clone(d.Buffers)
	for i := range c.Buffers {
		b := &c.Buffers[i]
		b.RKey, b.LKey = slices.Clone(b.RKey), slices.Clone(b.LKey)
	}
	c.Devices = slices.Clone(d.Devices)
	c.PriorityMatrix = bytes.Clone(d.PriorityMatrix)
	if d.Agent != nil {
		a := *d.Agent
		a.Paths = slices.Clone(a.Paths)
		for i := range a.Paths {
			a.Paths[i].Attr = maps.Clone(a.Paths[i].Attr)
		}
		c.Agent = &a
	}
	return &c
}
