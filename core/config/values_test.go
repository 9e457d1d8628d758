package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/core/units"
)

// refusal returns the one message that text is refused with, without the file's name.
func refusal(t *testing.T, text string, environ ...string) string {
	t.Helper()
	_, msg := loadText(t, "c.json", text, environ...)
	return strings.TrimPrefix(msg, "c.json:")
}

func TestSizesOfFlatKeys(t *testing.T) {
	limit, err := units.MemoryLimit()
	if err != nil {
		t.Fatal(err)
	}
	for form, want := range map[string]units.Size{
		`3355443200`: 3355443200, `0`: 0, `"0"`: 0, `"2147483648"`: 2 * units.GiB, `"4gb"`: 4 * units.GiB, `"80GB"`: 80 * units.GiB,
		`"512MB"`: 512 * units.MiB, `"16 MB"`: 16 * units.MiB, `"1.5gb"`: 3 * units.GiB / 2, `4000000`: 4000000, `9223372036854775807`: 1<<63 - 1,
		`9007199254740993`: 9007199254740993, `"50%"`: units.Size(limit/2) &^ 4095,
	} {
		l := mustLoad(t, fmt.Sprintf(`{"global_segment_size": %s}`, form))
		if got := l.Root().GlobalSegment; got != want {
			t.Errorf("%s = %d, want %d", form, got, want)
		}
	}
	needs := `1:2: global_segment_size: needs a size such as 1048576 or "4GB"`
	for form, want := range map[string]string{
		`"-5"`:                `: "-5" is not a size; write bytes or a form such as "4GB"`,
		`-5`:                  `: "-5" is not a size; write bytes or a form such as "4GB"`,
		`1.5`:                 `, got 1.5`,
		`1e30`:                `, got 1e30`,
		`9223372036854775808`: `, got 9223372036854775808`,
		`"101%"`:              `: "101%" is not a share between 0% and 100%`,
		`"4XB"`:               `: "4XB" has the unknown unit "XB"; known: B, KB, MB, GB, TB, %`,
		`"GB"`:                `: "GB" is not a size; write bytes or a form such as "4GB"`,
		`""`:                  `: size is empty; write bytes or a form such as "4GB"`,
		`"1e30"`:              `: "1e30" has the unknown unit "e30"; known: B, KB, MB, GB, TB, %`,
		`true`:                `, got true`,
		`null`:                `, got null; leave the key out to get its default`,
		`"0x10"`:              `: "0x10" has the unknown unit "x10"; known: B, KB, MB, GB, TB, %`,
		`[1]`:                 `, got a list`,
		`{"a":1}`:             `, got an object`,
		`"9999999999TB"`:      `: "9999999999TB" is larger than 2^63-1 bytes`,
	} {
		got := refusal(t, fmt.Sprintf(`{"global_segment_size":%s}`, form))
		if form == `"101%"` { // the wording belongs to package units
			if !strings.Contains(got, "101%") || !strings.HasPrefix(got, needs) {
				t.Errorf("%s: %s", form, got)
			}
			continue
		}
		if got != needs+want {
			t.Errorf("%s:\n got %s\nwant %s", form, got, needs+want)
		}
	}
}

