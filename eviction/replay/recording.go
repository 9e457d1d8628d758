package replay

import (
	"fmt"
	"io"
	"slices"

	"github.com/mooncake-agent/mooncake/eviction/trace"
)

// recording makes requests of the calls that a store recorded.
//
// A client that wants a chain asks whether its blocks exist, gets those that are there and, when it has computed the
// others, puts them; or it leaves out the question. A call that only asks, and which no get or put of one of its blocks
// follows within [claimMS], is no request. The blocks of a question or get, the found and the others, are one request at the time
// of the call; a put of blocks that nobody missed is a [Stored] request.
type recording struct {
	name     string
	calls    []recorded
	keys     []uint64
	sizes    []uint64
	missing  map[uint64]question // by key: who asked for it last and was not answered yet
	tokens   uint32
	warnings []string
	probes   int
}

// claimMS is how long a put may come after the question that it answers: the longest prefill.
const claimMS = 10 * 60 * 1000

// question is where a call asked for a key.
type question struct {
	call uint32
	key  int // in keys
}

// recorded is one call.
type recorded struct {
	op     trace.Op
	tenant uint32
	batch  uint32
	time   uint64
	first  int // in keys
	n      int
	used   bool // it is a request
}

func newRecording(name string) *recording {
	return &recording{name: name, missing: map[uint64]question{}}
}

func (c *recording) read(name string, r io.Reader) error {
	in, err := trace.NewReader(name, r)
	if err != nil {
		return err
	}
	if c.tokens == 0 {
		c.tokens = in.Header().BlockTokens
	}
	var q, last trace.Record
	var g []trace.Record
	for {
		err := in.Next(&q)
		if len(g) > 0 && (err != nil || q.Op != last.Op || q.Batch != last.Batch || q.Tenant != last.Tenant || q.TimeMS != last.TimeMS) {
			if err := c.call(g); err != nil {
				return fmt.Errorf("%s: record %d: %w", name, in.Records(), err)
			}
			g = g[:0]
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		g, last = append(g, q), q
	}
	if in.Truncated() {
		c.warnings = append(c.warnings, fmt.Sprintf("%s ends in the middle of a block: read the %d records before it", name, in.Records()))
	}
	return nil
}

// call adds the records of one call.
func (c *recording) call(g []trace.Record) error {
	if len(g) > 1 && g[0].Parent == g[1].Key { // deepest first
		slices.Reverse(g)
	}
	if len(c.calls) > 0 && g[0].TimeMS < c.calls[len(c.calls)-1].time {
		return fmt.Errorf("time %d ms is before the %d ms of the record before: %w", g[0].TimeMS, c.calls[len(c.calls)-1].time, ErrTrace)
	}
	if len(c.calls) >= 1<<32-1 {
		return fmt.Errorf("more than 2^32-1 calls: %w", ErrTrace)
	}
	now := recorded{op: g[0].Op, tenant: g[0].Tenant, batch: g[0].Batch, time: g[0].TimeMS, first: len(c.keys)}
	n := uint32(len(c.calls))
	switch now.op {
	case trace.Exist, trace.Get, trace.Put:
	case trace.Remove:
		now.used = true
	default:
		return nil
	}
	for i := range g {
		q := &g[i]
		if now.op == trace.Remove {
			delete(c.missing, q.Key)
			c.add(q, &now)
			continue
		}
		from, asked := c.missing[q.Key]
		if asked && from.call == n {
			continue // the same key twice in one call
		}
		if asked && c.calls[from.call].time+claimMS < now.time {
			asked = false
		}
		switch {
		case now.op == trace.Exist:
			c.missing[q.Key] = question{n, len(c.keys)}
			c.add(q, &now)
		case asked:
			c.calls[from.call].used = true
			if c.sizes[from.key] == 0 {
				c.sizes[from.key] = q.Size // which its question could not know
			}
			if now.op == trace.Put || q.Flags&trace.Found != 0 {
				delete(c.missing, q.Key)
			}
		default:
			if now.op == trace.Get && q.Flags&trace.Found == 0 {
				c.missing[q.Key] = question{n, len(c.keys)}
			}
			c.add(q, &now)
			now.used = true
		}
	}
	if now.n > 0 {
		c.calls = append(c.calls, now)
	}
	return nil
}

func (c *recording) add(q *trace.Record, to *recorded) {
	c.keys, c.sizes = append(c.keys, q.Key), append(c.sizes, q.Size)
	to.n++
}

func (c *recording) trace(o ReadOptions) (*Trace, error) {
	c.missing = nil
	b := NewBuilder(c.name, c.tokens)
	b.hashed = true
	if o.BlockTokens != 0 {
		b.t.BlockTokens = o.BlockTokens
	}
	seen := map[uint64]bool{}
	for i := range c.calls {
		q := &c.calls[i]
		if !q.used {
			c.probes++
			continue
		}
		r := Request{TimeMS: q.time, Tenant: q.tenant}
		switch q.op {
		case trace.Put:
			r.Kind = Stored
		case trace.Remove:
			r.Kind = Removed
		}
		keys, sizes := distinct(seen, c.keys[q.first:q.first+q.n], c.sizes[q.first:q.first+q.n])
		if r.Kind == Wanted {
			r.Tokens = uint32(len(keys)) * b.t.BlockTokens
		}
		if err := b.AddRequest(r, keys, sizes); err != nil {
			return nil, fmt.Errorf("%s: call %d: %w", c.name, i+1, err)
		}
	}
	if b.requests() == 0 {
		return nil, fmt.Errorf("%s: %s: no get or put in it: %w", c.name, Recording, ErrTrace)
	}
	t := b.Trace()
	t.Warnings = c.warnings
	if c.probes > 0 {
		t.Warnings = append(t.Warnings, fmt.Sprintf("%s: left out %d calls that only asked whether blocks exist", c.name, c.probes))
	}
	return t, nil
}

// distinct leaves out keys that were there before, which a call may name twice. It changes both slices and uses seen.
func distinct(seen map[uint64]bool, keys, sizes []uint64) (k, s []uint64) {
	clear(seen)
	k, s = keys[:0], sizes[:0]
	for i, key := range keys {
		if !seen[key] {
			seen[key] = true
			k, s = append(k, key), append(s, sizes[i])
		}
	}
	return k, s
}

// writeRecording writes requests as gets, from which the same requests are read again.
func writeRecording(w io.Writer, t *Trace) error {
	out, err := trace.NewWriter(w, trace.Header{Source: "mooncake replay convert " + t.Name, BlockTokens: t.BlockTokens})
	if err != nil {
		return err
	}
	ops := map[Kind]trace.Op{Wanted: trace.Get, Stored: trace.Put, Removed: trace.Remove}
	for i := range t.Requests {
		r := &t.Requests[i]
		parent := uint64(0)
		for _, id := range t.Blocks(i) {
			q := trace.Record{Op: ops[r.Kind], Tenant: r.Tenant, Batch: uint32(i + 1), TimeMS: r.TimeMS, Key: t.keys[id], Parent: parent}
			if r.Kind == Wanted {
				q.Flags = trace.Found // nobody puts what was found: each get is a request
			}
			if t.Sized() {
				q.Size = t.Size(id)
			}
			if err := out.Append(&q); err != nil {
				return err
			}
			parent = q.Key
		}
	}
	return out.Close()
}
