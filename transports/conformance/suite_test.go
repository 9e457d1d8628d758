package conformance

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-agent/mooncake/internal/conform"
	"github.com/mooncake-agent/mooncake/transports"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// copiers are those that were started, by segment name.
var copiers sync.Map

// copier moves bytes inside this process, each op before Submit returns. It is the plainest transport that keeps the
// rules about addresses and completions; each fault breaks one of them.
type copier struct {
	fault string
	host  transports.Host
}

func (c *copier) Start(_ context.Context, h transports.Host) error {
	c.host = h
	copiers.Store(h.Identity().Segment, c)
	return nil
}

func (c *copier) Register(context.Context, transports.Region) (transports.Registration, error) {
	return registration{}, nil
}

// registration is closed at once: no op outlives Submit.
type registration struct{}

func (registration) Close(context.Context) error { return nil }

func (c *copier) Describe(d *transports.Descriptor) { d.Protocol = "copier" }

func (c *copier) Reach(d *transports.Descriptor) error {
	if d.Protocol != "copier" && c.fault != "reaches everybody" {
		return transports.ErrUnreachable
	}
	return nil
}

func (c *copier) Dial(_ context.Context, d *transports.Descriptor) (transports.Peer, error) {
	to, ok := copiers.Load(d.Name)
	if !ok {
		return nil, transports.ErrUnreachable
	}
	return &copierPeer{c, to.(*copier)}, nil
}

func (c *copier) Close() error { return nil }

type copierPeer struct{ from, to *copier }

func (p *copierPeer) Submit(_ context.Context, ops []transports.Op, done transports.Completion) error {
	for i := range ops {
		o := &ops[i]
		if o.Local == nil || o.Offset > o.Local.Len() || o.Len > o.Local.Len()-o.Offset {
			return transports.ErrNotRegistered
		}
	}
	for i := range ops {
		n, err := p.move(&ops[i])
		done(ops[i].Cookie, n, err)
		if p.from.fault == "reports twice" {
			done(ops[i].Cookie, n, err)
		}
	}
	return nil
}

func (p *copierPeer) move(o *transports.Op) (uint64, error) {
	if o.Len == 0 {
		return 0, nil
	}
	ref, err := p.to.host.Find(o.Remote, o.Len)
	if err != nil {
		if p.from.fault == "calls a refusal success" {
			return o.Len, nil
		}
		return 0, errors.Join(transports.ErrRejected, err)
	}
	defer ref.Release()
	from, to := ref.Data, o.LocalBytes()
	if o.Write {
		from, to = to, from
	}
	if p.from.fault == "drops the last byte" {
		from = from[:len(from)-1]
	}
	copy(to, bytes.Clone(from))
	return o.Len, nil
}

func (p *copierPeer) Close() error { return nil }

func (c *copier) outcome(name string) []string { // of one check
	checks := Checks()
	i := slices.IndexFunc(checks, func(k Check) bool { return k.Name == name })
	if i < 0 {
		return []string{"there is no check " + name}
	}
	h := Harness{New: func(T) transports.Transport { return &copier{fault: c.fault} }, Largest: 1 << 20}
	return conform.Run(name, time.Minute, func(t T) { checks[i].Run(t, h) }).Failures
}

func TestSuiteFindsFaults(t *testing.T) {
	for fault, check := range map[string]string{
		"drops the last byte":     "sizes",
		"reports twice":           "unaligned",
		"calls a refusal success": "bad remote address",
		"reaches everybody":       "reach",
	} {
		if got := (&copier{fault: fault}).outcome(check); len(got) == 0 {
			t.Errorf("a transport that %s passes %q", fault, check)
		}
		if got := (&copier{}).outcome(check); len(got) > 0 {
			t.Errorf("the check %q fails a transport without that fault: %q", check, got)
		}
	}
}
