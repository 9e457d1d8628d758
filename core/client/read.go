package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/core/transfer"
)

// read moves the data of objects that were looked up, from different peers in parallel. What cannot be read from
// one replica is read from another. Outcomes are left in the objects. batch tells which function renews leases.
func (c *Client) read(ctx context.Context, rs []*reading, batch bool) {
	var first *collection
	var more map[string]*collection
	for _, r := range rs {
		if r.err != nil || r.over || len(r.dst) == 0 {
			continue
		}
		if !c.choose(r) {
			continue // cannot be: found and the caller have looked
		}
		switch e := r.cur.Endpoint; {
		case first == nil:
			first = &collection{c: c, batch: batch, endpoint: e, rs: []*reading{r}}
		case first.endpoint == e:
			first.rs = append(first.rs, r)
		default:
			if more == nil {
				more = map[string]*collection{}
			}
			if more[e] == nil {
				more[e] = &collection{c: c, batch: batch, endpoint: e}
			}
			more[e].rs = append(more[e].rs, r)
		}
	}
	if first == nil {
		return
	}
	var wg sync.WaitGroup
	for _, k := range more {
		wg.Go(func() { k.run(ctx) })
	}
	first.run(ctx)
	wg.Wait()
}

// collection is what one peer is asked for in a get call.
type collection struct {
	c        *Client
	batch    bool
	endpoint string
	rs       []*reading
}

func (k *collection) run(ctx context.Context) {
	c := k.c
	err := k.transfer(ctx)
	var again []*reading
	for _, r := range k.rs {
		if err != nil && !r.over {
			r.err = err
		}
		if r.over || r.err == nil {
			continue
		}
		if len(r.left) > 0 && ctx.Err() == nil && time.Now().Before(r.until) {
			c.log.Debug("a replica could not be read, the next one is tried", "key", r.key, "endpoint", k.endpoint, "err", r.err)
			r.err = nil
			again = append(again, r)
		}
	}
	if len(again) > 0 {
		c.read(ctx, again, k.batch)
	}
}

// transfer moves the data from the peer. An error is for all that are not over.
func (k *collection) transfer(ctx context.Context) error {
	c := k.c
	seg, err := c.open(ctx, k.endpoint)
	if err != nil {
		return fmt.Errorf("replica at %s: %w", k.endpoint, err)
	}
	reqs := make([]transfer.Request, len(k.rs))
	for i, r := range k.rs {
		reqs[i] = transfer.Request{Local: r.dst, Segment: seg, Remote: r.cur.Address + r.off}
	}
	b, err := c.engine.Submit(ctx, reqs)
	if err != nil {
		return fmt.Errorf("%w: replica at %s: %w", ErrTransfer, k.endpoint, err)
	}
	k.wait(ctx, b)
	return nil
}

// wait waits for the transfers and renews the leases of those that take long. Whatever ends after its lease has no
// value: the memory may have been given to another object.
func (k *collection) wait(ctx context.Context, b *transfer.Batch) {
	if b.Spin() {
		k.settle(b, time.Now(), true)
		b.Free()
		return
	}
	timer := leaseTimers.Get().(*time.Timer)
	defer func() {
		timer.Stop()
		leaseTimers.Put(timer)
	}()
	timer.Reset(untilRenewal(k.rs, time.Now()))
	for {
		select {
		case <-b.Done():
			k.settle(b, time.Now(), true)
			b.Free()
			return
		case <-timer.C:
		}
		now := time.Now()
		if k.settle(b, now, false) == 0 {
			b.Cancel() // nothing is worth waiting for
			<-b.Done()
			return
		}
		k.renew(ctx, b)
		if k.settle(b, time.Now(), false) == 0 {
			b.Cancel()
			<-b.Done()
			return
		}
		timer.Reset(untilRenewal(k.rs, time.Now()))
	}
}

var leaseTimers = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}}

// untilRenewal is when to renew next: when half of the time is gone that the shortest lease has left, but not
// too often.
func untilRenewal(rs []*reading, now time.Time) time.Duration {
	var first time.Time
	for _, r := range rs {
		if !r.over && (first.IsZero() || r.until.Before(first)) {
			first = r.until
		}
	}
	return max(first.Sub(now)/2, time.Millisecond)
}

// settle takes the results that are there and gives up reads whose lease is over. It returns how many go on.
func (k *collection) settle(b *transfer.Batch, now time.Time, done bool) (open int) {
	for i, r := range k.rs {
		if r.over || r.err != nil {
			continue
		}
		s := b.Status(i)
		switch {
		case s.State == transfer.Waiting && !done && now.Before(r.until):
			open++
		case !now.Before(r.until):
			r.over, r.err = true, ErrLeaseExpired
		case s.State == transfer.Completed:
			r.over, r.err = true, k.c.verify(r)
			if errors.Is(r.err, ErrChecksum) && len(r.left) > 0 {
				r.over = false // perhaps the other replica is whole
			}
		default:
			k.c.noteFailure(k.endpoint, s.Err)
			r.err = fmt.Errorf("%w: replica at %s: %w", ErrTransfer, k.endpoint, s.Err)
		}
	}
	return open
}

// verify checks a whole object against the checksum it was put with, if it has one and checksums are on.
func (c *Client) verify(r *reading) error {
	if !c.opt.Checksum || !r.list.Checksum.OK || uint64(len(r.dst)) != r.size {
		return nil
	}
	if sum := Checksum(0, r.dst); sum != r.list.Checksum.Value {
		return fmt.Errorf("%w: %016x, put with %016x", ErrChecksum, sum, r.list.Checksum.Value)
	}
	return nil
}

// renew asks the master again for what is still being read. Only an answer that comes before the old lease ends
// proves that the object was there all the time.
func (k *collection) renew(ctx context.Context, b *transfer.Batch) {
	c := k.c
	var open []*reading
	last := time.Time{}
	for _, r := range k.rs {
		if !r.over && r.err == nil {
			open = append(open, r)
			if r.until.After(last) {
				last = r.until
			}
		}
	}
	ctx, cancel := context.WithDeadline(ctx, last) // later the answer is worth nothing
	defer cancel()
	sent := time.Now()
	var results []wire.Result[wire.ReplicaList]
	var err error
	if k.batch {
		results, err = c.replicaLists(ctx, open)
	} else {
		var res wire.Result[wire.ReplicaList]
		res, err = call(ctx, c.quick, wire.GetReplicaList, idempotent, &wire.KeyRequest{Key: open[0].key, Tenant: c.tenant})
		results = []wire.Result[wire.ReplicaList]{res}
	}
	now := time.Now()
	k.settle(b, now, false) // what has come meanwhile, under the old lease
	if err != nil {
		c.m.renewals.WithLabelValues("failed").Add(float64(len(open)))
		return // there is time for another attempt, or the lease ends
	}
	for i, r := range open {
		switch res := &results[i]; {
		case r.over || r.err != nil:
		case res.Code != wire.OK || !r.same(&res.Value):
			r.until = now // what comes from now on is of no use
			c.m.renewals.WithLabelValues("lost").Inc()
		default:
			r.until = leaseEnd(sent, res.Value.LeaseTTLMS)
			c.m.renewals.WithLabelValues("renewed").Inc()
		}
	}
}
