package transports

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/mooncake-agent/mooncake/internal/jsoncpp"
)

var (
	// ErrNoDescriptor is answered by ParseDescriptor for the document null: there is no such segment.
	ErrNoDescriptor = errors.New("no segment descriptor")
	// ErrBadDescriptor is wrapped by ParseDescriptor's errors for every other document that an
	// upstream reader refuses or is aborted by.
	ErrBadDescriptor = errors.New("bad segment descriptor")
)

// maxAgentPaths bounds what a foreign document can make us keep.
const maxAgentPaths = 64

// strictProtocols are those whose buffers upstream checks: one bad buffer spoils the segment.
var strictProtocols = []string{"tcp", "rdma", "barex", "efa", "cxi"}

// knownProtocols are all protocols that upstream's reader knows; names are case sensitive.
var knownProtocols = append([]string{"ub", "nccl", "ascend", "nvlink", "nvlink_intra", "hip", "maca", "musa",
	"ubshmem", "sunrise_link", "cxl", "nvmeof"}, strictProtocols...)

// ParseDescriptor reads a segment document with upstream's tolerance (transfer_metadata.cpp, the
// decoder of SegmentDesc, as the 0.3.13 wheel behaves): key order, unknown keys and a trailing newline
// do not matter; only protocol is mandatory; scalars are converted as jsoncpp converts them;
// tcp_data_port is cut to 16 bits; buffers that is not an array means none. Protocol arrays of
// multi-protocol builds are read too. Addresses never pass through a float64.
//
// It answers ErrNoDescriptor for null and an error that wraps ErrBadDescriptor for what upstream
// refuses (unknown protocol; a tcp or rdma buffer without name, address or length) or dies of
// (wrong JSON types, nesting deeper than 1000, no object at all).
//
// Buffers of protocols that this program has no transport for are kept when they have an address
// and a length, and left out otherwise. A malformed "mooncake_agent" key is ignored.
func ParseDescriptor(doc []byte) (*Descriptor, error) {
	d, err := parseDescriptor(doc)
	if err != nil && !errors.Is(err, ErrNoDescriptor) {
		return nil, fmt.Errorf("%w: %w", ErrBadDescriptor, err)
	}
	return d, err
}

func parseDescriptor(doc []byte) (*Descriptor, error) {
	r := jsoncpp.NewReader(doc)
	if k, err := r.Kind(); err != nil {
		return nil, err
	} else if k == jsoncpp.Null {
		if err := r.Skip(); err != nil {
			return nil, err
		}
		return nil, ErrNoDescriptor
	}
	p := parser{r: r, d: &Descriptor{TCPProtoVersion: 1}}
	if err := r.Object(p.member); err != nil {
		return nil, err
	}
	return p.finish()
}

type parser struct {
	r       *jsoncpp.Reader
	d       *Descriptor
	badBuf  string // why a strict protocol refuses the buffers
	badDev  string
	badKeys string
	keyed   bool // some buffer has rkeys
}

func (p *parser) member(key []byte) (err error) {
	d, r := p.d, p.r
	name := string(key)
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	switch name {
	case "name":
		d.Name, err = r.AsString()
	case "protocol":
		err = p.protocol()
	case "buffers":
		d.Buffers, p.badBuf, p.badKeys, p.keyed = nil, "", "", false
		err = p.list(p.buffer)
	case "devices":
		d.Devices, p.badDev = []Device{}, ""
		err = p.list(p.device)
	case "priority_matrix":
		var raw []byte
		if raw, err = r.Raw(); err == nil {
			d.PriorityMatrix = slices.Clone(raw)
		}
	case "tcp_data_host":
		d.TCPDataHost, err = p.hostOnly()
	case "tcp_data_port":
		var v int32
		if v, err = r.AsInt32(); err == nil {
			d.TCPDataPort = int(uint16(v))
		}
	case "tcp_proto_version":
		var v int32
		if v, err = r.AsInt32(); err == nil {
			d.TCPProtoVersion = int(v)
		}
	case "rdma_server_name":
		d.RDMAServerName, err = r.AsString()
	case "timestamp":
		_, err = r.AsText()
	case "mooncake_agent":
		var raw []byte
		if raw, err = r.Raw(); err == nil {
			d.Agent = parseAgent(raw)
		}
	default:
		err = r.Skip()
	}
	return err
}

func (p *parser) protocol() error {
	p.d.Protocol, p.d.Protocols = "", nil
	k, err := p.r.Kind()
	if err != nil {
		return err
	}
	if k != jsoncpp.Array {
		p.d.Protocol, err = p.r.AsString()
		return err
	}
	err = p.r.Array(func() error {
		s, err := p.r.AsString()
		if err == nil && len(p.d.Protocols) < len(knownProtocols) {
			p.d.Protocols = append(p.d.Protocols, s)
		}
		return err
	})
	if len(p.d.Protocols) > 0 {
		p.d.Protocol = p.d.Protocols[0]
	}
	if len(p.d.Protocols) == 1 {
		p.d.Protocols = nil
	}
	return err
}

// hostOnly reads tcp_data_host, where upstream takes strings only and ignores everything else.
func (p *parser) hostOnly() (string, error) {
	k, err := p.r.Kind()
	if err != nil {
		return "", err
	}
	if k != jsoncpp.String {
		return "", p.r.Skip()
	}
	return p.r.AsString()
}

// list reads an array of objects with f; any other value counts as empty.
func (p *parser) list(f func() error) error {
	k, err := p.r.Kind()
	if err != nil {
		return err
	}
	if k != jsoncpp.Array {
		return p.r.Skip()
	}
	return p.r.Array(f)
}

