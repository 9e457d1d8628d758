package config

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLocalHostname(t *testing.T) {
	for _, c := range []struct {
		form, host string
		port       int
		bind       string
		refused    string
	}{
		{"10.0.0.1", "10.0.0.1", 0, "", ""}, {"node-1.example_x", "node-1.example_x", 0, "", ""}, {"localhost", "localhost", 0, "127.0.0.1", ""},
		{"10.0.0.1:12345", "10.0.0.1", 12345, "", ""}, {"::1", "::1", 0, "::1", ""}, {"[::1]", "::1", 0, "::1", ""}, {"[::1]:9000", "::1", 9000, "::1", ""},
		{"[2001:db8::1]:9000", "2001:db8::1", 9000, "", ""}, {"fe80::1%eth0", "fe80::1%eth0", 0, "", ""}, {"[fe80::1%eth0]:1", "fe80::1%eth0", 1, "", ""},
		{"127.0.0.5:1", "127.0.0.5", 1, "127.0.0.5", ""},
		{"host:", "", 0, "", `"host:": the port after the colon is missing`},
		{":50051", "", 0, "", `":50051" has no host before the port`},
		{"host:99999", "", 0, "", `"host:99999": port 99999 is not a number from 1 to 65535`},
		{"host:0", "", 0, "", `"host:0": port 0 is not a number from 1 to 65535`},
		{"host:-1", "", 0, "", `"host:-1": port -1 is not a number from 1 to 65535`},
		{"host:http", "", 0, "", `"host:http": port http is not a number from 1 to 65535`},
		{"a:b:c", "", 0, "", `"a:b:c" is not an address; an IPv6 address with a port is written [::1]:9000`},
		{"[::1", "", 0, "", `"[::1" is not an address; an IPv6 address with a port is written [::1]:9000`},
		{"[::1]9000", "", 0, "", `"[::1]9000" is not an address; an IPv6 address with a port is written [::1]:9000`},
		{"[host]:1", "", 0, "", `"[host]:1" is not an address; an IPv6 address with a port is written [::1]:9000`},
		{"300.1.1.1", "", 0, "", `"300.1.1.1" is not an IPv4 address`},
		{"10.0.0", "", 0, "", `"10.0.0" is not an IPv4 address`},
		{"my host", "", 0, "", `"my host" is not a host name: ' ' cannot stand in one`},
		{"http://h", "", 0, "", `"http://h" is a URL; write a host or host:port`},
	} {
		l, msg := loadText(t, "c.json", fmt.Sprintf(`{"local_hostname": %q}`, c.form))
		if c.refused != "" || msg != "" {
			if want := "c.json:1:2: local_hostname: " + c.refused; msg != want {
				t.Errorf("%s:\n got %s\nwant %s", c.form, msg, want)
			}
			continue
		}
		if r := l.Root(); r.Host != c.host || r.Port != c.port || r.Bind != c.bind || r.LocalHostname != c.form {
			t.Errorf("%s: host %q port %d bind %q", c.form, r.Host, r.Port, r.Bind)
		}
	}
}

func TestBindAddress(t *testing.T) {
	for _, c := range []struct{ text, bind, warning, refused string }{
		{`{"local_hostname":"10.0.0.1"}`, "", "", ""},
		{`{"local_hostname":"10.0.0.1","bind_address":"10.0.0.1"}`, "10.0.0.1", "", ""},
		{`{"local_hostname":"127.0.0.1","bind_address":"0.0.0.0"}`, "0.0.0.0", "", ""},
		{`{"bind_address":"localhost"}`, "127.0.0.1", "", ""},
		{`{"bind_address":"[::1]"}`, "::1", "", ""},
		{`{"local_hostname":"10.0.0.1","bind_address":"127.0.0.1"}`, "127.0.0.1", "bind_address: listening on 127.0.0.1 only, so peers cannot reach local_hostname 10.0.0.1", ""},
		{`{"bind_address":"eth0"}`, "", "", `1:2: bind_address: "eth0" is not an IP address`},
		{`{"bind_address":"127.0.0.1:80"}`, "", "", `1:2: bind_address: "127.0.0.1:80" is not an IP address`},
	} {
		l, msg := loadText(t, "c.json", c.text)
		if c.refused != "" || msg != "" {
			if msg != "c.json:"+c.refused {
				t.Errorf("%s: %s", c.text, msg)
			}
			continue
		}
		if l.Root().Bind != c.bind || warnings(l) != c.warning {
			t.Errorf("%s: bind %q, warnings %q", c.text, l.Root().Bind, warnings(l))
		}
	}
}

