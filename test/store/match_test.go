package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mooncake-agent/mooncake/core/rpc/structpack"
)

// matcher compares the answers of a master with recorded ones. Two masters may choose differently: ids
// of replicas and tasks, the segment of a new replica and its place in it, the order of what has no order,
// times. A choice must be kept: what is called 7 once is called 7 from then on, and a replica that was
// placed somewhere is there when it is read.
type matcher struct {
	release  string
	ids      map[uint64]uint64 // recorded replica id -> ours
	back     map[uint64]uint64 // ... and the other way, so that two do not become one
	uuids    map[uuid]uuid     // recorded task id -> ours
	places   map[uint64]place  // recorded replica id -> where ours is
	segments map[uuid]segment  // mounted ones, by id
	rpc      string            // of the current frame
}

type uuid [2]uint64

type place struct {
	address  uint64
	endpoint string
}

type segment struct {
	base, size uint64
	endpoint   string
}

func newMatcher(r *recording) *matcher {
	return &matcher{release: r.Release, ids: map[uint64]uint64{}, back: map[uint64]uint64{}, uuids: map[uuid]uuid{},
		places: map[uint64]place{}, segments: map[uuid]segment{}}
}

// repeatable tells whether a request changes nothing that matters if it is sent again.
func (m *matcher) repeatable(f *frame) bool {
	switch f.RPC {
	case "ExistKey", "BatchExistKey", "GetReplicaList", "BatchGetReplicaList", "Ping", "QuerySegmentStatus", "QuerySegmentStatusById", "QueryTask":
		return true
	}
	return false
}

// request is the recorded request with our ids of tasks.
func (m *matcher) request(f *frame) []byte {
	b := bytes.Clone(f.Request)
	for was, is := range m.uuids {
		b = bytes.ReplaceAll(b, was.bytes(), is.bytes())
	}
	m.mounts(f)
	return b
}

func (u uuid) bytes() []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, u[0]), u[1])
}

// mounts notes the segments of a request.
func (m *matcher) mounts(f *frame) {
	if f.RPC != "MountSegment" && f.RPC != "ReMountSegment" {
		return
	}
	v, err := structpack.DecodeAny(f.Request[20:], "")
	if err != nil {
		return
	}
	args, _ := v.([]any)
	list := []any{args[0]}
	if f.RPC == "ReMountSegment" {
		list, _ = args[0].([]any)
	}
	for _, s := range list {
		if x, ok := s.([]any); ok && len(x) >= 5 {
			id, _ := asUUID(x[0])
			m.segments[id] = segment{base: asU64(x[2]), size: asU64(x[3]), endpoint: fmt.Sprint(x[4])}
		}
	}
}

// compare checks an answer, header included.
func (m *matcher) compare(f *frame, got []byte) error {
	want := f.Response
	m.rpc = f.RPC
	switch {
	case got[2] != want[2]:
		return fmt.Errorf("RPC error %d, want %d", got[2], want[2])
	case !bytes.Equal(got[:2], want[:2]) || !bytes.Equal(got[3:8], want[3:8]):
		return fmt.Errorf("header %x, want %x", got[:8], want[:8])
	}
	g, w := got[headerSize:], want[headerSize:]
	hg, err := structpack.ParseHeader(g)
	if err != nil {
		return fmt.Errorf("answer %x: %w", g, err)
	}
	hw, err := structpack.ParseHeader(w)
	if err != nil {
		return err
	}
	if hg.Code != hw.Code {
		return fmt.Errorf("type code %08x (%s), want %08x (%s)", hg.Code, structpack.Describe(literal(g)), hw.Code, structpack.Describe(literal(w)))
	}
	// Upstream's wheels always answer with the literal; a request without one may be answered without.
	if len(f.Request) == 20 || literal(f.Request[20:]) != "" {
		if literal(g) != literal(w) {
			return fmt.Errorf("literal %x, want %x", literal(g), literal(w))
		}
	}
	vg, err := structpack.DecodeAny(g, literal(w))
	if err != nil {
		return fmt.Errorf("answer %x: %w", g, err)
	}
	vw, err := structpack.DecodeAny(w, "")
	if err != nil {
		return err
	}
	if err := m.same(m.order(vw), m.order(vg)); err != nil {
		return fmt.Errorf("%w\n\tgot  %s\n\twant %s", err, show(vg), show(vw))
	}
	return nil
}

