package master

import (
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// admitUpsert is admit for a key that exists. An unfinished write is pushed aside at once; a finished value
// of the same size is rewritten where it is, unless a read of it is running and there is room elsewhere.
func (s *Service) admitUpsert(sh *shard, si, n uint32, o *object, w *write, out *[]wire.Replica) (uint32, *object, wire.ErrorCode) {
	if w.cfg.GroupIDs.OK && s.groupName(o) != w.group {
		return 0, nil, wire.ErrInvalidParams // membership lasts as long as the object
	}
	if o.is(fCopyTask|fPromotion) || !s.cancelQueuedOffload(sh, n, o) {
		return 0, nil, wire.ErrObjectHasReplicationTask
	}
	if o.is(fProcessing) {
		w.retake(o)
		s.discardAll(sh, o, freeWritten, w.now, w.now, func(r *replica) bool { return r.state == processing })
		s.clearPendingPin(sh, n, o)
		s.finishWrite(sh, o)
		if !has(sh, o, isComplete) {
			if o.is(fSoftPin) {
				w.pinUntil = sh.pins[n].until
			}
			s.eraseObject(sh, n, o, eviction.CodeReplaced, w.now)
			return 0, nil, wire.OK
		}
		s.settle(sh, n, o, eviction.CodeReplaced, w.now)
	}
	if has(sh, o, isBusy) {
		return 0, nil, wire.ErrObjectReplicaBusy
	}
	if o.size == w.size && (s.upsertInPlace || s.leaseEnd(o) <= w.now || s.hasDisk(sh, o)) {
		s.rewrite(sh, n, o, w, out)
	}
	return n, o, wire.OK
}

func (s *Service) groupName(o *object) string {
	if o.group == 0 {
		return ""
	}
	return s.groups.at(o.group).name
}

func (s *Service) hasDisk(sh *shard, o *object) bool {
	return has(sh, o, func(r *replica) bool { return r.kind != wire.KindMemory })
}

// inPlace reports that a value may be rewritten where it is when there is no room for a copy.
func (s *Service) inPlace(o *object, w *write) bool { return o.size == w.size }

// rewrite makes the finished replicas unreadable and hands them to the writer again.
func (s *Service) rewrite(sh *shard, n uint32, o *object, w *write, out *[]wire.Replica) {
	for it := sh.begin(o); it.ok(); it.advance(sh) {
		if it.state == complete {
			it.state = processing
		}
	}
	s.recount(sh, o)
	sh.beginPin(n, o, w.cfg.SoftPin, w.pinTTL)
	s.startWrite(sh, n, o, w.client, w.now)
	o.flags |= fUpsert
	if w.retaken {
		o.flags |= fRetaken
	}
	s.describeAll(sh, o, w, out)
}

// replaceValue empties an object for a new value: running reads of the old one keep its space.
func (s *Service) replaceValue(sh *shard, n uint32, o *object, w *write) {
	s.emitRemove(sh, o, eviction.CodeReplaced, w.now)
	s.discardAll(sh, o, freeLater, 0, w.now, func(*replica) bool { return true })
	s.recount(sh, o)
	o.size, o.lease, o.probe, o.checksum = w.size, 0, 0, 0
	o.flags &^= fChecksum
}

// UpsertStart begins to write a value whether the key exists or not.
func (s *Service) UpsertStart(req *wire.PutStartRequest, resp *wire.Result[[]wire.Replica]) {
	s.putStart(req, resp, true)
}

// BatchUpsertStart is UpsertStart for several keys.
func (s *Service) BatchUpsertStart(req *wire.BatchPutStartRequest, resp *[]wire.Result[[]wire.Replica]) {
	s.batchStart(req, resp, true)
}

// UpsertEnd is PutEnd.
func (s *Service) UpsertEnd(req *wire.PutEndRequest, resp *wire.Result[wire.Void]) {
	s.PutEnd(req, resp)
}

// UpsertRevoke is PutRevoke: a value that was rewritten in place is lost.
func (s *Service) UpsertRevoke(req *wire.PutRevokeRequest, resp *wire.Result[wire.Void]) {
	s.PutRevoke(req, resp)
}

// BatchUpsertEnd is BatchPutEnd for all replica types.
func (s *Service) BatchUpsertEnd(req *wire.BatchPutEndRequest, resp *[]wire.Result[wire.Void]) {
	s.batchEnd(req, resp, wire.ReplicaAll)
}

// BatchUpsertRevoke is BatchPutRevoke for all replica types.
func (s *Service) BatchUpsertRevoke(req *wire.BatchPutRevokeRequest, resp *[]wire.Result[wire.Void]) {
	s.batchRevoke(req, resp, wire.ReplicaAll)
}
