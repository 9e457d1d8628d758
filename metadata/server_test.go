package metadata

import (
	"strings"
	"testing"
)

func TestServer(t *testing.T) {
	for in, want := range map[string][2]string{
		"P2PHANDSHAKE":               {P2P, ""},
		"etcd://h:2379":              {"etcd", "etcd://h:2379"},
		"ETCD://a:1;b:2":             {"etcd", "ETCD://a:1;b:2"},
		"192.0.2.1:2379,192.0.2.2:1": {"etcd", "192.0.2.1:2379,192.0.2.2:1"},
		" etcd://h:1 ":               {"etcd", "etcd://h:1"},
		"redis://u:p%40ss@h:6379/3":  {"redis", "redis://u:p%40ss@h:6379/3"},
		"rediss://h":                 {"redis", "rediss://h"},
		"http://h:8080/metadata":     {"http", "http://h:8080/metadata"},
		"https://h/metadata":         {"https", "https://h/metadata"},
		"memory://":                  {"memory", "memory://"},
		"consul://h":                 {"consul", "consul://h"},
	} {
		typ, url, err := Server(in)
		if err != nil || typ != want[0] || url != want[1] {
			t.Errorf("Server(%q) = %q, %q, %v; want %q", in, typ, url, err, want)
		}
	}
	for in, want := range map[string]string{
		"":              "is empty",
		"  ":            "is empty",
		"p2phandshake":  "did you mean P2PHANDSHAKE?",
		"P2PHANDSHAKE ": "did you mean P2PHANDSHAKE?",
		"etcd://":       "no address",
		"://x":          "no scheme",
	} {
		if _, _, err := Server(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Server(%q): %v; want %q", in, err, want)
		}
	}
}

func FuzzServer(f *testing.F) {
	for _, s := range []string{"", P2P, "p2phandshake", "etcd://a,b", "://", "http://h", "a:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		typ, url, err := Server(s)
		if err == nil && typ == "" || err == nil && typ != P2P && url == "" {
			t.Fatalf("Server(%q) = %q, %q without an error", s, typ, url)
		}
	})
}