func TestFlatKeysAcceptStrings(t *testing.T) {
	for form, want := range map[string]bool{
		`true`: true, `"true"`: true, `"True"`: true, `"1"`: true, `1`: true, `"yes"`: true, `"on"`: true, `"enable"`: true,
		`false`: false, `"false"`: false, `"FALSE"`: false, `"0"`: false, `0`: false, `"no"`: false, `"off"`: false,
	} {
		l := mustLoad(t, fmt.Sprintf(`{"enable_client_http_server": %s, "client_http_port": "9301", "transfer_timeout": "1.5"}`, form))
		r := l.Root()
		if r.EnableHTTP != want || r.HTTPPort != 9301 || r.TransferTimeout != 1.5 {
			t.Errorf("%s: %v %d %v", form, r.EnableHTTP, r.HTTPPort, r.TransferTimeout)
		}
	}
	for text, want := range map[string]string{
		`{"enable_offload": ""}`:          `1:2: enable_offload: needs true or false, got ""`,
		`{"enable_offload": 2}`:           `1:2: enable_offload: needs true or false, got 2`,
		`{"client_http_port": "93 00"}`:   `1:2: client_http_port: needs a whole number from 0 to 65535, got "93 00"`,
		`{"client_http_port": "0x10"}`:    `1:2: client_http_port: needs a whole number from 0 to 65535, got "0x10"`,
		`{"client_http_port": 9300.5}`:    `1:2: client_http_port: needs a whole number from 0 to 65535, got 9300.5`,
		`{"client_http_port": 70000}`:     `1:2: client_http_port: needs a whole number from 0 to 65535, got 70000`,
		`{"max_connections": -1}`:         `1:2: max_connections: needs a whole number of at least 0, got -1`,
		`{"eviction_ratio": 1.5}`:         `1:2: eviction_ratio: needs a number from 0 to 1, got 1.5`,
		`{"tenant_id": 5}`:                `1:2: tenant_id: needs text, got 5; put it in quotes`,
		`{"mode": "embeded"}`:             `1:2: mode: needs one of embedded, standalone-store, got "embeded"`,
		`{"preferred_segment": []}`:       `1:2: preferred_segment: needs a single value, got a list`,
		`{"prefer": {"tcp": 1}}`:          `1:2: prefer: needs a list of text, got an object`,
		`{"local_hostname": {"a": 1}}`:    `1:2: local_hostname: needs text, got an object`,
		`{"prefer": [["tcp"]]}`:           `1:13: prefer[0]: needs text, got a list`,
		`{"failover_timeout_ms": "soon"}`: `1:2: failover_timeout_ms: needs a whole number of at least 0, got "soon"`,
	} {
		if got := refusal(t, text); got != want {
			t.Errorf("%s:\n got %s\nwant %s", text, got, want)
		}
	}
}

func TestSectionsAreStrict(t *testing.T) {
	l := mustLoad(t, `{"transfer": {"timeout": "1m30s", "min_port": 2000, "ipv6": true, "ratio": 0.25, "serial": 9223372036854775807, "small": 255,
		"peers": [], "labels": {"a.b": "c"}, "byte_limit": 8192}, "admin": null}`)
	got := testSchema().Sections[0].Defaults.(transferConfig)
	if err := l.Section("transfer").Decode(&got); err != nil {
		t.Fatal(err)
	}
	want := transferConfig{Timeout: 90 * time.Second, Connect: 5 * time.Second, PortLow: 2000, PortHigh: 17000, IPv6: true, Ratio: 0.25,
		Serial: 1<<63 - 1, Small: 255, Peers: []string{}, Labels: map[string]string{"a.b": "c"}, ByteLimit: 8192}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for text, want := range map[string]string{
		`{"transfer":{"min_port":"2000"}}`:  `1:14: transfer.min_port: needs a whole number from 1024 to 65535, got "2000"`,
		`{"transfer":{"ipv6":"true"}}`:      `1:14: transfer.ipv6: needs true or false, got "true"`,
		`{"transfer":{"ipv6":1}}`:           `1:14: transfer.ipv6: needs true or false, got 1`,
		`{"transfer":{"timeout":30}}`:       `1:14: transfer.timeout: needs a duration such as "10s", of at least 5s, got 30`,
		`{"transfer":{"timeout":"30"}}`:     `1:14: transfer.timeout: needs a duration such as "10s", of at least 5s, got "30"`,
		`{"transfer":{"min_port":1500.0}}`:  `1:14: transfer.min_port: needs a whole number from 1024 to 65535, got 1500.0`,
		`{"transfer":{"peers":"a"}}`:        `1:14: transfer.peers: needs a list of text, got "a"`,
		`{"transfer":{"labels":["a"]}}`:     `1:14: transfer.labels: needs an object, got a list`,
		`{"transfer":{"Timeout":"30s"}}`:    `1:14: transfer.Timeout: unknown key Timeout; did you mean timeout?`,
		`{"transfer":{"byte_limit":"1KB"}}`: `1:14: transfer.byte_limit: needs a size such as 1048576 or "4GB", from 4KB to 1GB, got "1KB"`,
		`{"transfer":{"peers":["<NAME>"]}}`: `1:23: transfer.peers[0]: "<NAME>" contains an unexpanded <…>`,
		`{"log":{"file":"/x/${POD}.log"}}`:  `1:9: log.file: "/x/${POD}.log" contains an unexpanded ${…}`,
	} {
		if got := refusal(t, text); got != want {
			t.Errorf("%s:\n got %s\nwant %s", text, got, want)
		}
	}
}

// The defaults handed to every build share lists and maps; a decode must not write into them.
func TestDecodeDoesNotTouchSharedDefaults(t *testing.T) {
	def := testSchema().Sections[0].Defaults.(transferConfig)
	l := mustLoad(t, `{"transfer": {"peers": ["z"], "labels": {"q": "r"}}}`)
	got := def
	if err := l.Section("transfer").Decode(&got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"a", "b"}, def.Peers); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]string{"x": "y"}, def.Labels); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"z"}, got.Peers); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]string{"q": "r"}, got.Labels); d != "" {
		t.Error(d)
	}
}