// order sorts answers that upstream makes from hash tables.
func (m *matcher) order(v any) any {
	switch m.rpc {
	case "GetReplicaListByRegex", "BatchQueryIp", "OffloadObjectHeartbeat", "PromotionObjectHeartbeat":
	default:
		return v
	}
	e, ok := v.(structpack.AnyExpected)
	if list, isList := e.Value.([]any); ok && isList {
		list = slices.Clone(list)
		slices.SortFunc(list, func(a, b any) int { return cmp.Compare(show(a), show(b)) })
		e.Value = list
		return e
	}
	return v
}

// same compares two values, ours last.
func (m *matcher) same(want, got any) error {
	switch w := want.(type) {
	case structpack.AnyExpected:
		g, _ := got.(structpack.AnyExpected)
		if w.OK != g.OK {
			return fmt.Errorf("%s, want %s", show(g), show(w))
		}
		return m.same(w.Value, g.Value)
	case structpack.AnyVariant:
		g, _ := got.(structpack.AnyVariant)
		if w.Index != g.Index {
			return fmt.Errorf("alternative %d, want %d", g.Index, w.Index)
		}
		return m.same(w.Value, g.Value)
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%d elements, want %d", len(g), len(w))
		}
		return m.sameList(w, g)
	case string:
		// Payloads of tasks may name a task id of ours; none does so far.
		if w != got {
			return fmt.Errorf("%q, want %q", got, w)
		}
	case int64:
		if g, ok := got.(int64); !ok || w != g && !(isTime(w) && isTime(g)) {
			return fmt.Errorf("%v, want %v", got, w)
		}
	default:
		if want != got {
			return fmt.Errorf("%v, want %v", got, want)
		}
	}
	return nil
}

// isTime tells whether a number is a time: milliseconds since 1970, after 2020.
func isTime(n int64) bool { return n > 1577836800000 && n < 1<<42 }

// sameList compares structs and lists. The shapes that need more than equality are unmistakable.
func (m *matcher) sameList(w, g []any) error {
	if id, ok := asUUID(w); ok {
		mine, _ := asUUID(g)
		return m.bindUUID(id, mine)
	}
	if m.rpc == "Ping" && len(w) == 2 && len(m.release) > 4 && m.release[4] >= '7' {
		w, g = w[1:], g[1:] // upstream of 0.3.7 to 0.3.9 did not initialise the view
	}
	if isReplica(w) {
		return m.sameReplica(w, g)
	}
	for i := range w {
		if err := m.same(w[i], g[i]); err != nil {
			return err
		}
	}
	return nil
}

// isReplica recognises a replica's descriptor: [id,] variant, status; 0.3.7 and 0.3.8 have no id.
func isReplica(v []any) bool {
	if len(v) == 3 {
		if _, ok := v[0].(uint64); !ok {
			return false
		}
		v = v[1:]
	}
	if len(v) != 2 {
		return false
	}
	_, variant := v[0].(structpack.AnyVariant)
	_, status := v[1].(int64)
	return variant && status
}

