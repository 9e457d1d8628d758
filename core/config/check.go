package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mooncake-agent/mooncake/core/module"
)

// protocols are the values of the key protocol that this node serves; a protocol that a registered
// transport has as name or alias gets an instance of it.
var protocols = []string{"tcp", "rdma", "shm"}

// foreignProtocols are upstream's other values: transports of builds for other hardware.
var foreignProtocols = words(`ascend ascend_direct barex cxl efa flagcx hccl heterogeneous_rdma hip maca musa nvlink
	nvlink_intra nvmeof rdma_twosided rpc_only sunrise_link ub ubshmem`)

// checkRoot resolves the flat keys one by one and together.
func (l *loading) checkRoot(r *Root) {
	var err error
	switch {
	case r.LocalHostname == "":
		l.fail("local_hostname", "local_hostname is empty; write the address under which peers reach this node, or leave the key out")
	default:
		if r.Host, r.Port, err = splitHost(r.LocalHostname); err != nil {
			l.fail("local_hostname", err.Error())
		}
	}
	if r.Master, err = ParseMaster(r.MasterAddress); err != nil {
		l.fail("master_server_address", err.Error())
	}
	if r.MasterAddress == "" && l.given("master_server_address") {
		l.warn("master_server_address", "master_server_address is empty: no master is used")
	}
	if r.AdvertiseHost != "" {
		switch host, port, err := splitHost(r.AdvertiseHost); {
		case err != nil:
			l.fail("advertise_host", err.Error())
		case port != 0:
			l.fail("advertise_host", fmt.Sprintf("%s has a port; write only the host", show(r.AdvertiseHost)))
		case isUnspecified(host):
			l.fail("advertise_host", fmt.Sprintf("%s is no address that peers can connect to", show(r.AdvertiseHost)))
		default:
			r.AdvertiseHost = host
		}
	}
	l.checkBind(r)
	l.checkMode(r)
}

func (l *loading) checkBind(r *Root) {
	switch ip, err := netip.ParseAddr(strings.Trim(r.BindAddress, "[]")); {
	case r.BindAddress == "" && strings.EqualFold(r.Host, "localhost"):
		r.Bind = "127.0.0.1"
	case r.BindAddress == "" && isLoopback(r.Host):
		r.Bind = r.Host
	case r.BindAddress == "":
	case strings.EqualFold(r.BindAddress, "localhost"):
		r.Bind = "127.0.0.1"
	case err != nil:
		l.fail("bind_address", fmt.Sprintf("%s is not an IP address", show(r.BindAddress)))
	case ip.IsLoopback() && r.Host != "" && !isLoopback(r.Host):
		l.warn("bind_address", fmt.Sprintf("listening on %s only, so peers cannot reach local_hostname %s", ip, r.LocalHostname))
		r.Bind = ip.String()
	default:
		r.Bind = ip.String()
	}
}

func (l *loading) checkMode(r *Root) {
	const size = "global_segment_size"
	switch {
	case r.Mode == "standalone-store" && !l.given(size):
		r.GlobalSegment = 0
		l.at[size] = source{layer: fromRule, name: "mode=standalone-store"}
	case r.Mode == "standalone-store" && r.GlobalSegment != 0:
		l.fail("mode", fmt.Sprintf("mode=standalone-store needs global_segment_size 0, got %s", r.GlobalSegment))
	case r.Mode == "embedded" && r.GlobalSegment == 0:
		l.fail("mode", "mode=embedded needs global_segment_size above 0, got 0")
	}
	if r.EnableSSD && !filepath.IsAbs(r.SSDPath) {
		l.fail("enable_ssd_offload", fmt.Sprintf("enable_ssd_offload needs an absolute ssd_offload_path, got %s", show(r.SSDPath)))
	}
}

