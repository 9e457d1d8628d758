package backend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/plugins/external"
	codesv1 "github.com/mooncake-agent/mooncake/plugins/proto/codes"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

const (
	// maxValue is the largest key and value that pass a message, with room for the rest of it.
	maxValue = 15 << 20
	// maxList bounds the bytes of one List.
	maxList = 256 << 20
	// endGrace is how long a process may take to end after its connection.
	endGrace = 100 * time.Millisecond
)

// backend has the calls that every plugin has, and those of features, which abilities.go makes visible.
type backend struct {
	program *external.Program
	plugin  *external.Plugin
	name    string // for errors

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	start  sync.Once
	close  sync.Once

	mu     sync.Mutex // guards closed against wg.Go
	closed bool
	wg     sync.WaitGroup // leases
}

var _ metadata.Backend = (*backend)(nil)

func newBackend(g *external.Program) *backend {
	b := &backend{program: g, plugin: g.Plugin(), name: "external " + g.Info().Name}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

func (b *backend) errorf(format string, args ...any) error {
	return fmt.Errorf(b.name+": "+format, args...)
}

// process returns the ready process; the first call starts the plugin and waits for it.
func (b *backend) process(ctx context.Context) (*external.Process, error) {
	b.start.Do(func() { _ = b.plugin.Start(nil) }) // it fails only after Close, and then Process does too
	p, err := b.plugin.Process(ctx)
	if b.ctx.Err() != nil {
		return nil, metadata.ErrClosed
	}
	switch {
	case errors.Is(err, external.ErrConfigRefused): // it will not come
		return nil, fmt.Errorf("%w: %w", metadata.ErrRefused, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", metadata.ErrUnavailable, err)
	}
	return p, nil
}

// bound is ctx with the backend's own time if it has none, and ended by Close.
func (b *backend) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(b.ctx, cancel)
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() { stop(); cancel() }
	}
	limited, end := context.WithTimeout(ctx, b.program.Config().CallTimeout)
	return limited, func() { end(); stop(); cancel() }
}

// do runs one call on the ready process.
func (b *backend) do(ctx context.Context, what string, f func(context.Context, pluginv1.MetadataServiceClient) (*pluginv1.Error, error)) error {
	ctx, end := b.bound(ctx)
	defer end()
	p, err := b.process(ctx)
	if err == nil {
		err = b.on(ctx, p, f)
	}
	if err != nil {
		return b.errorf("%s: %w", what, err)
	}
	return nil
}

// on runs one call on a process. What the plugin must not do is its fault.
func (b *backend) on(ctx context.Context, p *external.Process, f func(context.Context, pluginv1.MetadataServiceClient) (*pluginv1.Error, error)) error {
	if err := ctx.Err(); err != nil {
		return b.ended(ctx)
	}
	answer, err := f(ctx, pluginv1.NewMetadataServiceClient(p.Conn()))
	if err == nil {
		return b.answered(p, answer)
	}
	return b.failed(ctx, p, err)
}

// answered turns the plugin's own error into one of the contract.
func (b *backend) answered(p *external.Process, e *pluginv1.Error) error {
	if e == nil {
		return nil
	}
	sentinel := codesv1.MetadataError(e.Code)
	if sentinel == nil || e.Code == pluginv1.ErrorCode_ERROR_CODE_CLOSED {
		// A bug of the plugin, or it is going away by itself.
		sentinel = metadata.ErrUnavailable
		p.Fault(fmt.Errorf("it answered %s: %.1000q", e.Code, e.Message))
	}
	return fmt.Errorf("%.1000q: %w", e.Message, sentinel)
}

// failed explains a call without an answer.
func (b *backend) failed(ctx context.Context, p *external.Process, err error) error {
	if ctx.Err() != nil {
		return b.ended(ctx)
	}
	code := status.Code(err)
	if code == codes.Unavailable || code == codes.Canceled { // the connection may be seen to end first
		select {
		case <-p.Dead():
			return fmt.Errorf("%w: the plugin's process ended: %s", metadata.ErrUnavailable, p.Exit())
		case <-time.After(endGrace):
		case <-ctx.Done():
			return b.ended(ctx)
		}
	}
	if code != codes.DeadlineExceeded && code != codes.Canceled {
		p.Fault(err)
	}
	return fmt.Errorf("%w: %w", metadata.ErrUnavailable, err)
}