func (m *matcher) sameReplica(w, g []any) error {
	var id uint64
	if len(w) == 3 {
		id = w[0].(uint64)
		mine, _ := g[0].(uint64)
		if err := m.bindID(id, mine); err != nil {
			return err
		}
		w, g = w[1:], g[1:]
	}
	if w[1] != g[1] {
		return fmt.Errorf("replica %d: status %v, want %v", id, g[1], w[1])
	}
	wv := w[0].(structpack.AnyVariant)
	gv, ok := g[0].(structpack.AnyVariant)
	if !ok || wv.Index != gv.Index {
		return fmt.Errorf("replica %d: %v, want %v", id, show(g[0]), show(w[0]))
	}
	if wv.Index != 0 { // on a disk: no choice
		return m.same(wv.Value, gv.Value)
	}
	wb, wok := buffer(wv.Value)
	gb, gok := buffer(gv.Value)
	if !wok || !gok {
		return errors.New("a memory replica without a buffer")
	}
	if wb.size != gb.size || wb.protocol != gb.protocol {
		return fmt.Errorf("replica %d: %+v, want %+v", id, gb, wb)
	}
	if err := m.inside(gb); err != nil {
		return err
	}
	// Where copy and move put a replica is in their request.
	if (m.rpc == "CopyStart" || m.rpc == "MoveStart") && m.places[id] == (place{}) && wb.endpoint != gb.endpoint {
		return fmt.Errorf("replica %d is at %s, want %s", id, gb.endpoint, wb.endpoint)
	}
	if id == 0 {
		return nil
	}
	at := place{gb.address, gb.endpoint}
	if was, ok := m.places[id]; ok && was != at {
		return fmt.Errorf("replica %d moved from %+v to %+v", id, was, at)
	}
	m.places[id] = at
	return nil
}

// bufferOf is a memory replica's buffer: in 0.3.7 a list of them, one behind the other.
type bufferOf struct {
	size, address      uint64
	protocol, endpoint string
}

func buffer(v any) (b bufferOf, ok bool) {
	x, _ := v.([]any)
	if len(x) != 1 {
		return b, false
	}
	x, _ = x[0].([]any)
	if len(x) > 0 {
		if first, isList := x[0].([]any); isList { // 0.3.7; the recordings have one part each
			if len(x) != 1 {
				return b, false
			}
			x = first
		}
	}
	switch len(x) {
	case 3:
		return bufferOf{asU64(x[0]), asU64(x[1]), "", fmt.Sprint(x[2])}, true
	case 4:
		return bufferOf{asU64(x[0]), asU64(x[1]), fmt.Sprint(x[2]), fmt.Sprint(x[3])}, true
	}
	return b, false
}

// inside checks that a buffer lies in a segment of its endpoint.
func (m *matcher) inside(b bufferOf) error {
	for _, s := range m.segments {
		if s.endpoint == b.endpoint && b.address >= s.base && b.address-s.base+b.size <= s.size {
			return nil
		}
	}
	return fmt.Errorf("%+v lies in no mounted segment", b)
}

func (m *matcher) bindID(id, mine uint64) error {
	if was, ok := m.ids[id]; ok && was != mine {
		return fmt.Errorf("replica id %d, was %d", mine, was)
	}
	if was, ok := m.back[mine]; ok && was != id {
		return fmt.Errorf("replica id %d was given to another replica", mine)
	}
	m.ids[id], m.back[mine] = mine, id
	return nil
}

// bindUUID compares ids; the master makes up only those of tasks.
func (m *matcher) bindUUID(id, mine uuid) error {
	was, ok := m.uuids[id]
	switch {
	case ok && was != mine:
		return fmt.Errorf("id %v, was %v", mine, was)
	case id == mine:
	case m.rpc == "CreateCopyTask" || m.rpc == "CreateMoveTask":
		m.uuids[id] = mine
	case !ok:
		return fmt.Errorf("id %v, want %v", mine, id)
	}
	return nil
}

func asUUID(v any) (uuid, bool) {
	x, _ := v.([]any)
	if len(x) != 2 {
		return uuid{}, false
	}
	a, ok1 := x[0].(uint64)
	b, ok2 := x[1].(uint64)
	return uuid{a, b}, ok1 && ok2
}

func asU64(v any) uint64 {
	n, _ := v.(uint64)
	return n
}

// show writes a decoded value as the recordings' own notes do.
func show(v any) string {
	switch x := v.(type) {
	case structpack.AnyExpected:
		if x.OK {
			return "ok " + show(x.Value)
		}
		return "error " + show(x.Value)
	case structpack.AnyVariant:
		return fmt.Sprintf("%d:%s", x.Index, show(x.Value))
	case []any:
		parts := make([]string, len(x))
		for i := range x {
			parts[i] = show(x[i])
		}
		return "[" + strings.Join(parts, " ") + "]"
	case string:
		return fmt.Sprintf("%q", x)
	}
	return fmt.Sprint(v)
}