// A second decode of the same section, as a build after the check does, gives the same.
func TestDecodeIsRepeatable(t *testing.T) {
	l := mustLoad(t, `{"transports": {"tcp": {"lanes_per_peer": 7}}}`)
	for range 2 {
		c := tcpConfig{Lanes: 4, Pool: true}
		if err := l.Instances("transports")[0].Section.Decode(&c); err != nil || c.Lanes != 7 || !c.Pool {
			t.Fatalf("%+v, %v", c, err)
		}
	}
}

func TestSectionErrorsCarryPositions(t *testing.T) {
	l := mustLoad(t, `{"transports": {"tcp": {"lanes_per_peer": 7}}}`)
	var other struct {
		Lane int `koanf:"lane_per_peer"`
	}
	err := l.Instances("transports")[0].Section.Decode(&other)
	if es := (*Errors)(nil); !errors.As(err, &es) || !strings.HasSuffix(err.Error(), "mooncake.json:1:25: transports.tcp.lanes_per_peer: unknown key lanes_per_peer; did you mean lane_per_peer?") {
		t.Fatal(err)
	}
}

func TestDefaultsAreWhatAnEmptyFileMeans(t *testing.T) {
	l := mustLoad(t, `{}`)
	want := defaultRoot()
	want.Host, want.Bind, want.Prefer = "localhost", "127.0.0.1", []string{"tcp"}
	if d := cmp.Diff(want, l.Root()); d != "" {
		t.Errorf("root (-want +got):\n%s", d)
	}
	none, err := Load(Options{Schema: testSchema()})
	if err != nil {
		t.Fatal(err)
	}
	if live, restart := Diff(none, l); len(live)+len(restart) > 0 {
		t.Errorf("no file differs from {}: %v %v", live, restart)
	}
	for _, s := range testSchema().Sections {
		got := reflect.New(reflect.TypeOf(s.Defaults))
		got.Elem().Set(reflect.ValueOf(s.Defaults))
		if err := l.Section(s.Key).Decode(got.Interface()); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(s.Defaults, got.Elem().Interface()); d != "" {
			t.Errorf("%s (-want +got):\n%s", s.Key, d)
		}
	}
	for _, v := range l.Effective() {
		if v.Source != "default" {
			t.Errorf("%s comes from %q", v.Key, v.Source)
		}
	}
	if w := warnings(l); w != "" {
		t.Errorf("warnings:\n%s", w)
	}
}

// Every key is optional: with one left out of a complete file, its effective value is its documented
// default and nothing else changes.
func TestEveryKeyCanBeLeftOut(t *testing.T) {
	schema := testSchema()
	whole := map[string]any{}
	var keys []KeyInfo
	for _, k := range schema.Keys() {
		if k.Note != "" || k.Part != "" && k.Part != "tcp" || k.Key == "metadata_backend" || strings.HasPrefix(k.Key, "transports.tcp.type") ||
			k.Key == "transports.tcp.enabled" || k.Key == "transports.tcp.required" {
			continue
		}
		v, ok := sampleValues[k.Key]
		if !ok {
			t.Fatalf("no sample value for %s", k.Key)
		}
		keys = append(keys, k)
		put(whole, k.Key, v)
	}
	if len(keys) < 25 {
		t.Fatalf("only %d keys", len(keys))
	}
	full := mustLoad(t, toJSON(t, whole))
	for _, k := range keys {
		part := map[string]any{}
		for _, other := range keys {
			if other.Key != k.Key {
				put(part, other.Key, sampleValues[other.Key])
			}
		}
		l, msg := loadText(t, "mooncake.json", toJSON(t, part))
		if msg != "" {
			t.Errorf("without %s: %s", k.Key, msg)
			continue
		}
		got := value(t, l, k.Key)
		want := k.Default
		if k.Key == "prefer" {
			want = []any{"shm", "tcp"} // computed from the protocol
		}
		if d := cmp.Diff(toJSON(t, want), toJSON(t, got.Value)); d != "" && !k.Secret {
			t.Errorf("without %s the value is not the default (-want +got): %s", k.Key, d)
		}
		if got.Source != "default" && k.Key != "global_segment_size" {
			t.Errorf("without %s its source is %s", k.Key, got.Source)
		}
		live, restart := Diff(full, l)
		for _, c := range append(live, restart...) {
			implied := k.Key == "metadata_server" && strings.HasPrefix(c.Key, "metadata.") || k.Key == "protocol" && c.Key == "transports.shm.type"
			if c.Key != k.Key && !implied {
				t.Errorf("without %s, %s changed too: %v -> %v", k.Key, c.Key, c.Old, c.New)
			}
		}
	}
}