// ended says why ctx did.
func (b *backend) ended(ctx context.Context) error {
	if b.ctx.Err() != nil {
		return metadata.ErrClosed
	}
	return fmt.Errorf("%w: %w", metadata.ErrUnavailable, context.Cause(ctx))
}

// badAnswer is what the protocol does not allow.
func badAnswer(format string, args ...any) error {
	return status.Errorf(codes.Internal, format, args...)
}

func checkKey(key string) error {
	if key == "" {
		return fmt.Errorf("the key is empty: %w", metadata.ErrRefused)
	}
	return nil
}

func checkSize(key string, value []byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if n := len(key) + len(value); n > maxValue {
		return fmt.Errorf("%.60q: %d bytes, the limit of a message to a plugin is %d: %w", key, n, maxValue, metadata.ErrTooLarge)
	}
	return nil
}

// entry checks what a plugin says that a key holds.
func (b *backend) entry(e *pluginv1.Entry) (metadata.Entry, error) {
	if e == nil || len(e.Key) == 0 {
		return metadata.Entry{}, badAnswer("an entry without a key")
	}
	if !b.program.Has(featureCommit) {
		return metadata.Entry{Key: string(e.Key), Value: e.Value}, nil // nobody can use a version
	}
	if e.Version == "" {
		return metadata.Entry{}, badAnswer("entry %.60q has no version, which the feature commit wants", e.Key)
	}
	return metadata.Entry{Key: string(e.Key), Value: e.Value, Version: e.Version}, nil
}

// Get implements metadata.Backend.
func (b *backend) Get(ctx context.Context, key string) (out metadata.Entry, err error) {
	what := fmt.Sprintf("get %.100q", key)
	if err := b.refuse(what, checkKey(key)); err != nil {
		return out, err
	}
	err = b.do(ctx, what, func(ctx context.Context, c pluginv1.MetadataServiceClient) (*pluginv1.Error, error) {
		resp, err := c.Get(ctx, &pluginv1.GetRequest{Key: []byte(key)})
		if err != nil || resp.Error != nil {
			return resp.GetError(), err
		}
		if out, err = b.entry(resp.Entry); err == nil && out.Key != key {
			err = badAnswer("Get of %.60q answered %.60q", key, out.Key)
		}
		return nil, err
	})
	if err != nil {
		return metadata.Entry{}, err
	}
	return out, nil
}

// refuse is for calls that are wrong before they are made.
func (b *backend) refuse(what string, err error) error {
	if b.ctx.Err() != nil {
		err = metadata.ErrClosed
	}
	if err != nil {
		return b.errorf("%s: %w", what, err)
	}
	return nil
}

// Put implements metadata.Backend.
func (b *backend) Put(ctx context.Context, key string, value []byte) error {
	what := fmt.Sprintf("put %.100q", key)
	if err := b.refuse(what, checkSize(key, value)); err != nil {
		return err
	}
	return b.do(ctx, what, func(ctx context.Context, c pluginv1.MetadataServiceClient) (*pluginv1.Error, error) {
		resp, err := c.Put(ctx, &pluginv1.PutRequest{Key: []byte(key), Value: value})
		return resp.GetError(), err
	})
}

// Delete implements metadata.Backend.
func (b *backend) Delete(ctx context.Context, key string) error {
	what := fmt.Sprintf("delete %.100q", key)
	if err := b.refuse(what, checkKey(key)); err != nil {
		return err
	}
	return b.do(ctx, what, func(ctx context.Context, c pluginv1.MetadataServiceClient) (*pluginv1.Error, error) {
		resp, err := c.Delete(ctx, &pluginv1.DeleteRequest{Key: []byte(key)})
		return resp.GetError(), err
	})
}

// Close implements metadata.Backend. It waits until the process is dead.
func (b *backend) Close() (err error) {
	b.close.Do(func() {
		b.mu.Lock()
		b.closed = true
		b.mu.Unlock()
		b.cancel()
		b.wg.Wait()
		err = b.plugin.Stop()
	})
	return err
}

// goOn runs f in a goroutine that Close waits for; it is false after Close.
func (b *backend) goOn(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.wg.Go(f)
	return true
}

// sleep is false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

var errStream = errors.New("the plugin ended the stream")