func TestAdvertiseHost(t *testing.T) {
	for _, c := range []struct{ form, want, refused string }{
		{"10.0.0.1", "10.0.0.1", ""}, {"[::1]", "::1", ""}, {"node1", "node1", ""}, {"", "", ""},
		{"10.0.0.1:80", "", `"10.0.0.1:80" has a port; write only the host`},
		{"0.0.0.0", "", `"0.0.0.0" is no address that peers can connect to`},
		{"a b", "", `"a b" is not a host name: ' ' cannot stand in one`},
	} {
		l, msg := loadText(t, "c.json", `{}`, "MC_TCP_BIND_ADDRESS="+c.form)
		if c.refused != "" || msg != "" {
			if want := "environment: MC_TCP_BIND_ADDRESS (advertise_host): " + c.refused; msg != want {
				t.Errorf("got %s", msg)
			}
			continue
		}
		if got := l.Root().AdvertiseHost; got != c.want {
			t.Errorf("%s: %q", c.form, got)
		}
	}
}

func TestMasterAddress(t *testing.T) {
	for _, c := range []struct {
		form    string
		want    MasterTarget
		refused string
	}{
		{"127.0.0.1:50051", MasterTarget{Scheme: "tcp", Addrs: []string{"127.0.0.1:50051"}}, ""},
		{"[::1]:50052", MasterTarget{Scheme: "tcp", Addrs: []string{"[::1]:50052"}}, ""},
		{"etcd://127.0.0.1:1;127.0.0.1", MasterTarget{Scheme: "etcd", Addrs: []string{"127.0.0.1:1", "127.0.0.1:2379"}, URL: "etcd://127.0.0.1:1,127.0.0.1:2379"}, ""},
		{"REDIS://:pw@localhost/1", MasterTarget{Scheme: "redis", Addrs: []string{"localhost:6379"}, URL: "redis://:pw@localhost:6379/1"}, ""},
		{"k8s://ns/lease", MasterTarget{Scheme: "k8s", Addrs: []string{"ns/lease"}}, ""},
		{"", MasterTarget{}, ""},
		{"host", MasterTarget{}, `"host" has no port; write host:50051`},
		{"::1", MasterTarget{}, `"::1" has no port; write [::1]:50051`},
		{"host:99999", MasterTarget{}, `"host:99999": port 99999 is not a number from 1 to 65535`},
		{":50051", MasterTarget{}, `":50051" has no host before the port`},
		{"a:1,b:2", MasterTarget{}, `"a:1,b:2" is not an address; an IPv6 address with a port is written [::1]:9000`},
		{"k8s://lease", MasterTarget{}, `"k8s://lease" does not name a lease; write k8s://namespace/lease`},
		{"consul://h", MasterTarget{}, `"consul://h" has the unknown scheme "consul"; known: host:port, etcd://, redis://, k8s://`},
	} {
		l, msg := loadText(t, "c.json", fmt.Sprintf(`{"local_hostname":"10.0.0.1","master_server_address":%q}`, c.form))
		if c.refused != "" || msg != "" {
			if want := "c.json:1:30: master_server_address: " + c.refused; msg != want {
				t.Errorf("%s:\n got %s\nwant %s", c.form, msg, want)
			}
			continue
		}
		if d := cmp.Diff(c.want, l.Root().Master); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.form, d)
		}
		want := ""
		if c.form == "" {
			want = "master_server_address: master_server_address is empty: no master is used"
		}
		if warnings(l) != want {
			t.Errorf("%s: %s", c.form, warnings(l))
		}
	}
}

