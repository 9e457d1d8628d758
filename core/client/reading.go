package client

import (
	"fmt"
	"slices"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// reading is one object, or a part of one, being read.
type reading struct {
	key  string
	off  uint64 // where the part begins
	size uint64 // of the object
	dst  []byte // where the part goes
	err  error
	over bool // read, or failed for good

	list  wire.ReplicaList
	until time.Time      // end of the lease
	left  []wire.Replica // that can be tried, the best last
	cur   wire.Replica   // the one being read
}

// found takes the master's answer to a lookup that was sent at that time.
func (r *reading) found(sent time.Time, res *wire.Result[wire.ReplicaList], err error) {
	if err == nil && res.Code != wire.OK {
		err = res.Code
	}
	if err != nil {
		r.err = err
		return
	}
	r.list = res.Value
	r.until = leaseEnd(sent, r.list.LeaseTTLMS)
	r.left = r.left[:0]
	for _, rep := range slices.Backward(r.list.Replicas) {
		if rep.Kind == wire.KindMemory || rep.Kind == wire.KindNoF {
			r.left = append(r.left, rep)
			r.size = rep.Size
		}
	}
	if len(r.left) == 0 {
		if len(r.list.Replicas) == 0 {
			r.err = wire.ErrReplicaIsNotReady
			return
		}
		r.err = fmt.Errorf("%w: the object lies on a disk only, which this client does not read", ErrUnsupported)
	}
	for _, rep := range r.left {
		if rep.Size != r.size {
			r.err = fmt.Errorf("%w: the master gives replicas of %d and of %d bytes", ErrTransfer, r.size, rep.Size)
		}
	}
}

// maxLease bounds what a master may grant, so that the sum does not overflow.
const maxLease = 365 * 24 * time.Hour

// leaseEnd is when a lease ends at the latest, by the reader's clock: it cannot have begun before the request
// was sent.
func leaseEnd(sent time.Time, ttlMS uint64) time.Time {
	return sent.Add(time.Duration(min(ttlMS, uint64(maxLease/time.Millisecond))) * time.Millisecond)
}

// place gets memory for the object.
func (r *reading) place(f func(size uint64) ([]byte, error)) {
	if r.err == nil {
		r.dst, r.err = f(r.size)
	}
}

// same tells whether an answer to a renewal is about the object that is being read: the replica has its old id
// and place. Ids are given once in the life of a master.
func (r *reading) same(l *wire.ReplicaList) bool {
	if l.Checksum != r.list.Checksum {
		return false
	}
	for i := range l.Replicas {
		if sameReplica(&l.Replicas[i], &r.cur) {
			return true
		}
	}
	return false
}

// choose takes the best replica that is left: one in this process, then one whose peer has not failed just now, in
// the master's order, but beginning at a different one each time, so that all of them carry load.
func (c *Client) choose(r *reading) bool {
	if len(r.left) == 0 {
		return false
	}
	best, rank := -1, 3
	turn := 0
	if len(r.left) > 1 {
		turn = int(c.turn.Add(1) % uint32(len(r.left)))
	}
	for i := range r.left {
		k := (i + turn) % len(r.left)
		x := 1
		switch e := r.left[k].Endpoint; {
		case e == c.engine.Name() || e == c.engine.Address():
			x = 0
		case c.avoid.has(e):
			x = 2
		}
		if x < rank {
			best, rank = k, x
		}
	}
	r.cur = r.left[best]
	r.left = slices.Delete(r.left, best, best+1)
	return true
}