func (p *parser) buffer() error {
	var b Buffer
	if n := len(p.d.Buffers); n > 0 {
		b.Name = p.d.Buffers[n-1].Name // mostly the same again
	} else {
		b.Name = p.d.Name
	}
	named := false
	if k, err := p.r.Kind(); err != nil {
		return err
	} else if k == jsoncpp.Null { // a null element reads as an object without members
		p.badBuf = "a buffer is null"
		return p.r.Skip()
	}
	err := p.r.Object(func(key []byte) (err error) {
		switch string(key) {
		case "name":
			var t []byte
			if t, err = p.r.AsText(); err == nil && string(t) != b.Name {
				b.Name = string(t)
			}
			named = true
		case "addr":
			b.Addr, err = p.r.AsUint(math.MaxUint64)
		case "length":
			b.Length, err = p.r.AsUint(math.MaxUint64)
		case "rkey":
			b.RKey, err = p.keys()
		case "lkey":
			b.LKey, err = p.keys()
		default:
			err = p.r.Skip()
		}
		return err
	})
	if err != nil {
		return err
	}
	if !named {
		b.Name = ""
	}
	switch {
	case b.Name == "":
		p.badBuf = "a buffer has no name"
	case b.Addr == 0:
		p.badBuf = fmt.Sprintf("buffer %q has address 0", b.Name)
	case b.Length == 0:
		p.badBuf = fmt.Sprintf("buffer %q has length 0", b.Name)
	}
	if len(b.RKey) > 0 {
		p.keyed = true
		if len(b.RKey) != len(b.LKey) {
			p.badKeys = fmt.Sprintf("buffer %q has %d rkeys and %d lkeys", b.Name, len(b.RKey), len(b.LKey))
		}
	}
	if b.Addr != 0 && b.Length != 0 {
		p.d.Buffers = append(p.d.Buffers, b)
	}
	return nil
}

func (p *parser) keys() ([]uint32, error) {
	out := []uint32{}
	err := p.list(func() error {
		v, err := p.r.AsUint(math.MaxUint32)
		out = append(out, uint32(v))
		return err
	})
	return out, err
}

func (p *parser) device() error {
	var v Device
	err := p.r.Object(func(key []byte) (err error) {
		switch string(key) {
		case "name":
			v.Name, err = p.r.AsString()
		case "gid":
			v.GID, err = p.r.AsString()
		case "lid":
			var n uint64
			if n, err = p.r.AsUint(math.MaxUint32); err == nil {
				v.LID = uint16(n)
			}
		default:
			err = p.r.Skip()
		}
		return err
	})
	if v.Name == "" || v.GID == "" {
		p.badDev = "a device lacks name or gid"
	}
	p.d.Devices = append(p.d.Devices, v)
	return err
}

// finish applies the rules that depend on the protocol, which may stand anywhere in the document.
func (p *parser) finish() (*Descriptor, error) {
	d := p.d
	if d.Protocol == "" {
		return nil, errors.New("protocol is missing")
	}
	all := d.Protocols
	if all == nil {
		all = []string{d.Protocol}
	}
	for _, s := range all {
		if !slices.Contains(knownProtocols, s) {
			return nil, fmt.Errorf("protocol %q is unknown (names are case sensitive)", s)
		}
	}
	if !slices.Contains(strictProtocols, d.Protocol) || len(d.Protocols) > 1 {
		return d, nil
	}
	if p.badBuf != "" {
		return nil, errors.New(p.badBuf)
	}
	if d.Protocol == "tcp" {
		return d, nil
	}
	if p.badDev != "" {
		return nil, errors.New(p.badDev)
	}
	if p.badKeys != "" {
		return nil, errors.New(p.badKeys)
	}
	if p.keyed && d.Protocol != "barex" {
		for i := range d.Buffers {
			if n := len(d.Buffers[i].RKey); n > 0 && n != len(d.Devices) {
				return nil, fmt.Errorf("buffer %q has %d rkeys for %d devices", d.Buffers[i].Name, n, len(d.Devices))
			}
		}
	}
	return d, nil
}

// parseAgent reads our extension key; nil when it is not ours to understand.
func parseAgent(raw []byte) *AgentExt {
	r := jsoncpp.NewReader(raw)
	a := &AgentExt{}
	err := r.Object(func(key []byte) (err error) {
		switch string(key) {
		case "v":
			var v int32
			v, err = r.AsInt32()
			a.V = int(v)
		case "instance":
			a.Instance, err = r.AsString()
		case "paths":
			a.Paths = nil
			err = r.Array(func() error {
				q, err := parsePath(r)
				if err == nil && len(a.Paths) < maxAgentPaths {
					a.Paths = append(a.Paths, q)
				}
				return err
			})
		default:
			err = r.Skip()
		}
		return err
	})
	if err != nil || a.Instance == "" {
		return nil
	}
	return a
}

func parsePath(r *jsoncpp.Reader) (q Path, err error) {
	err = r.Object(func(key []byte) (err error) {
		switch string(key) {
		case "type":
			q.Type, err = r.AsString()
		case "host":
			q.Host, err = r.AsString()
		case "port":
			var v uint64
			v, err = r.AsUint(math.MaxUint16)
			q.Port = int(v)
		case "attr":
			q.Attr = map[string]string{}
			err = r.Object(func(key []byte) error {
				k := string(key)
				v, err := r.AsString()
				q.Attr[k] = v
				return err
			})
		default:
			err = r.Skip()
		}
		return err
	})
	return q, err
}
