package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-agent/mooncake/core/segment"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/internal/jsoncpp"
	"github.com/mooncake-agent/mooncake/transports"
)

// registered is one registered region.
type registered struct {
	region transports.Region
	uses   []use
	gone   bool // being unregistered; guarded by regions.mu
}

// use is a region's registration with one transport.
type use struct {
	t   transports.Transport
	reg transports.Registration
}

// regions are the registered regions in the order of their registration, which is the order in the
// document. The engine's index, not this list, decides what can be accessed.
type regions struct {
	mu     sync.Mutex
	byAddr map[uint64]*registered
	order  []*registered
	doc    int  // bytes that the buffers take in the document
	warned bool // about the document's size
	bytes  atomic.Int64
}

// Register makes r readable and writable for peers and publishes it. The caller keeps the memory mapped
// until Unregister has returned nil. Errors wrap ErrOverlap, ErrInvalid, what a transport reported,
// or, when the new document could not be published, what the metadata service reported (for instance
// metadata.ErrUnavailable, metadata.ErrTooLarge); then nothing is registered.
func (e *Engine) Register(ctx context.Context, r transports.Region) error {
	return e.RegisterBatch(ctx, []transports.Region{r})
}

// RegisterBatch registers all regions or none, with one publication. Registrations that arrive while
// one is being published share the next one. ctx bounds the wait, but a publication that has begun is
// waited for.
func (e *Engine) RegisterBatch(ctx context.Context, rs []transports.Region) error {
	if s := e.state.Load(); s >= stateClosing {
		return fmt.Errorf("transfer: register: %w", ErrState)
	}
	if len(rs) == 0 {
		return nil
	}
	if slices.Contains(rs, nil) {
		return fmt.Errorf("transfer: register: %w: region is nil", ErrInvalid)
	}
	if err := e.index.Add(rs...); err != nil {
		if errors.Is(err, segment.ErrBadRegion) {
			err = fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		return fmt.Errorf("transfer: register: %w", err)
	}
	added := make([]*registered, 0, len(rs))
	for _, r := range rs {
		g := &registered{region: r}
		added = append(added, g)
		for _, t := range e.tps() {
			reg, err := t.Transport.Register(ctx, r)
			if errors.Is(err, transports.ErrNotShareable) {
				continue
			}
			if err != nil {
				e.rollBack(rs, added)
				return fmt.Errorf("transfer: register %d bytes at %#x: transport %s: %w", r.Len(), r.Addr(), t.Name, err)
			}
			g.uses = append(g.uses, use{t.Transport, reg})
		}
	}
	if err := e.apply(ctx, added); err != nil {
		e.rollBack(rs, added)
		return fmt.Errorf("transfer: register %s: %w", count(len(rs), "region"), err)
	}
	e.checkDocumentSize()
	return nil
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// apply publishes the document with added and then counts them as registered.
func (e *Engine) apply(ctx context.Context, added []*registered) error {
	if k := e.runningKeeper(); k != nil {
		return k.add(ctx, added)
	}
	e.regs.commit(added)
	if e.st != nil && e.state.Load() != stateNew { // Start came in between and may have missed them
		if k := e.runningKeeper(); k != nil {
			k.touch()
		}
	}
	return nil
}

// runningKeeper is nil before Start has published and in P2P mode, where nothing needs to be.
func (e *Engine) runningKeeper() *keeper {
	if e.st == nil {
		return nil
	}
	if e.state.Load() == stateStarting {
		<-e.ready // the first publication is under way; join the next
	}
	if e.state.Load() == stateNew {
		return nil
	}
	return e.keeper
}

// rollBack undoes a registration that was not published.
func (e *Engine) rollBack(rs []transports.Region, added []*registered) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, g := range added {
		for _, u := range g.uses {
			if err := u.reg.Close(ctx); err != nil {
				e.log.Error("roll back of a registration", "addr", g.region.Addr(), "err", err)
			}
		}
	}
	addrs := make([]uint64, len(rs))
	for i, r := range rs {
		addrs[i] = r.Addr()
	}
	if err := e.index.Remove(ctx, addrs...); err != nil {
		e.log.Error("roll back of a registration", "err", err)
	}
}

// Unregister ends access to the region that starts at addr; see UnregisterBatch.
func (e *Engine) Unregister(ctx context.Context, addr uint64) error {
	return e.UnregisterBatch(ctx, []uint64{addr})
}

// UnregisterBatch ends access to the regions that start at addrs, with one publication, and returns
// when nothing touches their memory any more. An address where no region starts is an error that wraps
// ErrNotRegistered, and nothing is changed. When ctx ends before the memory is quiet, the error wraps
// ErrUnquiet: the memory must stay mapped, and calling again waits on. When the publication fails its
// error is returned, but the regions are gone; peers with an old document are refused.
func (e *Engine) UnregisterBatch(ctx context.Context, addrs []uint64) error {
	if s := e.state.Load(); s >= stateClosing {
		return fmt.Errorf("transfer: unregister: %w", ErrState)
	}
	k := e.runningKeeper()
	gone, fresh, err := e.regs.takeOut(addrs)
	if err != nil {
		return fmt.Errorf("transfer: unregister: %w", err)
	}
	var published error
	if fresh && k != nil {
		if published = k.add(ctx, nil); published != nil {
			published = fmt.Errorf("transfer: unregister: the regions are gone, but the document was not published: %w", published)
		}
	}
	var busy []error
	for _, g := range gone {
		for _, u := range g.uses {
			if err := u.reg.Close(ctx); err != nil {
				busy = append(busy, err)
			}
		}
	}
	if len(busy) > 0 {
		return fmt.Errorf("transfer: unregister: %w", errors.Join(append(busy, published)...))
	}
	for _, g := range gone {
		e.quar.release(g.region.Addr(), g.region.Len())
	}
	if ctx.Err() != nil { // the transports are quiet by now; give local copies a moment
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
	}
	if err := e.index.Remove(ctx, addrs...); err != nil {
		return fmt.Errorf("transfer: unregister: %w", errors.Join(err, published))
	}
	e.regs.forget(gone)
	return published
}

// commit adds regions to the published ones.
func (r *regions) commit(added []*registered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range added {
		r.byAddr[g.region.Addr()] = g
		r.bytes.Add(int64(g.region.Len()))
		r.doc += bufferSize(g.region)
	}
	r.order = append(r.order, added...)
}

// takeOut takes the regions out of the document. fresh is false when they all were before.
func (r *regions) takeOut(addrs []uint64) (gone []*registered, fresh bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := make(map[uint64]bool, len(addrs))
	for _, a := range addrs {
		g := r.byAddr[a]
		if g == nil || seen[a] {
			return nil, false, fmt.Errorf("no region starts at %#x: %w", a, ErrNotRegistered)
		}
		seen[a] = true
		gone = append(gone, g)
	}
	for _, g := range gone {
		if !g.gone {
			g.gone, fresh = true, true
			r.bytes.Add(-int64(g.region.Len()))
			r.doc -= bufferSize(g.region)
		}
	}
	if fresh {
		r.order = slices.DeleteFunc(r.order, func(g *registered) bool { return g.gone })
	}
	return gone, fresh, nil
}

func (r *regions) forget(gone []*registered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range gone {
		if r.byAddr[g.region.Addr()] == g {
			delete(r.byAddr, g.region.Addr())
		}
	}
}

// keepTransports drops the registrations of transports that are not in use.
func (r *regions) keepTransports(running []NamedTransport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.order {
		g.uses = slices.DeleteFunc(g.uses, func(u use) bool {
			return !slices.ContainsFunc(running, func(t NamedTransport) bool { return t.Transport == u.t })
		})
	}
}

// bufferSize is the size of a region's entry in the document, without the segment's name.
func bufferSize(r transports.Region) int {
	return len(`{"addr":,"length":,"name":},`) + len(strconv.FormatUint(r.Addr(), 10)) + len(strconv.FormatUint(r.Len(), 10))
}

// descriptor builds the current document in the configured protocol, with regions that are about to be added.
func (e *Engine) descriptor(added []*registered) *transports.Descriptor {
	return e.descriptorAs(e.opt.Protocol, added)
}

// descriptorAs builds the document for readers that speak a protocol; one that no transport can describe now is replaced
// by tcp.
func (e *Engine) descriptorAs(protocol string, added []*registered) *transports.Descriptor {
	d := &transports.Descriptor{
		Name:            e.id.Segment,
		Protocol:        protocol,
		TCPProtoVersion: 1,
		Agent:           &transports.AgentExt{V: 1, Instance: e.id.Instance},
	}
	e.regs.mu.Lock()
	d.Buffers = make([]transports.Buffer, 0, len(e.regs.order)+len(added))
	for _, list := range [2][]*registered{e.regs.order, added} {
		for _, g := range list {
			d.Buffers = append(d.Buffers, transports.Buffer{Name: d.Name, Addr: g.region.Addr(), Length: g.region.Len()})
		}
	}
	e.regs.mu.Unlock()
	for _, t := range e.tps() {
		t.Transport.Describe(d)
	}
	switch {
	case d.Protocol == "": // no transport that upstream knows: a document that its readers accept
		d.Protocol = tcpProtocol
	case d.Protocol == rdmaProtocol && len(d.Devices) == 0: // no device is in order
		return e.descriptorAs(tcpProtocol, added)
	}
	return d
}

// The protocols of upstream that this engine publishes.
const (
	tcpProtocol  = "tcp"
	rdmaProtocol = "rdma"
)

// answerMetadata returns the document for a peer that has sent its own: one that speaks tcp or rdma only gets the
// document that it understands, whatever this engine is configured for.
func (e *Engine) answerMetadata(req []byte) []byte {
	protocol := e.opt.Protocol
	if d, err := transports.ParseDescriptor(req); err == nil && (d.Protocol == tcpProtocol || d.Protocol == rdmaProtocol) && d.Protocols == nil {
		protocol = d.Protocol
	}
	return e.descriptorAs(protocol, nil).Encode(e.opt.Now())
}

// checkDocumentSize warns when peers with default settings can no longer fetch the document from this
// engine's daemon. Services have limits of their own and answer with an error.
func (e *Engine) checkDocumentSize() {
	if e.st != nil || e.state.Load() != stateRunning {
		return
	}
	r := &e.regs
	r.mu.Lock()
	defer r.mu.Unlock()
	size := 512 + r.doc + len(r.order)*len(jsoncpp.AppendString(nil, e.id.Segment))
	limit := int(units.MiB)
	if size <= limit {
		r.warned = false
		return
	}
	if r.warned {
		return
	}
	r.warned = true
	e.log.Warn("the segment document is larger than peers accept by default; register fewer, larger regions or set MC_HANDSHAKE_MAX_LENGTH at the peers",
		"segment", e.id.Segment, "regions", len(r.order), "bytes", size, "limit", limit, "setting", "handshake_max_length (MC_HANDSHAKE_MAX_LENGTH)")
}
