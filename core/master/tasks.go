package master

import (
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// taskStore holds the copy and move tasks that clients fetch.
type taskStore struct {
	mu       sync.Mutex // a leaf
	byID     map[wire.UUID]*task
	pending  map[wire.UUID][]*task // by client, in order
	finished []*task               // oldest first, from start on
	start    int
	waiting  []*task // pending ones in order of age; finished or fetched ones are void
	running  []*task // processing ones in order of their start
	counts   [4]int  // by status
}

type task struct {
	wire.TaskState
	payload string
}

// newUUID makes a random id.
func newUUID() wire.UUID { return wire.UUID{rand.Uint64(), rand.Uint64()} }

// submit adds a task for a client.
func (s *Service) submit(client wire.UUID, typ wire.TaskType, payload string) (wire.UUID, wire.ErrorCode) {
	ts := &s.tasks
	now := s.now()
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.counts[wire.TaskPending] >= s.cfg.MaxPending {
		return wire.UUID{}, wire.ErrTaskPendingLimitExceeded
	}
	if ts.byID == nil {
		ts.byID, ts.pending = map[wire.UUID]*task{}, map[wire.UUID][]*task{}
	}
	t := &task{TaskState: wire.TaskState{ID: newUUID(), Type: typ, CreatedMS: now, UpdatedMS: now, Client: client}, payload: payload}
	ts.byID[t.ID] = t
	ts.pending[client] = append(ts.pending[client], t)
	ts.waiting = append(ts.waiting, t)
	ts.counts[wire.TaskPending]++
	return t.ID, wire.OK
}

// set moves a task to another state; called with mu held.
func (ts *taskStore) set(t *task, to wire.TaskStatus, now int64) {
	ts.counts[t.Status]--
	ts.counts[to]++
	t.Status, t.UpdatedMS = to, now
	if to == wire.TaskFailed || to == wire.TaskSuccess {
		ts.finished = append(ts.finished, t)
	}
}

// prune forgets the oldest finished tasks and fails those that have taken too long.
func (s *Service) pruneTasks(now int64) {
	ts := &s.tasks
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if limit := s.cfg.PendingTimeout.Milliseconds(); limit > 0 {
		for len(ts.waiting) > 0 {
			t := ts.waiting[0]
			if t.Status == wire.TaskPending {
				if now-t.CreatedMS <= limit {
					break
				}
				t.Message = "pending timeout"
				ts.set(t, wire.TaskFailed, now)
				ts.unqueue(t)
			}
			ts.waiting = ts.waiting[1:]
		}
	}
	if limit := s.cfg.ProcessTimeout.Milliseconds(); limit > 0 {
		for len(ts.running) > 0 {
			t := ts.running[0]
			if t.Status == wire.TaskProcessing {
				if now-t.UpdatedMS <= limit {
					break
				}
				t.Message = "processing timeout"
				ts.set(t, wire.TaskFailed, now)
			}
			ts.running = ts.running[1:]
		}
	}
	for len(ts.finished)-ts.start > s.cfg.MaxFinished {
		delete(ts.byID, ts.finished[ts.start].ID)
		ts.finished[ts.start] = nil
		ts.start++
	}
	if ts.start > 64 && ts.start > len(ts.finished)/2 {
		ts.finished = append(ts.finished[:0], ts.finished[ts.start:]...)
		ts.start = 0
	}
}

// unqueue takes a task out of its client's queue.
func (ts *taskStore) unqueue(t *task) {
	q := ts.pending[t.Client]
	for i, x := range q {
		if x == t {
			q = append(q[:i:i], q[i+1:]...)
			break
		}
	}
	if ts.pending[t.Client] = q; len(q) == 0 {
		delete(ts.pending, t.Client)
	}
}

// CreateCopyTask orders a copy of an object to other segments.
func (s *Service) CreateCopyTask(req *wire.CreateCopyTaskRequest, resp *wire.Result[wire.UUID]) {
	s.counters.CreateCopyTask.Requests.Add(1)
	*resp = wire.Result[wire.UUID]{}
	t, code := s.writeTenant(req.Tenant)
	if code == wire.OK && len(req.Targets) == 0 {
		code = wire.ErrInvalidParams
	}
	if code == wire.OK {
		resp.Value, code = s.orderCopy(t, req.Key, req.Targets)
	}
	if resp.Code = code; code != wire.OK {
		s.counters.CreateCopyTask.Failures.Add(1)
	}
}

// sources lists the segments that hold an object in memory.
func (s *Service) sources(t *tenant, key string) (names []string, size uint64, ok bool) {
	ok = s.withObject(t, key, func(sh *shard, _ uint32, o *object) {
		size = o.size
		for it := sh.begin(o); it.ok(); it.advance(sh) {
			if it.kind == wire.KindMemory && s.alive(it.replica) {
				names = append(names, s.seg(it.replica).Name)
			}
		}
	})
	return names, size, ok
}

// taskTargets checks the targets of an order.
func (s *Service) taskTargets(names ...string) wire.ErrorCode {
	if code := s.targetsReady(names...); code != wire.ErrSegmentNotFound {
		return code
	}
	return wire.ErrInvalidParams
}

// ownerOf is the client that owns a segment name.
func (s *Service) ownerOf(name string) (wire.UUID, bool) {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	segs := r.byName[name]
	if len(segs) == 0 {
		return wire.UUID{}, false
	}
	return segs[len(segs)-1].client, true
}

func (s *Service) orderCopy(t *tenant, key string, targets []string) (wire.UUID, wire.ErrorCode) {
	names, _, ok := s.sources(t, key)
	if !ok {
		return wire.UUID{}, wire.ErrObjectNotFound
	}
	if code := s.taskTargets(targets...); code != wire.OK {
		return wire.UUID{}, code
	}
	if len(names) == 0 {
		return wire.UUID{}, wire.ErrInternalError
	}
	source := names[s.random()%uint64(len(names))]
	client, ok := s.ownerOf(source)
	if !ok {
		return wire.UUID{}, wire.ErrInternalError
	}
	b := appendJSON([]byte(`{"tenant_id":`), t.name)
	b = appendJSON(append(b, `,"key":`...), key)
	b = appendJSON(append(b, `,"source":`...), source)
	b = append(b, `,"targets":[`...)
	for i, name := range targets {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendJSON(b, name)
	}
	b = append(b, `],"dynamic_replication_lease_id_high":0,"dynamic_replication_lease_id_low":0,"dynamic_replication_version_epoch":0}`...)
	return s.submit(client, wire.TaskCopy, string(b))
}

// CreateMoveTask orders a move of an object from one segment to another.
func (s *Service) CreateMoveTask(req *wire.CreateMoveTaskRequest, resp *wire.Result[wire.UUID]) {
	s.counters.CreateMoveTask.Requests.Add(1)
	*resp = wire.Result[wire.UUID]{}
	t, code := s.writeTenant(req.Tenant)
	if code == wire.OK {
		resp.Value, code = s.orderMove(t, req.Key, req.Source, req.Target)
	}
	if resp.Code = code; code != wire.OK {
		s.counters.CreateMoveTask.Failures.Add(1)
	}
}

func (s *Service) orderMove(t *tenant, key, source, target string) (wire.UUID, wire.ErrorCode) {
	names, _, ok := s.sources(t, key)
	if !ok {
		return wire.UUID{}, wire.ErrObjectNotFound
	}
	if source == target {
		return wire.UUID{}, wire.ErrInvalidParams
	}
	if code := s.taskTargets(target); code != wire.OK {
		return wire.UUID{}, code
	}
	there := false
	for _, name := range names {
		there = there || name == source
	}
	if !there {
		return wire.UUID{}, wire.ErrInvalidParams
	}
	client, ok := s.ownerOf(source)
	if !ok {
		return wire.UUID{}, wire.ErrInternalError
	}
	b := appendJSON([]byte(`{"tenant_id":`), t.name)
	b = appendJSON(append(b, `,"key":`...), key)
	b = appendJSON(append(b, `,"source":`...), source)
	b = appendJSON(append(b, `,"target":`...), target)
	return s.submit(client, wire.TaskMove, string(append(b, '}')))
}

// QueryTask tells the state of a task.
func (s *Service) QueryTask(req *wire.IDRequest, resp *wire.Result[wire.TaskState]) {
	s.counters.QueryTask.Requests.Add(1)
	ts := &s.tasks
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.byID[req.ID]; t != nil {
		*resp = wire.Result[wire.TaskState]{Value: t.TaskState}
		return
	}
	s.counters.QueryTask.Failures.Add(1)
	*resp = wire.Result[wire.TaskState]{Code: wire.ErrTaskNotFound}
}

// FetchTasks hands a client its tasks.
func (s *Service) FetchTasks(req *wire.FetchTasksRequest, resp *wire.Result[[]wire.TaskAssignment]) {
	s.counters.FetchTasks.Requests.Add(1)
	resp.Code, resp.Value = wire.OK, resp.Value[:0]
	ts := &s.tasks
	ts.mu.Lock()
	defer ts.mu.Unlock()
	queue := ts.pending[req.Client]
	if len(queue) == 0 {
		return
	}
	now := s.now()
	for len(queue) > 0 && uint64(len(resp.Value)) < req.Limit && ts.counts[wire.TaskProcessing] < s.cfg.MaxProcessing {
		t := queue[0]
		queue = queue[1:]
		ts.set(t, wire.TaskProcessing, now)
		ts.running = append(ts.running, t)
		resp.Value = append(resp.Value, wire.TaskAssignment{
			ID: t.ID, Type: t.Type, Payload: t.payload, CreatedMS: t.CreatedMS, MaxRetries: uint32(s.cfg.MaxRetries),
		})
	}
	if ts.pending[req.Client] = queue; len(queue) == 0 {
		delete(ts.pending, req.Client)
	}
}

// MarkTaskToComplete notes how a task ended.
func (s *Service) MarkTaskToComplete(req *wire.CompleteTaskRequest, resp *wire.Result[wire.Void]) {
	s.counters.UpdateTask.Requests.Add(1)
	if resp.Code = s.completeTask(req); resp.Code != wire.OK {
		s.counters.UpdateTask.Failures.Add(1)
	}
}

func (s *Service) completeTask(req *wire.CompleteTaskRequest) wire.ErrorCode {
	if req.Status != wire.TaskFailed && req.Status != wire.TaskSuccess {
		return wire.ErrInvalidParams
	}
	ts := &s.tasks
	now := s.now()
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.byID[req.ID]
	switch {
	case t == nil:
		return wire.ErrTaskNotFound
	case t.Client != req.Client:
		return wire.ErrIllegalClient
	case t.Status == wire.TaskFailed || t.Status == wire.TaskSuccess:
		return wire.OK
	case t.Status == wire.TaskPending:
		ts.unqueue(t)
	}
	t.Message = strings.Clone(req.Message)
	ts.set(t, req.Status, now)
	return wire.OK
}

// taskOutcome reports whether a task has ended, and how; a forgotten one has failed.
func (s *Service) taskOutcome(id wire.UUID) (ended, success bool) {
	ts := &s.tasks
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.byID[id]
	if t == nil {
		return true, false
	}
	return t.Status == wire.TaskFailed || t.Status == wire.TaskSuccess, t.Status == wire.TaskSuccess
}

// appendJSON appends a JSON string; bytes that are not UTF-8 stay as they are, as upstream writes them.
func appendJSON(b []byte, v string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(v) {
		switch c := v[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\r':
			b = append(b, '\\', 'r')
		case c == '\t':
			b = append(b, '\\', 't')
		case c == '\b':
			b = append(b, '\\', 'b')
		case c == '\f':
			b = append(b, '\\', 'f')
		case c < 0x20:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
