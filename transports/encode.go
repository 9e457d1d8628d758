package transports

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/mooncake-agent/mooncake/internal/jsoncpp"
)

// timestampLayout is upstream's "YYYY-MM-DD HH:MM:SS.uuuuuu", local time.
const timestampLayout = "2006-01-02 15:04:05.000000"

// Encode returns the segment document as upstream writes it: compact, keys in byte order, integers as
// plain JSON integers, now as the informational timestamp. It has no trailing newline; the framing of
// the storage ("\n" on etcd, redis and in handshake frames, none over http) is the caller's.
//
// Like upstream, it leaves tcp_data_host out when empty, always writes rdma_server_name, and writes
// devices and priority_matrix only for documents that have them. Protocol is a string unless Protocols
// lists two or more.
func (d *Descriptor) Encode(now time.Time) []byte {
	b := make([]byte, 0, 320+len(d.Name)+len(d.PriorityMatrix)+len(d.Buffers)*(64+len(d.Name)+24*len(d.Devices))+96*len(d.Devices))
	b = append(b, `{"buffers":[`...)
	var last string // buffers of one segment mostly share one name: quote it once
	var quoted []byte
	for i := range d.Buffers {
		f := &d.Buffers[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(append(b, `{"addr":`...), f.Addr, 10)
		b = strconv.AppendUint(append(b, `,"length":`...), f.Length, 10)
		if f.LKey != nil {
			b = appendUints(append(b, `,"lkey":`...), f.LKey)
		}
		if quoted == nil || f.Name != last {
			last, quoted = f.Name, jsoncpp.AppendString(quoted[:0], f.Name)
		}
		b = append(append(b, `,"name":`...), quoted...)
		if f.RKey != nil {
			b = appendUints(append(b, `,"rkey":`...), f.RKey)
		}
		b = append(b, '}')
	}
	b = append(b, ']')
	if d.Devices != nil {
		b = append(b, `,"devices":[`...)
		for i, v := range d.Devices {
			if i > 0 {
				b = append(b, ',')
			}
			b = jsoncpp.AppendString(append(b, `{"gid":`...), v.GID)
			b = strconv.AppendUint(append(b, `,"lid":`...), uint64(v.LID), 10)
			b = append(jsoncpp.AppendString(append(b, `,"name":`...), v.Name), '}')
		}
		b = append(b, ']')
	}
	if d.Agent != nil {
		b = d.Agent.append(append(b, `,"mooncake_agent":`...))
	}
	b = jsoncpp.AppendString(append(b, `,"name":`...), d.Name)
	if d.PriorityMatrix != nil {
		b = append(append(b, `,"priority_matrix":`...), d.PriorityMatrix...)
	}
	b = append(b, `,"protocol":`...)
	if len(d.Protocols) < 2 {
		b = jsoncpp.AppendString(b, d.Protocol)
	} else {
		for i, p := range d.Protocols {
			b = jsoncpp.AppendString(append(b, "[,"[min(i, 1)]), p)
		}
		b = append(b, ']')
	}
	b = jsoncpp.AppendString(append(b, `,"rdma_server_name":`...), d.RDMAServerName)
	if d.TCPDataHost != "" {
		b = jsoncpp.AppendString(append(b, `,"tcp_data_host":`...), d.TCPDataHost)
	}
	b = strconv.AppendInt(append(b, `,"tcp_data_port":`...), int64(d.TCPDataPort), 10)
	b = strconv.AppendInt(append(b, `,"tcp_proto_version":`...), int64(d.TCPProtoVersion), 10)
	b = now.Local().AppendFormat(append(b, `,"timestamp":"`...), timestampLayout)
	return append(b, `"}`...)
}

func appendUints(b []byte, v []uint32) []byte {
	b = append(b, '[')
	for i, x := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(x), 10)
	}
	return append(b, ']')
}

func (a *AgentExt) append(b []byte) []byte {
	b = jsoncpp.AppendString(append(b, `{"instance":`...), a.Instance)
	if len(a.Paths) > 0 {
		b = append(b, `,"paths":[`...)
		for i := range a.Paths {
			if i > 0 {
				b = append(b, ',')
			}
			b = a.Paths[i].append(b)
		}
		b = append(b, ']')
	}
	return append(strconv.AppendInt(append(b, `,"v":`...), int64(a.V), 10), '}')
}

func (p *Path) append(b []byte) []byte {
	b = append(b, '{')
	if len(p.Attr) > 0 {
		b = append(b, `"attr":{`...)
		for i, k := range slices.Sorted(maps.Keys(p.Attr)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = jsoncpp.AppendString(append(jsoncpp.AppendString(b, k), ':'), p.Attr[k])
		}
		b = append(b, `},`...)
	}
	if p.Host != "" {
		b = append(jsoncpp.AppendString(append(b, `"host":`...), p.Host), ',')
	}
	if p.Port != 0 {
		b = append(strconv.AppendInt(append(b, `"port":`...), int64(p.Port), 10), ',')
	}
	return append(jsoncpp.AppendString(append(b, `"type":`...), p.Type), '}')
}
