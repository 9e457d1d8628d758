package device

import (
	"net/netip"
	"strings"
	"testing"
)

func TestGID(t *testing.T) {
	const s = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01"
	g, err := ParseGID(s)
	if err != nil || g.String() != s {
		t.Fatalf("ParseGID(%q) = %v, %v", s, g, err)
	}
	if a, ok := g.IPv4(); !ok || a != netip.MustParseAddr("10.0.0.1") || g.LinkLocal() || g.IsZero() {
		t.Fatalf("%v: IPv4 %v %v, link local %v", g, a, ok, g.LinkLocal())
	}
	g, err = ParseGID("FE:80:0:0:0:0:0:0:2:0:0:0:0:0:0:1")
	if err != nil || !g.LinkLocal() {
		t.Fatalf("link local in short form: %v, %v", g, err)
	}
	if _, ok := g.IPv4(); ok {
		t.Error("a link-local GID is no IPv4 address")
	}
	for _, bad := range []string{"", "::", s + ":00", s[3:], strings.Replace(s, "0a", "100", 1), strings.Replace(s, "0a", "", 1),
		strings.Replace(s, "0a", "0g", 1), strings.Replace(s, "0a", "+a", 1), strings.Replace(s, "0a", " a", 1), s + " "} {
		if g, err := ParseGID(bad); err == nil {
			t.Errorf("ParseGID(%q) = %v", bad, g)
		}
	}
}

func FuzzParseGID(f *testing.F) {
	f.Add("fe:80:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01")
	f.Add("::1")
	f.Fuzz(func(t *testing.T, s string) {
		g, err := ParseGID(s)
		if err != nil {
			return
		}
		if h, err := ParseGID(g.String()); err != nil || h != g {
			t.Fatalf("%q → %v → %v, %v", s, g, h, err)
		}
	})
}

func TestMTU(t *testing.T) {
	for n, want := range map[int]MTU{0: 0, 255: 0, 256: 1, 512: 2, 1023: 2, 1024: 3, 1500: 3, 4096: 5, 9000: 5} {
		if m := MTUOf(n); m != want {
			t.Errorf("MTUOf(%d) = %d, want %d", n, m, want)
		}
	}
	if (MTU(0)).Bytes() != 0 || MTU(6).Bytes() != 0 || MTU(5).Bytes() != 4096 {
		t.Error("MTU.Bytes")
	}
}

func TestStatus(t *testing.T) {
	if s := StatusRetryExceeded.String(); s != "transport retries exceeded" {
		t.Error(s)
	}
	if s := Status(200).String(); s != "status 200" {
		t.Error(s)
	}
	for i := range Statuses {
		if statusNames[i] == "" {
			t.Errorf("status %d has no name", i)
		}
	}
}
