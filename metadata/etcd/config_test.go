package etcd

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

func TestConfig(t *testing.T) {
	type want struct {
		endpoints          string
		username, password string
		err                string
	}
	for name, c := range map[string]struct {
		config Config
		want   want
	}{
		"scheme":                {Config{URL: "etcd://192.0.2.10:2379"}, want{endpoints: "192.0.2.10:2379"}},
		"scheme in capitals":    {Config{URL: "ETCD://h:1"}, want{endpoints: "h:1"}},
		"bare":                  {Config{URL: "192.0.2.2:2379,192.0.2.3:2379"}, want{endpoints: "192.0.2.2:2379 192.0.2.3:2379"}},
		"semicolons":            {Config{URL: "etcd://a:12379;b:22379;c:32379"}, want{endpoints: "a:12379 b:22379 c:32379"}},
		"default port":          {Config{URL: "etcd://metadata"}, want{endpoints: "metadata:2379"}},
		"empty elements":        {Config{URL: "etcd://a:1,,b:1; ,a:1"}, want{endpoints: "a:1 b:1"}},
		"ipv6":                  {Config{URL: "etcd://[::1]:2379,2001:db8::1"}, want{endpoints: "[::1]:2379 [2001:db8::1]:2379"}},
		"trailing slash":        {Config{URL: "etcd://h:1/"}, want{endpoints: "h:1"}},
		"list":                  {Config{Endpoints: []string{"a", "http://b:2"}}, want{endpoints: "a:2379 b:2"}},
		"https":                 {Config{Endpoints: []string{"https://a", "https://b:2/"}}, want{endpoints: "https://a:2379 https://b:2"}},
		"both, same":            {Config{URL: "etcd://b:1,a:1", Endpoints: []string{"a:1", "b:1"}}, want{endpoints: "b:1 a:1"}},
		"user in the url":       {Config{URL: "etcd://u%3A:p%40ss@h:1"}, want{"h:1", "u:", "p@ss", ""}},
		"user in keys":          {Config{URL: "h:1", Username: "u", Password: "p"}, want{"h:1", "u", "p", ""}},
		"user in both":          {Config{URL: "etcd://u:p@h:1", Username: "u", Password: "p"}, want{"h:1", "u", "p", ""}},
		"both, different":       {Config{URL: "etcd://a:1", Endpoints: []string{"a:2"}}, want{err: "url and endpoints: both are given and they differ: a:1 and a:2"}},
		"users differ":          {Config{URL: "etcd://u:p@h:1", Username: "v", Password: "p"}, want{err: "url and username"}},
		"passwords differ":      {Config{URL: "etcd://u:hunter1@h:1", Username: "u", Password: "hunter2"}, want{err: "url and password"}},
		"user alone":            {Config{URL: "h:1", Username: "u"}, want{err: "belong together"}},
		"nothing":               {Config{}, want{err: "endpoints: none given"}},
		"no endpoint":           {Config{URL: "etcd://"}, want{err: "url: no endpoint"}},
		"another scheme":        {Config{URL: "redis://h:1"}, want{err: "not redis://"}},
		"no port after colon":   {Config{URL: "etcd://host:"}, want{err: "no port"}},
		"no host":               {Config{URL: "etcd://:2379"}, want{err: "no host"}},
		"port out of range":     {Config{URL: "etcd://host:99999"}, want{err: "99999"}},
		"template left in":      {Config{URL: "etcd://{{ ETCD_IP }}:2379"}, want{err: "host name"}},
		"path":                  {Config{URL: "etcd://h:2379/metadata"}, want{err: "h:2379/metadata"}},
		"bad escape":            {Config{URL: "etcd://u:hunter2%zz@h:1"}, want{err: "%XX"}},
		"http and https":        {Config{Endpoints: []string{"https://a", "b"}}, want{err: "some are https"}},
		"certificate, no key":   {Config{URL: "h", TLS: remote.TLS{Cert: "c.pem"}}, want{err: "cert and key"}},
		"endpoints list is bad": {Config{Endpoints: []string{"a b"}}, want{err: "endpoints: "}},
	} {
		err := c.config.Validate()
		if (err == nil) != (c.want.err == "") {
			t.Errorf("%s: %v; want %q", name, err, c.want.err)
			continue
		}
		if err != nil {
			if !strings.Contains(err.Error(), c.want.err) || strings.Contains(err.Error(), "hunter") {
				t.Errorf("%s: %v; want %q and no secret", name, err, c.want.err)
			}
			continue
		}
		s, _ := c.config.resolve()
		got := want{endpoints: strings.Join(s.endpoints, " "), username: s.username, password: s.password}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// Pings without a stream draw too_many_pings from etcd; so do pings more often than its default minimum of
// 5 s. Without pings a hung member would hold a watch for ever.
func TestPings(t *testing.T) {
	b := open(t, func(c *Config) { c.URL = "h" })
	got := b.clientConfig("h:2379")
	if got.PermitWithoutStream || got.DialKeepAliveTime < 10*time.Second || got.DialKeepAliveTime+got.DialKeepAliveTimeout > 15*time.Second {
		t.Fatalf("%+v", got)
	}
	if got.MaxCallSendMsgSize != 32<<20 || got.MaxCallRecvMsgSize != 32<<20 || got.DialTimeout != 5*time.Second {
		t.Fatalf("%+v", got)
	}
}

func TestEmptySectionIsTheDefault(t *testing.T) {
	if d := defaultConfig(); !reflect.DeepEqual(d, Config{DialTimeout: 5 * time.Second, Timeout: 5 * time.Second, LeaseTTL: 10 * time.Second}) {
		t.Fatalf("%+v", d)
	}
}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"etcd://a:1,b;c", "u:p@h", "etcd://u%40:p%zz@[::1]:2", "https://h", "etcd://", ",;", "etcd://etcd://h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseURL(s)
		if err != nil {
			return
		}
		if len(got.endpoints) == 0 {
			t.Fatalf("parseURL(%q): no endpoints and no error", s)
		}
		again, err := parseEndpoints(strings.Join(got.endpoints, ";"))
		if err != nil || !reflect.DeepEqual(again, got.endpoints) {
			t.Fatalf("parseURL(%q): %q is not stable: %q, %v", s, got.endpoints, again, err)
		}
	})
}