func TestModeAndOffload(t *testing.T) {
	for text, want := range map[string]string{
		`{"mode":"standalone-store","global_segment_size":"80GB"}`:         `1:2: mode: mode=standalone-store needs global_segment_size 0, got 80GB`,
		`{"mode":"embedded","global_segment_size":0}`:                      `1:2: mode: mode=embedded needs global_segment_size above 0, got 0`,
		`{"enable_ssd_offload":true}`:                                      `1:2: enable_ssd_offload: enable_ssd_offload needs an absolute ssd_offload_path, got ""`,
		`{"enable_ssd_offload":"true","ssd_offload_path":"nvme/off"}`:      `1:2: enable_ssd_offload: enable_ssd_offload needs an absolute ssd_offload_path, got "nvme/off"`,
		`{"enable_ssd_offload":"false","ssd_offload_path":"nvme/off"}`:     "",
		`{"mode":"standalone-store","global_segment_size":"0"}`:            "",
		`{"mode":"embedded"}`:                                              "",
		`{"global_segment_size":0,"enable_ssd_offload":false}`:             "",
		`{"enable_ssd_offload":"true","ssd_offload_path":"/nvme/off"}`:     "",
		`{"mode":"standalone-store","metadata_server":"P2PHANDSHAKE"}`:     "",
		`{"mode":"standalone-store","global_segment_size":0,"prefer":[]}`:  "",
		`{"mode":"Embedded","global_segment_size":"1GB"}`:                  `1:2: mode: needs one of embedded, standalone-store, got "Embedded"`,
		`{"mode":"standalone-store","global_segment_size":"1kb","x":true}`: "1:2: mode: mode=standalone-store needs global_segment_size 0, got 1KB\nc.json:1:56: x: unknown key x",
	} {
		if got := refusal(t, text); got != want {
			t.Errorf("%s:\n got %s\nwant %s", text, got, want)
		}
	}
	l := mustLoad(t, `{"mode":"standalone-store"}`)
	if v := value(t, l, "global_segment_size"); v.Value != "0" || v.Source != "mode=standalone-store" || l.Root().GlobalSegment != 0 {
		t.Errorf("%v from %s", v.Value, v.Source)
	}
}

func TestWarningsAboutReach(t *testing.T) {
	const loop = "local_hostname: local_hostname %s cannot be reached by peers on other hosts, but %s is one; write this host's address"
	for _, c := range []struct{ text, want string }{
		{`{"local_hostname":"0.0.0.0","metadata_server":"etcd://192.0.2.1:2379","protocol":"tcp","master_server_address":"192.0.2.1:50051"}`,
			"local_hostname: local_hostname 0.0.0.0 cannot be reached by peers; write this host's address"},
		{`{"local_hostname":"[::]:1"}`, "local_hostname: local_hostname [::]:1 cannot be reached by peers; write this host's address"},
		{`{"local_hostname":"localhost","metadata_server":"etcd://127.0.0.1:1,192.0.2.1:2379"}`, fmt.Sprintf(loop, "localhost", "192.0.2.1")},
		{`{"local_hostname":"::1","master_server_address":"master:1"}`, fmt.Sprintf(loop, "::1", "master")},
		{`{"local_hostname":"localhost","metadata":{"type":"etcd","endpoints":["https://[2001:db8::1]:1"]}}`, fmt.Sprintf(loop, "localhost", "2001:db8::1")},
		{`{"local_hostname":"localhost","metadata_server":"http://h/metadata"}`, fmt.Sprintf(loop, "localhost", "h")},
		{`{"local_hostname":"localhost","metadata_server":"redis://u:p@[::1]:1/2","master_server_address":"localhost:1"}`, ""},
		{`{"local_hostname":"192.0.2.9","metadata_server":"http://h/metadata"}`, ""},
	} {
		if got := warnings(mustLoad(t, c.text)); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.text, got, c.want)
		}
	}
}

func TestAliases(t *testing.T) {
	l := mustLoad(t, `{"master_server_addr":"127.0.0.1:1","master_server":"127.0.0.1:1","rdma_devices":"m","device_name":"m","mooncake_prefer_local_alloc":true}`)
	want := "master_server_addr: is another name of master_server_address; write master_server_address\n" +
		"master_server: is another name of master_server_address; write master_server_address\n" +
		"rdma_devices: is another name of device_name; write device_name\n" +
		"mooncake_prefer_local_alloc: is another name of prefer_local_alloc; write prefer_local_alloc\n" +
		"prefer_local_alloc: accepted, but only LMCache reads it"
	if got := warnings(l); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if l.Root().MasterAddress != "127.0.0.1:1" || !l.Root().PreferLocal {
		t.Errorf("%+v", l.Root())
	}
	for text, want := range map[string]string{
		`{"master_server":"a:1","master_server_addr":"b:1"}`:               `1:2: master_server: master_server_addr and master_server differ: "b:1" and "a:1"`,
		`{"device_name":"x","rdma_devices":"y"}`:                           `1:20: rdma_devices: device_name and rdma_devices differ: "x" and "y"`,
		`{"prefer_local_alloc":true,"mooncake_prefer_local_alloc":"true"}`: ``,
	} {
		if got := refusal(t, text); got != want {
			t.Errorf("%s:\n got %s\nwant %s", text, got, want)
		}
	}
}