// protocolPart checks protocol and makes sure that its transport has an instance, if this binary has
// the transport at all; as upstream, the node otherwise goes on with tcp.
func (l *loading) protocolPart(k *KindSpec, r *Root) {
	known := "known here: " + strings.Join(protocols, ", ")
	p := strings.ToLower(r.Protocol)
	switch {
	case p == "":
		l.fail("protocol", "protocol is empty; "+known)
		return
	case foreignProtocols[p]:
		l.fail("protocol", fmt.Sprintf("%s is known upstream, not in this binary; %s", show(r.Protocol), known))
		return
	case !slices.Contains(protocols, p):
		msg := fmt.Sprintf("%s unknown; %s", show(r.Protocol), known)
		if near := module.Nearest(p, protocols); near != "" {
			msg += "; did you mean " + near + "?"
		}
		l.fail("protocol", msg)
		return
	}
	r.Protocol = p
	typ, err := k.Kind.Resolve(p)
	if err != nil {
		l.warn("protocol", fmt.Sprintf("%s is not in this binary; tcp is used", p))
		return
	}
	l.protocolType = typ
	for _, have := range l.parts {
		if have.kind == k && have.Type == typ {
			return
		}
	}
	if path := join(k.Key, typ); l.given(path) { // configured, but not enabled or not valid
		l.warn("protocol", fmt.Sprintf("%s needs %s, which is switched off; tcp is used", p, dotted(path)))
		return
	}
	l.parts = append(l.parts, &pending{kind: k, path: join(k.Key, typ), Instance: Instance{Name: typ, Type: typ, Implied: true}})
}

// checkTransports settles the order in which transports are tried.
func (l *loading) checkTransports(r *Root) {
	k := l.schema.kind(transportsKey)
	if k == nil {
		return
	}
	var names []string
	for _, i := range l.instances[transportsKey] {
		names = append(names, i.Name)
	}
	if len(names) == 0 && len(l.errors) == 0 {
		l.fail(transportsKey, "every transport is switched off")
	}
	if l.given("prefer") {
		for i, name := range r.Prefer {
			if name != "" && !slices.Contains(names, name) { // "": was refused before
				msg := fmt.Sprintf("no transport is called %s; there is: %s", show(name), strings.Join(names, ", "))
				if near := module.Nearest(name, names); near != "" {
					msg += "; did you mean " + near + "?"
				}
				l.fail(join("prefer", fmt.Sprintf("[%d]", i)), msg)
			}
		}
		return
	}
	r.Prefer = nil
	listed := map[string]bool{}
	for _, typ := range []string{"shm", l.protocolType, "tcp", ""} {
		for _, i := range l.instances[transportsKey] {
			if (i.Type == typ || typ == "") && !listed[i.Name] {
				listed[i.Name] = true
				r.Prefer = append(r.Prefer, i.Name)
			}
		}
	}
}

// checkReach warns about a name that peers on other hosts cannot use, where other hosts are involved.
func (l *loading) checkReach(r *Root) {
	const key = "local_hostname"
	switch remote := l.remoteHost(r); {
	case isUnspecified(r.Host):
		l.warn(key, fmt.Sprintf("local_hostname %s cannot be reached by peers; write this host's address", r.LocalHostname))
	case remote == "" || !isLoopback(r.Host):
	case l.given(key):
		l.warn(key, fmt.Sprintf("local_hostname %s cannot be reached by peers on other hosts, but %s is one; write this host's address", r.LocalHostname, remote))
	default:
		l.warn(key, fmt.Sprintf("local_hostname is not set, and its default localhost cannot be reached by peers on other hosts, but %s is one; write this host's address", remote))
	}
}

// remoteHost returns a configured host that is not this machine's loopback, "" if there is none.
func (l *loading) remoteHost(r *Root) string {
	addrs := slices.Clone(r.Master.Addrs)
	if r.Master.Scheme == "k8s" {
		return r.MasterAddress
	}
	if sec, ok := r.Metadata.Section.(*section); ok {
		for _, key := range []string{"url", "address", "endpoints"} {
			switch v := sec.raw[key].(type) {
			case string:
				scheme, rest, ok := strings.Cut(v, "://")
				if !ok {
					scheme, rest = "etcd", v
				}
				if u, err := parseStore(scheme, rest); err == nil && defaultPorts[scheme] != 0 {
					addrs = append(addrs, u.hosts...)
				}
			case []any:
				for _, e := range v {
					if s, ok := e.(string); ok {
						hosts, _ := splitHosts(s, 1) // a bad one is the backend's to report
						addrs = append(addrs, hosts...)
					}
				}
			}
		}
	}
	for _, a := range addrs {
		a = strings.TrimPrefix(a, "https://")
		host, _, err := net.SplitHostPort(a)
		if err != nil {
			host = strings.Trim(a, "[]")
		}
		if host != "" && !isLoopback(host) {
			return host
		}
	}
	return ""
}
