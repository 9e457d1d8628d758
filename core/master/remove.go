package master

import (
	"context"
	"regexp"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/eviction"
)

// mayRemove says why an object cannot be removed now; called with its shard locked.
func (s *Service) mayRemove(sh *shard, o *object, force bool, now int64) wire.ErrorCode {
	switch {
	case !force && s.protectedUntil(o) > now:
		return wire.ErrObjectHasLease
	case has(sh, o, notComplete): // force does not help: somebody is writing
		return wire.ErrReplicaIsNotReady
	case o.is(fCopyTask):
		return wire.ErrObjectHasReplicationTask
	}
	return wire.OK
}

func (s *Service) remove(t *tenant, key string, force bool, now int64) wire.ErrorCode {
	if t == nil {
		return wire.ErrObjectNotFound
	}
	hash := eviction.KeyHash(t.name, key)
	sh, _ := s.shardOf(hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	n := sh.find(hash, t.number, key)
	if n == 0 {
		return wire.ErrObjectNotFound
	}
	o := sh.objects.at(n)
	if !s.freshen(sh, n, o, now) {
		return wire.ErrObjectNotFound
	}
	if code := s.mayRemove(sh, o, force, now); code != wire.OK {
		return code
	}
	s.eraseObject(sh, n, o, eviction.CodeRemoved, now)
	return wire.OK
}

// Remove removes an object that nobody reads; with force also one that is being read: its space is not
// used again before the reads must have ended.
func (s *Service) Remove(req *wire.RemoveRequest, resp *wire.Result[wire.Void]) {
	s.counters.Remove.Requests.Add(1)
	t, code := s.readTenant(req.Tenant)
	if code == wire.OK {
		code = s.remove(t, req.Key, req.Force, s.now())
	}
	if resp.Code = code; code != wire.OK {
		s.counters.Remove.Failures.Add(1)
	}
}

// BatchRemove is Remove for several keys.
func (s *Service) BatchRemove(req *wire.BatchRemoveRequest, resp *[]wire.Result[wire.Void]) {
	out := results(resp, len(req.Keys))
	t, code := s.readTenant(req.Tenant)
	now := s.now()
	for i := range out {
		if out[i].Code = code; code == wire.OK {
			out[i].Code = s.remove(t, req.Keys[i], req.Force, now)
		}
	}
}

// scanStep is the number of objects that a search looks at before it lets others into the shard.
const scanStep = 256

// scan calls f for every object of a tenant (nil: of all), with its shard locked, a few at a time. f may
// erase the object. Objects that come or go meanwhile may or may not be seen, none twice.
func (s *Service) scan(ctx context.Context, t *tenant, f func(sh *shard, si, n uint32, o *object) bool) error {
	for si := range s.shards {
		sh := &s.shards[si]
		for n := uint32(1); ; {
			if err := ctx.Err(); err != nil {
				return err
			}
			sh.mu.Lock()
			end := sh.objects.next
			for stop := min(n+scanStep, end); n < stop; n++ {
				o := sh.live(n)
				if o == nil || t != nil && o.tenant != t.number {
					continue
				}
				if !f(sh, uint32(si), n, o) {
					sh.mu.Unlock()
					return nil
				}
			}
			sh.mu.Unlock()
			if n >= end {
				break
			}
		}
	}
	return nil
}

// pattern compiles a regular expression. RE2's syntax takes the place of ECMAScript's: back references and
// look-around do not exist, and no pattern takes more than linear time.
func pattern(expr string) (*regexp.Regexp, wire.ErrorCode) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, wire.ErrInvalidParams
	}
	return re, wire.OK
}

// RemoveByRegex removes all objects whose keys match somewhere; what is leased (unless forced), incomplete
// or being copied stays. It answers the number removed; after the context's end, the number so far.
func (s *Service) RemoveByRegex(ctx context.Context, req *wire.RemoveRequest, resp *wire.Result[int64]) {
	s.counters.RemoveByRegex.Requests.Add(1)
	resp.Value = 0
	t, code := s.readTenant(req.Tenant)
	var re *regexp.Regexp
	if code == wire.OK {
		re, code = pattern(req.Key)
	}
	if resp.Code = code; code != wire.OK {
		s.counters.RemoveByRegex.Failures.Add(1)
		return
	}
	if t == nil {
		return
	}
	now := s.now()
	s.scan(ctx, t, func(sh *shard, _, n uint32, o *object) bool {
		if re.Match(sh.keyBytes(o)) && s.mayRemove(sh, o, req.Force, now) == wire.OK {
			s.eraseObject(sh, n, o, eviction.CodeRemoved, now)
			resp.Value++
		}
		return true
	})
}

