package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

var (
	errCluster  = errors.New("this is a Redis Cluster node; Redis Cluster is not supported, use a standalone server")
	errSentinel = errors.New("this is a Redis Sentinel; name the server itself")
	// errLeaseLost is the answer of the lease scripts when the marker is gone.
	errLeaseLost = errors.New("the server has forgotten the lease")
)

// request describes one call for its error messages and its retries.
type request struct {
	op, key string
	prefix  bool // key is a prefix and may be empty
	size    int  // bytes of the largest value sent
	// repeat says that doing it twice is the same as doing it once.
	repeat bool
}

// call runs f until the server answers or ctx ends. While the server cannot be reached the call waits for
// it, so that a quick restart is not noticed.
func (b *Backend) call(ctx context.Context, req request, f func(context.Context) error) error {
	ctx, done := b.life.Call(ctx, b.cfg.Timeout)
	defer done()
	if b.life.Closed() {
		return b.target.Fail(req.op, req.key, metadata.ErrClosed, nil)
	}
	if ctx.Err() != nil {
		return b.target.Ended(ctx, req.op, req.key, nil)
	}
	if req.key == "" && !req.prefix {
		return b.target.CheckKey(req.op, req.key)
	}
	if req.size > maxValue {
		return b.tooLarge(req)
	}
	var last error
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		err := f(ctx)
		if definite, kind, cause := classify(err); definite {
			switch kind {
			case nil:
				return nil
			case metadata.ErrTooLarge:
				return b.tooLarge(req)
			}
			return b.target.Fail(req.op, req.key, kind, cause)
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if ctx.Err() != nil {
			return b.target.Ended(ctx, req.op, req.key, last)
		}
		if !req.repeat && mayBeApplied(err) {
			return b.target.Fail(req.op, req.key, metadata.ErrUnavailable, last)
		}
		if !remote.Sleep(ctx, pause) {
			return b.target.Ended(ctx, req.op, req.key, last)
		}
	}
}

func (b *Backend) tooLarge(req request) error {
	return b.target.Fail(req.op, req.key, metadata.ErrTooLarge, fmt.Errorf("a value has %d bytes, redis takes up to its setting "+
		"proto-max-bulk-len (%d unless set)", req.size, maxValue))
}

// classify tells whether err is an answer of the server that stands (definite), and if so which error of
// the contract it is (nil for success) and why.
func classify(err error) (definite bool, kind, cause error) {
	if err == nil {
		return true, nil, nil
	}
	for _, kind := range []error{metadata.ErrConflict, metadata.ErrClosed} {
		if errors.Is(err, kind) {
			return true, kind, nil
		}
	}
	switch {
	case errors.Is(err, redis.Nil):
		return true, metadata.ErrNotFound, nil
	case errors.Is(err, errLeaseLost):
		return true, metadata.ErrLeaseLost, err
	case errors.Is(err, errCluster), errors.Is(err, errSentinel):
		return true, metadata.ErrRefused, err
	}
	var answer redis.Error
	if !errors.As(err, &answer) {
		return false, nil, nil
	}
	text := answer.Error()
	switch word, _, _ := strings.Cut(text, " "); word {
	case "LOADING", "MASTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS", "UNBLOCKED":
		return false, nil, nil
	case "MOVED", "ASK", "CLUSTERDOWN", "CROSSSLOT":
		return true, metadata.ErrRefused, errCluster
	case "READONLY":
		return true, metadata.ErrRefused, errors.New(text + " (name the primary)")
	case "OOM":
		return true, metadata.ErrRefused, errors.New(text + " (its setting maxmemory)")
	}
	switch {
	case strings.Contains(text, "max number of clients"):
		return false, nil, nil
	case strings.Contains(text, "invalid bulk length"), strings.Contains(text, "too big"):
		return true, metadata.ErrTooLarge, nil
	}
	return true, metadata.ErrRefused, errors.New(text)
}

// mayBeApplied tells whether a write that failed with err could have reached the server.
func mayBeApplied(err error) bool {
	var op *net.OpError
	var answer redis.Error
	dialing := errors.As(err, &op) && op.Op == "dial"
	return !dialing && !errors.As(err, &answer) && !errors.Is(err, redis.ErrPoolTimeout)
}
