package redis

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

func TestConfig(t *testing.T) {
	type want struct {
		addr, username, password string
		db                       int
		secure                   bool
		err                      string
	}
	for name, c := range map[string]struct {
		config Config
		want   want
	}{
		"full url":          {Config{URL: "redis://u:p%40ss@h:6379/3"}, want{"h:6379", "u", "p@ss", 3, false, ""}},
		"capitals":          {Config{URL: "REDIS://h:1"}, want{addr: "h:1"}},
		"default port":      {Config{URL: "redis://h"}, want{addr: "h:6379"}},
		"slash":             {Config{URL: "redis://h/"}, want{addr: "h:6379"}},
		"db 0":              {Config{URL: "redis://10.0.0.10:6379/0"}, want{addr: "10.0.0.10:6379"}},
		"tls":               {Config{URL: "rediss://h"}, want{addr: "h:6379", secure: true}},
		"bare":              {Config{URL: "h:7/2"}, want{addr: "h:7", db: 2}},
		"ipv6":              {Config{URL: "redis://:pw@[2001:db8::1]:7"}, want{addr: "[2001:db8::1]:7", password: "pw"}},
		"@ in the password": {Config{URL: "redis://u:p@ss@h"}, want{addr: "h:6379", username: "u", password: "p@ss"}},
		"/ in the password": {Config{URL: "redis://u:p/1@h/2"}, want{addr: "h:6379", username: "u", password: "p/1", db: 2}},
		"address":           {Config{Address: "::1", DB: 4, Password: "p"}, want{addr: "[::1]:6379", password: "p", db: 4}},
		"both, same":        {Config{URL: "redis://u:p@h/1", Address: "h:6379", Username: "u", Password: "p", DB: 1}, want{"h:6379", "u", "p", 1, false, ""}},
		"completed by keys": {Config{URL: "redis://h", Username: "u", Password: "p", DB: 1}, want{"h:6379", "u", "p", 1, false, ""}},

		"address differs":   {Config{URL: "redis://h:1", Address: "h:2"}, want{err: `url and address: both are given and they differ: "h:1" and "h:2"`}},
		"db differs":        {Config{URL: "redis://h/0", DB: 1}, want{err: `url and db`}},
		"user differs":      {Config{URL: "redis://u:p@h", Username: "v"}, want{err: "url and username"}},
		"password differs":  {Config{URL: "redis://u:hunter1@h", Password: "hunter2"}, want{err: "url and password"}},
		"user alone":        {Config{URL: "redis://u@h"}, want{err: "username: given without password"}},
		"nothing":           {Config{}, want{err: "address: none given"}},
		"no host":           {Config{URL: "redis://"}, want{err: "no host"}},
		"bad db":            {Config{URL: "redis://h/x"}, want{err: "not the number of a database"}},
		"negative db":       {Config{URL: "redis://h/-1"}, want{err: "not the number of a database"}},
		"negative db key":   {Config{Address: "h", DB: -1}, want{err: "db: -1"}},
		"two parts":         {Config{URL: "redis://h/1/2"}, want{err: "not the number of a database"}},
		"several servers":   {Config{URL: "redis://a:1,b:2"}, want{err: "Redis Cluster"}},
		"scheme":            {Config{URL: "unix:///hunter2"}, want{err: "neither redis:// nor rediss://"}},
		"port":              {Config{URL: "redis://u:hunter2@h:99999"}, want{err: "99999"}},
		"bad escape":        {Config{URL: "redis://u:hunter2%zz@h"}, want{err: "%XX"}},
		"cert without key":  {Config{Address: "h", TLS: remote.TLS{Cert: "c"}}, want{err: "cert and key"}},
		"address with path": {Config{Address: "h/1"}, want{err: "address: "}},
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
		if got := (want{s.addr, s.username, s.password, s.db, s.secure, ""}); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestEmptySectionIsTheDefault(t *testing.T) {
	if d := defaultConfig(); !reflect.DeepEqual(d, Config{DialTimeout: 5 * time.Second, Timeout: 5 * time.Second, LeaseTTL: 10 * time.Second}) {
		t.Fatalf("%+v", d)
	}
}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"redis://u:p%40ss@h:6379/3", "rediss://[::1]/0", "h", "redis://a,b", "://", "redis://@/", "redis://u:%zz@h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseURL(s)
		if err != nil {
			return
		}
		again, err := parseURL(got.addr + "/" + got.dbText)
		if err != nil || again.addr != got.addr || again.db != got.db || got.db < 0 {
			t.Fatalf("parseURL(%q) = %+v is not stable: %+v, %v", s, got, again, err)
		}
	})
}
