package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// One rule for all variables: an invalid value refuses the start with one message that names the
// variable, the value and what is allowed.
func TestInvalidVariablesRefuseTheStart(t *testing.T) {
	values := []string{"", "abc", "0", "-1", "64K", "9223372036854775808", "4 ", "+4", "0x4", "4.0", "1e1"}
	for _, v := range []struct {
		name, key, want string
		valid           []string // of the values above
	}{
		{"MC_TCP_LANES_PER_PEER", "transports.tcp.lanes_per_peer", "a whole number from 1 to 16", nil},
		{"MC_MIN_RPC_PORT", "transfer.min_port", "a whole number from 1024 to 65535", nil},
		{"MC_HANDSHAKE_CONNECT_TIMEOUT", "transfer.connect_timeout", `a duration such as "10s", from 1s to 59m59s`, nil},
		{"MC_TCP_ADMISSION_TIMEOUT_MS", "transports.tcp.admission_timeout", `a duration such as "10s", from 1ms to 10m`, nil},
		{"MC_TRANSFER_TIMEOUT", "transfer.timeout", `a duration such as "10s", of at least 5s`, nil},
		{"MC_TCP_ENABLE_CONNECTION_POOL", "transports.tcp.connection_pool", "true or false", []string{"0"}},
		{"MOONCAKE_CLIENT_HTTP_PORT", "client_http_port", "a whole number from 0 to 65535", []string{"0"}},
		{"MC_TCP_SLICE_SIZE", "transfer.byte_limit", `a size such as 1048576 or "4GB", from 4KB to 1GB`, []string{"64K"}},
		{"MOONCAKE_GLOBAL_SEGMENT_SIZE", "global_segment_size", `a size such as 1048576 or "4GB"`, []string{"0", "64K"}},
	} {
		for _, val := range values {
			_, msg := loadText(t, "c.json", `{}`, v.name+"="+val)
			if contains(v.valid, val) {
				if msg != "" {
					t.Errorf("%s=%q: %s", v.name, val, msg)
				}
				continue
			}
			if strings.Count(msg, "\n") != 0 {
				t.Errorf("%s=%q: more than one message:\n%s", v.name, val, msg)
			}
			prefix := fmt.Sprintf("environment: %s (%s): needs %s", v.name, v.key, v.want)
			rest, ok := strings.CutPrefix(msg, prefix)
			if !ok {
				t.Errorf("%s=%q:\n got %s\nwant %s ...", v.name, val, msg, prefix)
			}
			if val != "" && !strings.Contains(rest, val) {
				t.Errorf("%s=%q: the value is not named: %s", v.name, val, msg)
			}
		}
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

func TestVariablesOverrideTheFile(t *testing.T) {
	l := mustLoad(t, `{"local_hostname": "127.0.0.9", "protocol": "rdma", "global_segment_size": "1GB", "transports": {"tcp": {"lanes_per_peer": 1}}, "transfer": {"peers": ["x"]}}`,
		"MOONCAKE_LOCAL_HOSTNAME=127.0.0.2:9", "MOONCAKE_MASTER=127.0.0.3:50051", "MOONCAKE_TE_META_DATA_SERVER=http://127.0.0.1:8080/metadata",
		"MOONCAKE_PROTOCOL=TCP", "MOONCAKE_DEVICE=", "MOONCAKE_GLOBAL_SEGMENT_SIZE=4gb", "MOONCAKE_LOCAL_BUFFER_SIZE=0", "MOONCAKE_TENANT_ID=t",
		"MOONCAKE_CLIENT=127.0.0.1:1", "MOONCAKE_OFFLOAD_ENABLED=false", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=/x", "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER=true",
		"MOONCAKE_CLIENT_HTTP_PORT=9301", "MC_TCP_LANES_PER_PEER=16", "MC_TCP_ADMISSION_TIMEOUT_MS=20000", "MC_TCP_PROGRESS_TIMEOUT_SEC=2",
		"MC_TCP_ENABLE_CONNECTION_POOL=No", "MC_HANDSHAKE_CONNECT_TIMEOUT=9", "MC_TRANSFER_TIMEOUT=1m", "PATH=/bin", "HOME=/")
	for key, want := range map[string]string{
		"local_hostname": `"127.0.0.2:9" env MOONCAKE_LOCAL_HOSTNAME`, "master_server_address": `"127.0.0.3:50051" env MOONCAKE_MASTER`,
		"metadata_server": `"http://127.0.0.1:8080/metadata" env MOONCAKE_TE_META_DATA_SERVER`, "metadata.url": `"http://127.0.0.1:8080/metadata" env MOONCAKE_TE_META_DATA_SERVER`,
		"protocol": `"tcp" env MOONCAKE_PROTOCOL`, "device_name": `"" env MOONCAKE_DEVICE`, "global_segment_size": `"4GB" env MOONCAKE_GLOBAL_SEGMENT_SIZE`,
		"local_buffer_size": `"0" env MOONCAKE_LOCAL_BUFFER_SIZE`, "tenant_id": `"t" env MOONCAKE_TENANT_ID`, "client_server_address": `"127.0.0.1:1" env MOONCAKE_CLIENT`,
		"enable_ssd_offload": `false env MOONCAKE_OFFLOAD_ENABLED`, "ssd_offload_path": `"/x" env MOONCAKE_OFFLOAD_FILE_STORAGE_PATH`,
		"enable_client_http_server": `true env MOONCAKE_ENABLE_CLIENT_HTTP_SERVER`, "client_http_port": `9301 env MOONCAKE_CLIENT_HTTP_PORT`,
		"transports.tcp.lanes_per_peer": `16 env MC_TCP_LANES_PER_PEER`, "transports.tcp.admission_timeout": `"20s" env MC_TCP_ADMISSION_TIMEOUT_MS`,
		"transports.tcp.progress_timeout": `"2s" env MC_TCP_PROGRESS_TIMEOUT_SEC`, "transports.tcp.connection_pool": `false env MC_TCP_ENABLE_CONNECTION_POOL`,
		"transfer.connect_timeout": `"9s" env MC_HANDSHAKE_CONNECT_TIMEOUT`, "transfer.timeout": `"1m" env MC_TRANSFER_TIMEOUT`,
	} {
		v := value(t, l, key)
		if got := compact(v.Value) + " " + v.Source; got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
	if v := value(t, l, "transfer.peers"); !strings.HasPrefix(v.Source, "file ") {
		t.Errorf("transfer.peers comes from %s", v.Source)
	}
	c := tcpConfig{}
	if err := l.Instances("transports")[0].Section.Decode(&c); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(tcpConfig{Lanes: 16, Admission: 20 * time.Second, Progress: 2 * time.Second}, c); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestVariablesReachTheBackendInUse(t *testing.T) {
	environ := []string{"MC_REDIS_PASSWORD=hunter2", "MC_REDIS_USERNAME=u", "MC_REDIS_DB_INDEX=3"}
	l := mustLoad(t, `{"metadata_server": "redis://127.0.0.1"}`, environ...)
	c := redisConfig{}
	if err := l.Root().Metadata.Section.Decode(&c); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(redisConfig{URL: "redis://127.0.0.1:6379", Username: "u", Password: "hunter2", DB: 3}, c); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	// Another backend is in use: the variables are known, and do nothing.
	l = mustLoad(t, `{"metadata": {"type": "memory"}}`, environ...)
	if w := warnings(l); w != "" {
		t.Errorf("warnings:\n%s", w)
	}
	// Upstream warns about a bad index and goes on with database 0, the wrong one.
	_, msg := loadText(t, "c.json", `{"metadata_server": "redis://127.0.0.1"}`, "MC_REDIS_DB_INDEX=99")
	if want := `environment: MC_REDIS_DB_INDEX (metadata.db): needs a whole number from 0 to 15, got "99"`; msg != want {
		t.Errorf("got %s", msg)
	}
}

// A variable sets the instance with the type's name, even if the file does not have it, and creates none.
func TestVariablesAndInstances(t *testing.T) {
	l := mustLoad(t, `{"transports": {"other": {"type": "tcp"}}}`, "MC_TCP_LANES_PER_PEER=9")
	if a, b := value(t, l, "transports.tcp.lanes_per_peer"), value(t, l, "transports.other.lanes_per_peer"); a.Value != 9 || b.Value != 4 {
		t.Errorf("tcp %v, other %v", a.Value, b.Value)
	}
	l, msg := loadWith(t, Options{Schema: schemaWithVerbs(), Environ: []string{"MC_IB_PORT=2"}}, "c.json", `{}`)
	if msg != "" || instanceNames(l, "transports") != "tcp=tcp" || warnings(l) != "" {
		t.Errorf("%s %s %s", msg, instanceNames(l, "transports"), warnings(l))
	}
	_, msg = loadWith(t, Options{Schema: schemaWithVerbs(), Environ: []string{"MC_IB_PORT=0"}}, "c.json", `{"protocol": "rdma"}`)
	if want := `environment: MC_IB_PORT (transports.verbs.port): needs a whole number from 1 to 255, got "0"`; msg != want {
		t.Errorf("got %s", msg)
	}
}

func TestWarningsAboutVariables(t *testing.T) {
	for _, c := range []struct{ name, environ, want string }{
		{"nothing", "PATH=/bin;MC=1;XMC_TCP=1", ""},
		{"misspelt", "MOONCAKE_TE_METADATA_SERVER=x", "environment: MOONCAKE_TE_METADATA_SERVER: not known, ignored; did you mean MOONCAKE_TE_META_DATA_SERVER?"},
		{"misspelt MC", "MC_TCP_LANES_PER_PEERS=x", "environment: MC_TCP_LANES_PER_PEERS: not known, ignored; did you mean MC_TCP_LANES_PER_PEER?"},
		{"unknown", "MOONCAKE_COMPLETELY_DIFFERENT_THING=x", "environment: MOONCAKE_COMPLETELY_DIFFERENT_THING: not known, ignored"},
		{"upstream", "MC_MTU=1500", "environment: MC_MTU: known upstream, not used by this binary"},
		{"upstream family", "MC_MUSA_ANY=1;MC_STORE_MEMCPY=0;MOONCAKE_AWS_REGION=x", "environment: MC_MUSA_ANY: known upstream, not used by this binary\n" +
			"environment: MC_STORE_MEMCPY: known upstream, not used by this binary\nenvironment: MOONCAKE_AWS_REGION: known upstream, not used by this binary"},
		{"old name", "LOCAL_HOSTNAME=127.0.0.5", "environment: LOCAL_HOSTNAME: is an old name of MOONCAKE_LOCAL_HOSTNAME"},
		{"old and new name", "LOCAL_HOSTNAME=h;MOONCAKE_LOCAL_HOSTNAME=127.0.0.5", "environment: LOCAL_HOSTNAME: ignored, because MOONCAKE_LOCAL_HOSTNAME is set"},
		{"old name of a range", "MC_MIN_PRC_PORT=15100", "environment: MC_MIN_PRC_PORT: is an old name of MC_MIN_RPC_PORT"},
		{"present", "MC_USE_IPV6=1", ""},
		{"present but 0", "MC_USE_IPV6=0", `environment: MC_USE_IPV6: transfer.ipv6 is switched on although the value is "0": any value does that; unset the variable to switch it off`},
		{"present but empty", "MC_USE_IPV6=", `environment: MC_USE_IPV6: transfer.ipv6 is switched on although the value is "": any value does that; unset the variable to switch it off`},
		{"not active", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=/x", "environment: MOONCAKE_OFFLOAD_FILE_STORAGE_PATH (ssd_offload_path): accepted, not active yet"},
		{"config path", ConfigPathVar + "=", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := mustLoad(t, `{}`, strings.Split(c.environ, ";")...)
			if got := warnings(l); got != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
			for _, v := range l.Effective() {
				if v.Key == "transfer.ipv6" && v.Value != strings.HasPrefix(c.name, "present") {
					t.Errorf("transfer.ipv6 = %v", v.Value)
				}
				if v.Key == "local_hostname" && strings.HasPrefix(c.name, "old") && c.name != "old name of a range" && v.Value != "127.0.0.5" {
					t.Errorf("local_hostname = %v", v.Value)
				}
			}
		})
	}
}

func TestForceTCP(t *testing.T) {
	l := mustLoad(t, `{"protocol": "shm"}`, "MC_FORCE_TCP=0", "MOONCAKE_PROTOCOL=rdma")
	if v := value(t, l, "protocol"); v.Value != "tcp" || v.Source != "env MC_FORCE_TCP" {
		t.Errorf("%v from %s", v.Value, v.Source)
	}
	if want := `environment: MC_FORCE_TCP: protocol tcp is forced although the value is "0": any value does that; unset the variable to switch it off`; warnings(l) != want {
		t.Errorf("warnings: %s", warnings(l))
	}
}

func TestErrorsOfVariablesNameThem(t *testing.T) {
	for _, c := range []struct{ environ, want string }{
		{"MOONCAKE_PROTOCOL=rmda", `environment: MOONCAKE_PROTOCOL (protocol): "rmda" unknown; known here: tcp, rdma, shm; did you mean rdma?`},
		{"MOONCAKE_MASTER=h", `environment: MOONCAKE_MASTER (master_server_address): "h" has no port; write h:50051`},
		{"MOONCAKE_MASTER=<HOST>:1", `environment: MOONCAKE_MASTER (master_server_address): "<HOST>:1" contains an unexpanded <…>`},
		{"MOONCAKE_LOCAL_HOSTNAME=", `environment: MOONCAKE_LOCAL_HOSTNAME (local_hostname): local_hostname is empty; write the address under which peers reach this node, or leave the key out`},
		{"MOONCAKE_TE_META_DATA_SERVER=redis://u:hunter2@h:x", `environment: MOONCAKE_TE_META_DATA_SERVER (metadata_server): "h:x": port x is not a number from 1 to 65535`},
	} {
		if _, msg := loadText(t, "c.json", `{}`, c.environ); msg != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.environ, msg, c.want)
		}
	}
}

func TestFlags(t *testing.T) {
	flags := []Flag{{"global-segment-size", "global_segment_size", "2GB"}, {"log-level", "log.level", "debug"}, {"set", "transports.tcp.lanes_per_peer", "3"},
		{"set", "transports.shm.required", "true"}, {"set", "transfer.peers", "p, q"}, {"set", "transfer.labels", "a=b,c=d"}, {"set", "metadata.type", "memory"},
		{"set", "transfer.timeout", 9 * time.Second}, {"set", "admin.token", "hunter2"}}
	o := Options{Schema: testSchema(), Flags: flags, Environ: []string{"MOONCAKE_GLOBAL_SEGMENT_SIZE=1GB", "MC_TCP_LANES_PER_PEER=5"}}
	l, msg := loadWith(t, o, "c.json", `{"log": {"level": "warn"}, "transfer": {"peers": ["a", "b", "c"]}}`)
	if msg != "" {
		t.Fatal(msg)
	}
	for key, want := range map[string]string{
		"global_segment_size": `"2GB" flag --global-segment-size`, "log.level": `"debug" flag --log-level`, "transports.tcp.lanes_per_peer": `3 flag --set`,
		"transfer.peers": `["p","q"] flag --set`, "transfer.labels": `{"a":"b","c":"d"} flag --set`, "transfer.timeout": `"9s" flag --set`, "admin.token": `"***" flag --set`,
		"metadata.type": `"memory" flag --set`,
	} {
		if v := value(t, l, key); compact(v.Value)+" "+v.Source != want {
			t.Errorf("%s: %v %s, want %s", key, compact(v.Value), v.Source, want)
		}
	}
	if got := instanceNames(l, "transports"); got != "shm=shm tcp=tcp" || !l.Instances("transports")[0].Required {
		t.Errorf("instances %q", got)
	}
	for _, c := range []struct {
		flag Flag
		want string
	}{
		{Flag{"set", "log.levle", "x"}, `flags: --set (log.levle): unknown key log.levle; did you mean log.level?`},
		{Flag{"log-level", "log.level", "loud"}, `flags: --log-level (log.level): needs one of debug, info, warn, error, got "loud"`},
		{Flag{"set", "transports.tcp.lanes_per_peer", "17"}, `flags: --set (transports.tcp.lanes_per_peer): needs a whole number from 1 to 16, got "17"`},
		{Flag{"set", "transports.tcp.lanes_per_peer", 1.5}, `flags: --set (transports.tcp.lanes_per_peer): needs a whole number from 1 to 16, got 1.5`},
		{Flag{"set", "transfer.labels", "a"}, `flags: --set (transfer.labels): needs an object: needs name=value pairs with commas between them`},
		{Flag{"protocol", "protocol", "nvlink"}, `flags: --protocol (protocol): "nvlink" is known upstream, not in this binary; known here: tcp, rdma, shm`},
		{Flag{"set", "store.x", "1"}, `flags: --set (store.x): unknown key store.x`},
	} {
		if _, msg := loadWith(t, Options{Schema: testSchema(), Flags: []Flag{c.flag}}, "c.json", `{}`); msg != c.want {
			t.Errorf("%v:\n got %s\nwant %s", c.flag, msg, c.want)
		}
	}
}
