package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/transports"
)

// watchKey asks for a check whenever key changes to something that is not what we published last.
func (k *keeper) watchKey(ctx context.Context, w metadata.Watcher, key string) {
	for ev, err := range w.Watch(ctx, key) {
		if err != nil {
			k.e.warn.Log(ctx, k.e.log, slog.LevelWarn, "watch", "watch of our own metadata entries was interrupted", "key", key, "err", err)
			continue
		}
		if ev.Type != metadata.EventReset && ev.Entry.Key != key {
			continue // a longer key
		}
		if ev.Type == metadata.EventPut && k.current(key, ev.Entry.Value) {
			continue
		}
		signal(k.check)
	}
}

// current tells whether value is what we last wrote under key.
func (k *keeper) current(key string, value []byte) bool {
	if key == k.st.rpcKey(k.e.id.Segment) {
		return same(value, k.rpcDoc)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return same(value, k.ramDoc)
}

// ours tells whether this engine wrote value, perhaps some time ago.
func (k *keeper) ours(key string, value []byte) bool {
	if key == k.st.rpcKey(k.e.id.Segment) {
		return same(value, k.rpcDoc)
	}
	return bytes.Contains(value, []byte(`"instance":"`+k.e.id.Instance+`"`))
}

// verify reads our entries back and marks what must be written again.
func (k *keeper) verify(ctx context.Context, withRAM bool) {
	name := k.e.id.Segment
	ent, err := k.st.b.Get(ctx, k.st.rpcKey(name))
	switch {
	case errors.Is(err, metadata.ErrNotFound):
		k.lost(k.st.rpcKey(name), "is gone")
		k.needRPC, k.yielded, withRAM = true, false, true
	case err != nil:
		if ctx.Err() == nil {
			k.failed(err)
		}
		return
	case same(ent.Value, k.rpcDoc):
		k.yielded = false
	default:
		if !k.mayReclaim(ctx, ent.Value) {
			return
		}
		k.needRPC, withRAM = true, true
	}
	if withRAM {
		ent, err = k.st.b.Get(ctx, k.st.ramKey(name))
		switch {
		case errors.Is(err, metadata.ErrNotFound):
			k.lost(k.st.ramKey(name), "is gone")
			k.needRAM = true
		case err != nil:
			if ctx.Err() == nil {
				k.failed(err)
			}
			return
		case !k.current(k.st.ramKey(name), ent.Value):
			k.lost(k.st.ramKey(name), "was overwritten")
			k.needRAM = true
		}
	}
	if !k.needRPC && !k.needRAM {
		k.setErr(nil)
	}
}

func (k *keeper) lost(key, what string) {
	k.e.warn.Log(context.Background(), k.e.log, slog.LevelWarn, "lost", "our metadata entry "+what+", publishing again", "key", key)
}

// The pause before a living foreign holder is overwritten again.
const (
	reclaimFirst = time.Second
	reclaimLast  = time.Minute
)

// mayReclaim decides about somebody else's rpc_meta under our name. The entry of a dead engine is replaced.
// Of two living engines of this make the one with the lower instance id keeps the name, so that they
// do not overwrite each other for ever. An engine of another make, which took the name without asking and
// never looks again, is overwritten, with growing pauses in case it does.
func (k *keeper) mayReclaim(ctx context.Context, value []byte) bool {
	h := k.e.findHolder(ctx, value)
	if !h.alive {
		k.e.log.Warn("our metadata entry was overwritten by an engine that does not answer, publishing again",
			"segment", k.e.id.Segment, "holder", h.String(), "reason", h.why)
		return true
	}
	err := k.taken(h)
	if h.instance != "" && h.instance < k.e.id.Instance {
		if !k.yielded {
			k.e.log.Error("another engine took our name while we run; we are not published any more", "err", err)
		}
		k.yielded = true
		k.setErr(err)
		return false
	}
	now := time.Now()
	switch since := now.Sub(k.reclaimed); {
	case k.reclaimed.IsZero() || since > 2*reclaimLast:
		k.reclaimPause = reclaimFirst
	case since < k.reclaimPause:
		k.setErr(err)
		return false
	default:
		k.reclaimPause = min(2*k.reclaimPause, reclaimLast)
	}
	k.reclaimed = now
	k.e.log.Error("another engine took our name while we run; publishing ours again", "err", err)
	return true
}

// holder is the engine that an rpc_meta document points to.
type holder struct {
	meta     rpcMeta
	alive    bool
	instance string // of engines of this make
	why      string // why it counts as dead
}

func (h holder) String() string {
	if h.meta.host == "" {
		return "an unreadable address"
	}
	return h.meta.addr()
}

// How long a holder may take to answer.
const (
	holderConnect = time.Second
	holderReply   = 3 * time.Second
)

// findHolder probes the engine behind somebody else's rpc_meta document of our name. An answer counts
// only if it does not come from an engine of another name that has got the port since.
func (e *Engine) findHolder(ctx context.Context, doc []byte) holder {
	m, err := parseRPCMeta(doc)
	h := holder{meta: m}
	if err != nil {
		h.why = err.Error()
		return h
	}
	c := handshake.Client{ConnectTimeout: holderConnect, ReplyTimeout: holderReply, MaxLength: handshake.MaxMaxLength}
	if err := c.Probe(ctx, m.host, m.port); err != nil {
		h.why = err.Error()
		return h
	}
	h.alive = true
	// Upstream's engines answer null here when they use a metadata service.
	reply, err := c.Metadata(ctx, m.addr(), []byte("{}"))
	if err != nil {
		return h
	}
	d, err := transports.ParseDescriptor(reply)
	if err != nil {
		return h
	}
	if d.Name != e.id.Segment {
		h.alive, h.why = false, fmt.Sprintf("its port now belongs to segment %q", d.Name)
		return h
	}
	if d.Agent != nil {
		if h.instance = d.Agent.Instance; h.instance == e.id.Instance {
			h.alive, h.why = false, "it is this engine under another address"
		}
	}
	return h
}
