package master

import (
	"slices"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// The rest of what the model does: upserts, moves, and segments that go.

func (m *model) doUpsert(k string, client wire.UUID, size uint64) {
	o := m.objects[k]
	now := m.now()
	before, _ := m.DescribeKey("default", k)
	rs, code := m.upsert(client, k, size)
	switch code {
	case wire.OK:
		fresh := &modelObject{writer: client, size: size, start: now}
		if o != nil {
			if o.complete || o.rewriting {
				fresh.hard = o.hard && o.complete
				fresh.softUntil, fresh.groupLease = o.softUntil, o.groupLease
			} else {
				fresh.softUntil = o.softUntil
			}
			fresh.rewriting = o.complete && slices.ContainsFunc(before.Replicas, func(r wire.Replica) bool { return r.ID == rs[0].ID })
			if fresh.rewriting {
				fresh.lease, fresh.probe = o.lease, o.probe
			}
		}
		for _, r := range rs {
			inPlace := fresh.rewriting && slices.ContainsFunc(m.claims, func(c claim) bool { return c.addr == r.Address && c.what == "reader of "+k && c.until > now })
			if !inPlace {
				m.mustBeFree(k, r.Address, size)
			}
			m.claims = append(m.claims, claim{addr: r.Address, size: size, until: now + 600_000, what: "writer of " + k})
		}
		m.objects[k] = fresh
	case wire.ErrNoAvailableHandle:
		if o != nil && !o.complete {
			delete(m.objects, k) // the unfinished write was pushed aside
		}
	case wire.ErrObjectHasReplicationTask:
		if o == nil || !o.copying {
			m.Fatalf("upsert of %s: %v, but nothing is copied", k, code)
		}
	case wire.ErrObjectReplicaBusy:
		if o == nil || !o.copying {
			m.Fatalf("upsert of %s: busy", k)
		}
	default:
		m.Fatalf("upsert of %s: %v", k, code)
	}
}

func (m *model) doMove(k string, end bool) {
	o := m.objects[k]
	if o != nil && o.copying {
		var r wire.Result[wire.Void]
		req := wire.ObjectTaskRequest{Client: clientA, Key: k, Tenant: "default"}
		if end {
			m.MoveEnd(&req, &r)
		} else {
			m.MoveRevoke(&req, &r)
		}
		if r.Code != wire.OK && !(o.targetGone && end && r.Code == wire.ErrReplicaIsGone) {
			m.Fatalf("end of a move of %s: %v", k, r.Code)
		}
		o.copying, o.targetGone = false, false
		m.claims = slices.DeleteFunc(m.claims, func(c claim) bool { return c.what == "mover of "+k })
		return
	}
	var r wire.Result[wire.MoveTarget]
	m.MoveStart(&wire.MoveStartRequest{Client: clientA, Key: k, Tenant: "default", Source: "node0:1", Target: "node1:1"}, &r)
	if r.Code != wire.OK {
		return
	}
	if o == nil || !o.complete {
		m.Fatalf("move of %s, which is not there", k)
	}
	o.copying = true
	if r.Value.Target.OK {
		m.mustBeFree(k, r.Value.Target.Value.Address, o.size)
		m.claims = append(m.claims, claim{addr: r.Value.Target.Value.Address, size: o.size, until: m.now() + 600_000, what: "mover of " + k})
	}
}

func (m *model) doUnmount(n int) {
	if !m.mounted[n] {
		return
	}
	m.must("unmount", m.unmount(n, clientA), wire.OK)
	m.Poll()
	m.mounted[n] = false
	base := uint64(n+1) << 40
	m.claims = slices.DeleteFunc(m.claims, func(c claim) bool { return c.addr >= base && c.addr < base+1<<40 })
	for k, o := range m.objects {
		o.targetGone = o.targetGone || o.copying
		if d, code := m.DescribeKey("default", k); code != wire.OK || len(d.Replicas) == 0 {
			delete(m.objects, k)
		} else if o.copying && d.Busy == 0 {
			// The source went; the end of the move will say so.
			var r wire.Result[wire.Void]
			m.MoveRevoke(&wire.ObjectTaskRequest{Client: clientA, Key: k, Tenant: "default"}, &r)
			o.copying = false
			m.claims = slices.DeleteFunc(m.claims, func(c claim) bool { return c.what == "mover of "+k })
			if _, code := m.DescribeKey("default", k); code != wire.OK {
				delete(m.objects, k)
			}
		}
	}
	m.mount(n, 64<<10, clientA)
	m.mounted[n] = true
}

// reaped follows the end of the release timeout: unfinished writes and moves are given up.
func (m *model) reaped() {
	m.claims = nil
	for k, o := range m.objects {
		if !o.complete {
			delete(m.objects, k)
		}
		o.copying = false
	}
}
