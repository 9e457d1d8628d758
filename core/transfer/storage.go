package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/internal/jsoncpp"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/transports"
)

// storage reads and writes upstream's keys in a metadata service.
type storage struct {
	b       metadata.Backend
	prefix  string
	newline bool
}

func newStorage(b metadata.Backend, cluster string, newline bool) *storage {
	prefix := "mooncake/"
	if cluster != "" {
		prefix += strings.TrimSuffix(cluster, "/") + "/"
	}
	return &storage{b: b, prefix: prefix, newline: newline}
}

// ramKey is the key of a segment's descriptor; names with a '/' have no "ram/" (upstream's rule).
func (s *storage) ramKey(name string) string {
	if strings.Contains(name, "/") {
		return s.prefix + name
	}
	return s.prefix + "ram/" + name
}

// rpcKey is the key that says where a segment's handshake daemon is.
func (s *storage) rpcKey(name string) string { return s.prefix + "rpc_meta/" + name }

// frame adds the newline that upstream's writer appends for most services.
func (s *storage) frame(doc []byte) []byte {
	if s.newline {
		doc = append(doc, '\n')
	}
	return doc
}

// same compares a stored value with a document, framing aside.
func same(value, doc []byte) bool {
	return bytes.Equal(bytes.TrimSuffix(value, []byte{'\n'}), bytes.TrimSuffix(doc, []byte{'\n'}))
}

// rpcMeta is the document behind rpcKey.
type rpcMeta struct {
	host string
	port int
}

func (m rpcMeta) encode() []byte {
	b := jsoncpp.AppendString([]byte(`{"ip_or_host_name":`), m.host)
	return append(strconv.AppendInt(append(b, `,"rpc_port":`...), int64(m.port), 10), '}')
}

func (m rpcMeta) addr() string { return handshake.JoinName(m.host, m.port) }

func parseRPCMeta(doc []byte) (m rpcMeta, err error) {
	r := jsoncpp.NewReader(doc)
	err = r.Object(func(key []byte) (err error) {
		switch string(key) {
		case "ip_or_host_name":
			m.host, err = r.AsString()
		case "rpc_port":
			var v uint64
			v, err = r.AsUint(math.MaxUint32)
			m.port = int(uint16(v))
		default:
			err = r.Skip()
		}
		return err
	})
	m.host = strings.TrimSuffix(strings.TrimPrefix(m.host, "["), "]")
	if err == nil && (m.host == "" || m.port == 0) {
		err = errors.New("host or port is missing")
	}
	return m, err
}

// rpc reads a segment's rpc_meta entry.
func (s *storage) rpc(ctx context.Context, name string) (rpcMeta, error) {
	ent, err := s.b.Get(ctx, s.rpcKey(name))
	if err != nil {
		return rpcMeta{}, fmt.Errorf("segment %q: %w: %w", name, ErrNoRPCMeta, err)
	}
	m, err := parseRPCMeta(ent.Value)
	if err != nil {
		return rpcMeta{}, fmt.Errorf("segment %q: %w: %s holds no usable document: %w", name, ErrNoRPCMeta, s.rpcKey(name), err)
	}
	return m, nil
}

// descriptor reads a segment's descriptor. rpc_meta is read only for documents of old engines, which do
// not name the host of their data port.
func (s *storage) descriptor(ctx context.Context, name string) (*transports.Descriptor, error) {
	ent, err := s.b.Get(ctx, s.ramKey(name))
	if errors.Is(err, metadata.ErrNotFound) {
		return nil, fmt.Errorf("segment %q: %w: %w", name, ErrNoSegment, err)
	}
	if err != nil {
		return nil, fmt.Errorf("segment %q: %w", name, err)
	}
	d, err := transports.ParseDescriptor(ent.Value)
	if errors.Is(err, transports.ErrNoDescriptor) {
		return nil, fmt.Errorf("segment %q: %w: %w", name, ErrNoSegment, err)
	}
	if err != nil {
		return nil, fmt.Errorf("segment %q: %s: %w", name, s.ramKey(name), err)
	}
	if d.TCPDataHost == "" && d.Protocol == "tcp" {
		m, err := s.rpc(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("the descriptor has no tcp_data_host: %w", err)
		}
		d.DialHost = m.host
	}
	return d, nil
}
