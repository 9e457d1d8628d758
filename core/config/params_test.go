package config

import (
	"strings"
	"testing"
)

func TestParams(t *testing.T) {
	type conf struct {
		K      int     `koanf:"k" range:"2..4"`
		Share  float64 `koanf:"share"`
		Module string  `koanf:"module"`
		On     bool    `koanf:"on"`
	}
	for _, c := range []struct{ text, name, want string }{
		{"lru", "lru", ""},
		{" lru-k:k=3", "lru-k", "k=3"},
		{"lru-k:k=3,share=0.5", "lru-k", "k=3,share=0.5"},
		{"wasm:module=/etc/a,b.wasm,on=true", "wasm", "module=/etc/a,b.wasm,on=true"},
		{"wasm:module=/x:y=z", "wasm", "module=/x:y=z"},
	} {
		name, p, err := ParseParams(c.text)
		if err != nil || name != c.name || p.String() != c.want {
			t.Errorf("%q: %q, %q, %v", c.text, name, p, err)
		}
		if err := p.Decode(&conf{}); err != nil {
			t.Errorf("%q: %v", c.text, err)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"", "a name is missing"}, {":k=3", "a name is missing"}, {"lru:k", `"k" is not key=value`}, {"lru:=3", `"=3" is not key=value`}, {"lru:k=2,k=3", "given twice"},
	} {
		if _, _, err := ParseParams(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"x:k=9", "k: needs a whole number from 2 to 4"}, {"x:k=a", "k: "}, {"x:shar=1", "did you mean share?"},
	} {
		_, p, err := ParseParams(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Decode(&conf{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
}

func FuzzParams(f *testing.F) {
	f.Add("lru-k:k=3,share=0.5")
	f.Fuzz(func(t *testing.T, text string) {
		name, p, err := ParseParams(text)
		if err != nil {
			return
		}
		again, q, err := ParseParams(name + ":" + p.String())
		if len(p) > 0 && (err != nil || again != name || len(q) != len(p)) {
			t.Errorf("%q: %q %v, then %q %v, %v", text, name, p, again, q, err)
		}
	})
}
