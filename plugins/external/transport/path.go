package transport

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"
	"unicode/utf8"

	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/plugins/proto/v1"
	"github.com/mooncake-agent/mooncake/transports"
)

// What the protocol allows in a path.
const (
	maxType      = 64
	maxAttrs     = 64
	maxAttrBytes = 1024
)

// ownPath is how peers reach this engine, as the plugin said at its start. It is immutable, so that Describe and
// Reach need no call.
type ownPath struct {
	transports.Path
	mustMatch []string
}

// parsePath checks what a plugin or a peer says.
func parsePath(p *pluginv1.Path) (transports.Path, error) {
	out := transports.Path{Type: p.GetType(), Host: p.GetHost(), Port: int(p.GetPort()), Attr: maps.Clone(p.GetAttributes())}
	if n := len(out.Type); n == 0 || n > maxType || !printable(out.Type) {
		return out, fmt.Errorf("path: type %q: 1 to %d printable bytes are wanted", out.Type, maxType)
	}
	if len(out.Host) > maxAttrBytes || !printable(out.Host) || p.GetPort() > 65535 {
		return out, fmt.Errorf("path: host %.100q, port %d make no address", out.Host, p.GetPort())
	}
	if len(out.Attr) > maxAttrs {
		return out, fmt.Errorf("path: %d attributes, %d are allowed", len(out.Attr), maxAttrs)
	}
	for k, v := range out.Attr {
		if len(k)+len(v) > maxAttrBytes || !utf8.ValidString(k) || !utf8.ValidString(v) {
			return out, fmt.Errorf("path: attribute %.100q: %d bytes of text are allowed", k, maxAttrBytes)
		}
	}
	return out, nil
}

func printable(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

func (p *ownPath) equal(o *ownPath) bool {
	return p.Type == o.Type && p.Host == o.Host && p.Port == o.Port && maps.Equal(p.Attr, o.Attr) && slices.Equal(p.mustMatch, o.mustMatch)
}

func protoPath(p *transports.Path) *pluginv1.Path {
	return &pluginv1.Path{Type: p.Type, Host: p.Host, Port: uint32(p.Port), Attributes: p.Attr}
}

// Describe implements transports.Transport. It says what the plugin said at its last start, also while the plugin is
// being started again: peers that try meanwhile take another path.
func (t *Transport) Describe(d *transports.Descriptor) {
	t.mu.Lock()
	path, h := t.path, t.host
	t.mu.Unlock()
	if path == nil {
		return
	}
	if d.Agent == nil {
		d.Agent = &transports.AgentExt{V: 1, Instance: h.Identity().Instance}
	}
	p := path.Path
	p.Attr = maps.Clone(p.Attr)
	for i := range d.Agent.Paths {
		if d.Agent.Paths[i].Type == p.Type {
			d.Agent.Paths[i] = p
			return
		}
	}
	d.Agent.Paths = append(d.Agent.Paths, p)
}

// Reach implements transports.Transport.
func (t *Transport) Reach(d *transports.Descriptor) error {
	_, err := t.match(d)
	return err
}

// match finds the path in a peer's descriptor that the plugin can take.
func (t *Transport) match(d *transports.Descriptor) (*transports.Path, error) {
	t.mu.Lock()
	own := t.path
	t.mu.Unlock()
	none := func(format string, args ...any) (*transports.Path, error) {
		return nil, t.errorf("segment %q: %s: %w", d.Name, fmt.Sprintf(format, args...), transports.ErrUnreachable)
	}
	if own == nil {
		return none("the plugin was never ready")
	}
	if d.Agent == nil {
		return none("it offers no path of type %s", own.Type)
	}
	for i := range d.Agent.Paths {
		p := &d.Agent.Paths[i]
		if p.Type != own.Type {
			continue
		}
		for _, k := range own.mustMatch {
			if v, ok := p.Attr[k]; !ok || v != own.Attr[k] {
				return none("its %s is %.100q, ours is %.100q", k, v, own.Attr[k])
			}
		}
		return p, nil
	}
	return none("it offers no path of type %s", own.Type)
}

// featureListen: the plugin wants a listener of the host's.
const featureListen = "listen"

// listener is a socket of the node's port range, which the host keeps open for all processes of the plugin.
type listener struct {
	addr string
	f    *os.File
}

// listen opens the listener once.
func (t *Transport) listen(ctx context.Context) (*listener, error) {
	t.mu.Lock()
	l, h := t.listener, t.host
	t.mu.Unlock()
	if l != nil {
		return l, nil
	}
	ln, err := h.Listen(ctx, units.PortRange{})
	if err != nil {
		return nil, err
	}
	defer ln.Close() // its duplicate stays
	f, ok := ln.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, fmt.Errorf("listen: %T has no descriptor to hand over", ln)
	}
	l = &listener{addr: ln.Addr().String()}
	if l.f, err = f.File(); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		l.close()
		return nil, transports.ErrClosed
	}
	t.listener = l
	return l, nil
}

func (l *listener) give(ctx context.Context, p Process) error {
	raw, err := l.f.SyscallConn()
	if err != nil {
		return err
	}
	return withFD(raw, func(fd int) error {
		return p.Give(ctx, &pluginv1.SideRequest{What: &pluginv1.SideRequest_Listener{Listener: &pluginv1.Listener{Name: "default", Address: l.addr}}}, fd)
	})
}

// withFD calls f with a descriptor that is not closed meanwhile.
func withFD(raw syscall.RawConn, f func(fd int) error) (err error) {
	if e := raw.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
		return e
	}
	return err
}

func (l *listener) close() { l.f.Close() }
