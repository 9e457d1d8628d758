package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/mooncake-agent/mooncake/core/bench"
	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/config"
	"github.com/mooncake-agent/mooncake/core/doctor"
	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/node"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/metadata"
	transports "github.com/mooncake-agent/mooncake/transports/all"
)

// verbsType is the transport whose devices are RDMA's.
const verbsType = "verbs"

// doctorSetup is what the configuration comes to. A broken one is no error here: the report tells.
func doctorSetup(flags *configFlags, o *doctorOptions) (doctor.Setup, error) {
	s := doctor.Setup{HugePages: "off", NUMANode: -1, RDMA: doctor.RDMA{GID: -1}, Peers: o.peers}
	expect, err := doctor.ParseExpect(o.expect)
	if err != nil {
		return s, err
	}
	l, err := flags.load(nil)
	if err != nil {
		var wrong *config.Errors
		if !errors.As(err, &wrong) {
			return s, err
		}
		for _, p := range wrong.Problems {
			s.Problems = append(s.Problems, p.String())
		}
		// Required RDMA that is not there is an error of the configuration. Everything else can be looked at all the same.
		relaxed := *flags
		relaxed.set = append(slices.Clone(flags.set), "transports."+verbsType+".required=false")
		if l, err = relaxed.load(nil); err != nil {
			return s, nil
		}
		s.RDMA.Required = true
	}
	p, err := node.Resolve(l)
	if err != nil {
		s.Problems = append(s.Problems, strings.Split(err.Error(), "\n")...)
		return s, nil
	}
	d := &doctorPlan{l: l, p: p, values: map[string]any{}}
	for _, v := range l.Effective() {
		d.values[v.Key] = v.Value
	}
	d.fill(&s)
	if o.baseline != "" {
		s.Baseline = d.baseline(o, expect)
	}
	return s, nil
}

// doctorPlan turns a configuration into a setup.
type doctorPlan struct {
	l      *config.Loaded
	p      *node.Plan
	values map[string]any // effective, by key; secrets are masked
}

func (d *doctorPlan) fill(s *doctor.Setup) {
	p := d.p
	s.File = d.l.Path()
	for _, w := range p.Warnings {
		s.Warnings = append(s.Warnings, w.String())
	}
	s.Segment, s.Buffer = p.Root.GlobalSegment, p.Root.LocalBuffer
	s.HugePages, s.NUMANode = p.Segment.HugePages, p.Segment.NUMANode
	d.rdma(&s.RDMA)
	d.listeners(s)
	s.Metadata = d.metadata()
	s.Master = d.master()
}

func (d *doctorPlan) rdma(r *doctor.RDMA) {
	r.ActiveMTU = transports.PortMTU
	r.Wanted = strings.EqualFold(d.p.Root.Protocol, "rdma")
	prefix := "transports." + verbsType + "."
	for _, i := range d.p.Transports {
		if i.Type != verbsType {
			continue
		}
		r.Wanted = r.Wanted || !i.Implied
		r.Required = r.Required || i.Required
		prefix = "transports." + i.Name + "."
	}
	for _, part := range node.Parts() {
		if part.Name == verbsType && part.State == module.Skipped {
			r.Unavailable = part.Reason
		}
	}
	if list, ok := d.values[prefix+"devices"].([]any); ok {
		for _, v := range list {
			r.Devices = append(r.Devices, fmt.Sprint(v))
		}
	}
	if name := d.p.Root.DeviceName; len(r.Devices) == 0 && name != "auto-discovery" {
		r.Devices = strings.FieldsFunc(name, func(c rune) bool { return c == ',' || c == ' ' })
	}
	r.Port, _ = d.number(prefix + "port")
	r.MTU, _ = d.number(prefix + "mtu")
	if v, ok := d.number(prefix + "gid_index"); ok {
		r.GID = v
	}
}

// number is an effective value that is a whole number.
func (d *doctorPlan) number(key string) (int, bool) {
	v, there := d.values[key]
	if !there {
		return 0, false
	}
	n, err := strconv.Atoi(fmt.Sprint(v))
	return n, err == nil
}

