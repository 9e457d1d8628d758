package transport

import (
	"errors"
	"strings"
	"testing"

	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
)

func TestParsePath(t *testing.T) {
	many := map[string]string{}
	for range 65 {
		many[strings.Repeat("k", len(many)+1)] = ""
	}
	for name, c := range map[string]struct {
		p  *pluginv1.Path
		ok bool
	}{
		"none":              {nil, false},
		"no type":           {&pluginv1.Path{Host: "h"}, false},
		"type only":         {&pluginv1.Path{Type: "mover"}, true},
		"long type":         {&pluginv1.Path{Type: strings.Repeat("t", 65)}, false},
		"line break":        {&pluginv1.Path{Type: "a\nb"}, false},
		"port":              {&pluginv1.Path{Type: "t", Host: "::1", Port: 65535}, true},
		"no port":           {&pluginv1.Path{Type: "t", Port: 65536}, false},
		"long attribute":    {&pluginv1.Path{Type: "t", Attributes: map[string]string{"k": strings.Repeat("v", 1024)}}, false},
		"bytes":             {&pluginv1.Path{Type: "t", Attributes: map[string]string{"k": "\xff"}}, false},
		"many attributes":   {&pluginv1.Path{Type: "t", Attributes: many}, false},
		"a whole attribute": {&pluginv1.Path{Type: "t", Attributes: map[string]string{"k": strings.Repeat("v", 1023)}}, true},
	} {
		if _, err := parsePath(c.p); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Reach is decided by what the plugin said at its start.
func TestReach(t *testing.T) {
	r, _, node, _, _ := startRude(t, func(r *rude) { r.must = []string{"a"} })
	_ = r
	d := func(paths ...transports.Path) *transports.Descriptor {
		return &transports.Descriptor{Name: "x", Agent: &transports.AgentExt{V: 1, Paths: paths}}
	}
	for name, c := range map[string]struct {
		d  *transports.Descriptor
		ok bool
	}{
		"no extension":    {&transports.Descriptor{Name: "x"}, false},
		"no path":         {d(), false},
		"another type":    {d(transports.Path{Type: "tcp", Attr: map[string]string{"a": "1"}}), false},
		"the same":        {d(transports.Path{Type: "tcp"}, transports.Path{Type: "rude", Attr: map[string]string{"a": "1", "b": "2"}}), true},
		"other attribute": {d(transports.Path{Type: "rude", Attr: map[string]string{"a": "2"}}), false},
		"no attribute":    {d(transports.Path{Type: "rude"}), false},
	} {
		if err := node.T.Reach(c.d); (err == nil) != c.ok || err != nil && !errors.Is(err, transports.ErrUnreachable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Before the first process is ready there is no path, and nothing is described.
func TestNotStarted(t *testing.T) {
	tr, _ := newTransport(t)
	var d transports.Descriptor
	tr.Describe(&d)
	if d.Agent != nil {
		t.Errorf("described: %+v", d.Agent)
	}
	if err := tr.Reach(&d); !errors.Is(err, transports.ErrUnreachable) {
		t.Errorf("Reach: %v", err)
	}
	if _, err := tr.Dial(t.Context(), &d); !errors.Is(err, transports.ErrUnreachable) {
		t.Errorf("Dial: %v", err)
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}
