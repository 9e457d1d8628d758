package transfer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/mooncake-agent/mooncake/core/transfer/handshake"
)

// Message is a notification: a label and a text, of any content.
type Message = handshake.Message

// inboxBytes bounds the memory of received notifications.
const inboxBytes = 64 << 20

// inbox is a bounded queue; the oldest messages go first.
type inbox struct {
	limit  int
	signal chan struct{} // holds a token when messages came

	mu    sync.Mutex
	m     []Message
	bytes int
}

func (q *inbox) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.m)
}

func size(m Message) int { return len(m.Name) + len(m.Text) + 64 }

// put returns how many messages were dropped for it.
func (q *inbox) put(m Message) (dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.m = append(q.m, m)
	q.bytes += size(m)
	for len(q.m) > q.limit || q.bytes > inboxBytes && len(q.m) > 1 {
		q.bytes -= size(q.m[0])
		q.m[0] = Message{}
		q.m = q.m[1:]
		dropped++
	}
	signal(q.signal)
	return dropped
}

func (q *inbox) take() []Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := q.m
	q.m, q.bytes = nil, 0
	return m
}

func (e *Engine) received(m Message) {
	e.m.notifies.WithLabelValues("received").Inc()
	if n := e.inbox.put(m); n > 0 {
		e.m.notifies.WithLabelValues("dropped").Add(float64(n))
	}
}

// Notifies returns the notifications received since the last call, oldest first. The engine keeps
// notify_queue of them and no more than 64 MiB; when nobody takes them, the oldest are dropped and counted.
func (e *Engine) Notifies() []Message { return e.inbox.take() }

// WaitNotifies is Notifies that waits until there is at least one.
func (e *Engine) WaitNotifies(ctx context.Context) ([]Message, error) {
	for {
		if m := e.inbox.take(); len(m) > 0 {
			return m, nil
		}
		select {
		case <-e.inbox.signal:
		case <-ctx.Done():
			return nil, fmt.Errorf("transfer: wait for notifications: %w", context.Cause(ctx))
		case <-e.ctx.Done():
			return nil, fmt.Errorf("transfer: wait for notifications: %w", ErrState)
		}
	}
}

// Notify delivers a message to the engine behind a segment name. Errors as for Probe; handshake.ErrNoReply
// leaves open whether it arrived, and the peer drops a message above its length limit (1 MiB by default)
// that way.
func (e *Engine) Notify(ctx context.Context, target string, m Message) error {
	if err := e.running(); err != nil {
		return err
	}
	return e.notify(ctx, target, m)
}

func (e *Engine) notify(ctx context.Context, target string, m Message) error {
	err := e.withDaemon(ctx, target, func(addr string) error { return e.client.Notify(ctx, addr, m) })
	if err != nil {
		e.m.notifies.WithLabelValues("failed").Inc()
		return fmt.Errorf("transfer: notify %q: %w", target, err)
	}
	e.m.notifies.WithLabelValues("sent").Inc()
	return nil
}

// Probe asks whether the engine behind a segment name is alive. Errors tell what upstream's codes do:
// handshake.ErrResolve (the host has no address, -101), handshake.ErrConnect and handshake.ErrNoReply (-102),
// ErrNoRPCMeta (with a metadata service: it has no entry for the name, -200).
func (e *Engine) Probe(ctx context.Context, target string) error {
	if err := e.running(); err != nil {
		return err
	}
	err := e.withDaemon(ctx, target, func(addr string) error {
		host, port, _, err := handshake.SplitName(addr)
		if err != nil {
			return fmt.Errorf("%w: %w", handshake.ErrResolve, err)
		}
		return e.client.Probe(ctx, host, port)
	})
	if err != nil {
		return fmt.Errorf("transfer: probe %q: %w", target, err)
	}
	return nil
}

// signal sends a transport's message to a peer's daemon.
func (e *Engine) signal(ctx context.Context, target string, typ byte, req []byte) (reply []byte, err error) {
	err = e.withDaemon(ctx, target, func(addr string) error {
		reply, err = e.client.Call(ctx, addr, typ, req)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("transfer: signal %q: %w", target, err)
	}
	return reply, nil
}

// withDaemon calls f with the address of the target's daemon. With a metadata service the address is cached,
// and when nobody can be reached there it is read again and, if it has changed, tried once more.
func (e *Engine) withDaemon(ctx context.Context, target string, f func(addr string) error) error {
	target = strings.TrimLeft(target, "/")
	if target == "" {
		return fmt.Errorf("%w: the segment name is empty", ErrInvalid)
	}
	if e.st == nil {
		return f(target)
	}
	m, cached := e.daemons.get(target)
	var err error
	if !cached {
		if m, err = e.st.rpc(ctx, target); err != nil {
			return err
		}
	}
	err = f(m.addr())
	if err == nil {
		e.daemons.put(target, m)
		return nil
	}
	e.daemons.drop(target)
	if !cached || !errors.Is(err, handshake.ErrConnect) && !errors.Is(err, handshake.ErrResolve) && !errors.Is(err, handshake.ErrNoReply) {
		return err
	}
	again, rerr := e.st.rpc(ctx, target)
	if rerr != nil || again == m {
		return errors.Join(err, rerr)
	}
	if errors.Is(err, handshake.ErrNoReply) {
		return err // it may have been executed
	}
	if err = f(again.addr()); err == nil {
		e.daemons.put(target, again)
	}
	return err
}

// daemons caches where the daemons of other engines are.
type daemons struct {
	mu sync.Mutex
	m  map[string]rpcMeta
}

func (d *daemons) get(name string) (rpcMeta, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.m[name]
	return m, ok
}

func (d *daemons) put(name string, m rpcMeta) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.m == nil {
		d.m = map[string]rpcMeta{}
	}
	d.m[name] = m
}

func (d *daemons) drop(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.m, name)
}