var sampleValues = map[string]any{
	"local_hostname": "127.0.0.2", "metadata_server": "http://127.0.0.1:1/m", "master_server_address": "127.0.0.1:2", "global_segment_size": "2GB",
	"local_buffer_size": "3GB", "tenant_id": "t", "protocol": "shm", "device_name": "mlx5_0", "bind_address": "127.0.0.1", "advertise_host": "127.0.0.3", "prefer": []any{"tcp"}, "mode": "embedded",
	"transfer.timeout": "7s", "transfer.connect_timeout": "8s", "transfer.min_port": 2000, "transfer.max_port": 60000, "transfer.ipv6": true,
	"transfer.ratio": 0.5, "transfer.serial": 9, "transfer.small": 10, "transfer.peers": []any{"q"}, "transfer.labels": map[string]any{"l": "m"},
	"transfer.byte_limit": "1MB", "admin.listen": "127.0.0.1:3", "admin.token": "t", "log.level": "debug", "log.file": "/l", "metadata_http.listen": "127.0.0.1:4",
	"transports.tcp.lanes_per_peer": 2, "transports.tcp.admission_timeout": "2s", "transports.tcp.progress_timeout": "3s", "transports.tcp.connection_pool": false,
}

// The same for the keys of every metadata backend.
func TestEveryKeyOfABackendCanBeLeftOut(t *testing.T) {
	given := map[string]any{"url": "", "endpoints": []any{"127.0.0.1:1"}, "password": "p", "timeout": "9s", "tls.ca": "/ca", "tls.key": "/k", "username": "u", "db": 3}
	n := 0
	for _, leave := range testSchema().Keys() {
		if leave.Section != "metadata" || leave.Key == "metadata.type" {
			continue
		}
		n++
		file := map[string]any{}
		put(file, "metadata.type", leave.Part)
		for _, k := range testSchema().Keys() {
			name := strings.TrimPrefix(k.Key, "metadata.")
			if k.Part == leave.Part && k.Key != leave.Key && name != "type" {
				put(file, k.Key, given[name])
			}
		}
		v := value(t, mustLoad(t, toJSON(t, file)), leave.Key)
		if d := cmp.Diff(toJSON(t, leave.Default), toJSON(t, v.Value)); d != "" || v.Source != "default" {
			t.Errorf("%s: without %s (-want +got): %s, source %s", leave.Part, leave.Key, d, v.Source)
		}
	}
	if n < 10 {
		t.Errorf("only %d keys", n)
	}
}

func TestValidateErrorsAreTakenApart(t *testing.T) {
	err := errors.Join(errors.New("lanes_per_peer: is odd"), fmt.Errorf("wrapped: %w", errors.New("something")), errors.Join(errors.New("ca: missing")),
		errors.New("ca, lanes_per_peer: contradict"), errors.New("ca and lanes_per_peer: contradict"), errors.New("ca and other: contradict"))
	l := &loading{Loaded: &Loaded{at: map[string]source{join("transports", "tcp", "lanes_per_peer"): {layer: fromFile, name: "f", line: 3, col: 4}}}}
	l.failAll(join("transports", "tcp"), err, []field{{path: "lanes_per_peer"}, {path: "ca"}})
	var got []string
	for _, p := range l.errors {
		got = append(got, p.String())
	}
	want := []string{"f:3:4: transports.tcp.lanes_per_peer: is odd", "transports.tcp: wrapped: something", "transports.tcp.ca: missing",
		"f:3:4: transports.tcp.lanes_per_peer: ca, lanes_per_peer: contradict", "f:3:4: transports.tcp.lanes_per_peer: ca and lanes_per_peer: contradict",
		"transports.tcp: ca and other: contradict"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestBadTagsPanic(t *testing.T) {
	for name, c := range map[string]any{
		"range without dots": struct {
			A int `koanf:"a" range:"1-2"`
		}{},
		"range of text": struct {
			A string `koanf:"a" range:"1..2"`
		}{},
		"range in the wrong unit": struct {
			A time.Duration `koanf:"a" range:"1..2"`
		}{},
		"unknown unit": struct {
			A time.Duration `koanf:"a" envunit:"x"`
		}{},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			fieldsOf(c)
		})
	}
}

var _ module.Section = (*section)(nil)