func (d *doctorPlan) listeners(s *doctor.Setup) {
	p := d.p
	for _, l := range []doctor.Listener{
		{Key: "admin.listen", Addr: p.Admin.Listen}, {Key: "metadata_http.listen", Addr: p.MetadataHTTP.Listen},
		{Key: "master.listen", Addr: p.Embedded.Listen}, {Key: "master.admin", Addr: p.Embedded.Admin},
	} {
		if l.Addr != "" {
			s.Listen = append(s.Listen, l)
		}
	}
	engine := doctor.Range{Key: "transfer.rpc_port_min to rpc_port_max", Ports: units.PortRange{Min: p.Transfer.RPCPortMin, Max: p.Transfer.RPCPortMax}, Need: 1}
	for _, i := range p.Transports {
		if i.Type != "tcp" {
			continue
		}
		key := "transports." + i.Name + ".port_range"
		var own units.PortRange
		if text, _ := d.values[key].(string); text != "" && own.UnmarshalText([]byte(text)) == nil {
			s.Ranges = append(s.Ranges, doctor.Range{Key: key, Ports: own, Need: 1})
		} else {
			engine.Need++ // its listener comes from the engine's range
		}
		s.SendBuffer, s.ReceiveBuffer = d.size("transports."+i.Name+".send_buffer"), d.size("transports."+i.Name+".receive_buffer")
	}
	s.Ranges = append([]doctor.Range{engine}, s.Ranges...)
}

func (d *doctorPlan) size(key string) units.Size {
	v, err := units.ParseSize(fmt.Sprint(d.values[key]))
	if err != nil {
		return 0
	}
	return v
}

func (d *doctorPlan) metadata() *doctor.Metadata {
	m := d.p.Metadata
	if m == nil {
		return nil
	}
	prefix := "mooncake/"
	if id := d.p.Transfer.ClusterID; id != "" {
		prefix += strings.TrimSuffix(id, "/") + "/"
	}
	out := &doctor.Metadata{Type: m.Type, Own: m.Type == "memory", Prefix: prefix, Open: d.openMetadata}
	for _, key := range []string{"url", "endpoints", "address"} {
		if v, ok := d.values["metadata."+key]; ok && fmt.Sprint(v) != "" && fmt.Sprint(v) != "[]" {
			out.Address = strings.Trim(fmt.Sprint(v), "[]")
			break
		}
	}
	return out
}

func (d *doctorPlan) openMetadata(ctx context.Context) (metadata.Backend, error) {
	return metadata.Kind.Build(ctx, d.p.Metadata.Type, module.Env{Name: d.p.Metadata.Name, Log: slog.New(slog.DiscardHandler)}, d.p.Metadata.Section)
}

func (d *doctorPlan) master() doctor.Master {
	p := d.p
	switch scheme := p.Root.Master.Scheme; {
	case p.Embedded.Listen != "":
		return doctor.Master{Addrs: []string{p.Embedded.Listen}, Own: true}
	case scheme != "" && scheme != "tcp": // elected: whoever leads must answer
		return doctor.Master{Addrs: []string{config.Redact(p.Root.MasterAddress)}, Ready: func(ctx context.Context, _ string) error {
			c, err := node.Connect(ctx, d.l, node.ConnectOptions{})
			if err != nil {
				return err
			}
			return errors.Join(c.Connect(ctx), c.Close())
		}}
	}
	return doctor.Master{Addrs: p.Master, Ready: func(ctx context.Context, addr string) error {
		c, err := client.New(client.Options{Config: p.Store.Config, Master: []string{addr}})
		if err != nil {
			return err
		}
		return errors.Join(c.Connect(ctx), c.Close(context.WithoutCancel(ctx)))
	}}
}

func (d *doctorPlan) baseline(o *doctorOptions, expect map[string]units.Size) *doctor.Baseline {
	b := &doctor.Baseline{Peer: o.baseline, Transports: o.transports, Expect: expect, Duration: o.duration}
	sections := map[string]config.Instance{}
	available := map[string]bool{}
	for _, part := range node.Parts() {
		available[part.Name] = part.State == module.Available
	}
	for _, i := range d.p.Transports {
		if _, twice := sections[i.Type]; twice {
			continue
		}
		sections[i.Type] = i
		if len(o.transports) == 0 && available[i.Type] {
			b.Transports = append(b.Transports, i.Type)
		}
	}
	e := bench.Endpoint{Metadata: metadata.P2P, Host: d.ownHost()}
	if m := d.p.Metadata; m != nil && m.Type != "memory" { // engines cannot read that of another process
		e.Metadata, e.Open = m.Type, d.openMetadata
	}
	b.Measure = func(ctx context.Context, transport string, o bench.Options) (*bench.Result, error) {
		e := e
		e.Transport = transport
		if i, ok := sections[transport]; ok {
			e.Section = i.Section
		}
		return bench.Transfer(ctx, o, e, b.Peer, nil)
	}
	return b
}

// ownHost is the address under which peers reach this machine, "" for loopback, if the configuration says it.
func (d *doctorPlan) ownHost() string {
	own, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, host := range []string{d.p.Root.AdvertiseHost, d.p.Root.Host} {
		a, err := netip.ParseAddr(host)
		if err == nil && slices.ContainsFunc(own, func(i net.Addr) bool {
			p, err := netip.ParsePrefix(i.String())
			return err == nil && p.Addr().Unmap() == a.Unmap()
		}) {
			return host
		}
	}
	return ""
}