// RemoveAll removes all objects of a tenant, or of all if it is empty, by the rules of RemoveByRegex, and
// tells the clients to clear their disks.
func (s *Service) RemoveAll(ctx context.Context, req *wire.RemoveAllRequest, resp *int64) {
	s.counters.RemoveAll.Requests.Add(1)
	*resp = s.removeAll(ctx, req.Tenant, req.Force)
}

// RemoveEverything is /api/v1/remove_all.
func (s *Service) RemoveEverything(ctx context.Context, tenant string, force bool) int64 {
	return s.removeAll(ctx, tenant, force)
}

func (s *Service) removeAll(ctx context.Context, name string, force bool) (removed int64) {
	var t *tenant
	if name != "" {
		var code wire.ErrorCode
		if t, code = s.readTenant(name); code != wire.OK || t == nil {
			return 0
		}
	}
	if t == nil {
		s.disks.requestClear(nil)
	}
	owners := map[uint32]bool{}
	now := s.now()
	s.scan(ctx, t, func(sh *shard, _, n uint32, o *object) bool {
		if s.mayRemove(sh, o, force, now) != wire.OK {
			return true
		}
		if t != nil {
			for it := sh.begin(o); it.ok(); it.advance(sh) {
				if it.kind == wire.KindLocalDisk {
					owners[it.seg] = true
				}
			}
		}
		s.eraseObject(sh, n, o, eviction.CodeRemoved, now)
		removed++
		return true
	})
	if t != nil {
		s.disks.requestClear(owners)
	}
	return removed
}

// GetReplicaListByRegex lists the readable objects whose keys match somewhere, and leases them.
func (s *Service) GetReplicaListByRegex(ctx context.Context, req *wire.KeyRequest, resp *wire.Result[[]wire.Pair[string, []wire.Replica]]) {
	s.counters.GetReplicaListByRegex.Requests.Add(1)
	resp.Value = resp.Value[:0]
	t, code := s.readTenant(req.Tenant)
	var re *regexp.Regexp
	if code == wire.OK {
		re, code = pattern(req.Key)
	}
	if resp.Code = code; code != wire.OK {
		s.counters.GetReplicaListByRegex.Failures.Add(1)
		return
	}
	if t == nil {
		return
	}
	now := s.now()
	s.scan(ctx, t, func(sh *shard, _, _ uint32, o *object) bool {
		if !re.Match(sh.keyBytes(o)) {
			return true
		}
		var list []wire.Replica
		if s.list(sh, o, now, &list) {
			resp.Value = append(resp.Value, wire.Pair[string, []wire.Replica]{Key: sh.keyString(o), Value: list})
			s.grantRead(o, now)
			s.emitUse(o, t.dom(), &chain{get: true}, now)
		}
		return len(resp.Value) < s.cfg.MaxRegexMatches
	})
}

// BatchReplicaClear removes finished objects of a client that nobody reads, or their replicas in one
// segment, and answers the keys that it cleared.
func (s *Service) BatchReplicaClear(req *wire.BatchReplicaClearRequest, resp *wire.Result[[]string]) {
	resp.Value, resp.Code = resp.Value[:0], wire.OK
	now := s.now()
	for _, key := range req.Keys {
		if key != "" && s.clear(key, req.Client, req.Segment, now) {
			resp.Value = append(resp.Value, key)
		}
	}
	s.counters.BatchReplicaClear.add(len(req.Keys), len(req.Keys)-len(resp.Value))
}

func (s *Service) clear(key string, client wire.UUID, segment string, now int64) bool {
	t := s.defaultTenant
	hash := eviction.KeyHash(t.name, key)
	sh, _ := s.shardOf(hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	n := sh.find(hash, t.number, key)
	if n == 0 {
		return false
	}
	o := sh.objects.at(n)
	if !s.freshen(sh, n, o, now) || o.writer != client || s.protectedUntil(o) > now {
		return false
	}
	if segment == "" {
		if has(sh, o, notComplete) || o.is(fCopyTask) {
			return false
		}
		s.eraseObject(sh, n, o, eviction.CodeRemoved, now)
		return true
	}
	dropped, _ := s.discardAll(sh, o, freeNow, 0, now, func(r *replica) bool {
		return isCompleteMemory(r) && r.busy == 0 && s.seg(r).Name == segment
	})
	if dropped == 0 {
		return false
	}
	if s.settle(sh, n, o, eviction.CodeRemoved, now) {
		s.emitMoved(sh, o, now)
	}
	return true
}
