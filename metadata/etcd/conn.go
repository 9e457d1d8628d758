package etcd

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

const (
	// maxMessage is upstream's client-side limit of a message (etcd_wrapper.go).
	maxMessage = 32 << 20
	// pingTime is the smallest that gRPC allows and twice the smallest that etcd tolerates by default
	// (--grpc-keepalive-min-time 5s).
	pingTime    = 10 * time.Second
	pingTimeout = 3 * time.Second
	// pause is the wait before the first endpoint is tried again.
	pause = 100 * time.Millisecond
)

// conn is a client of one endpoint.
type conn struct {
	client   *clientv3.Client
	endpoint string
	// failing is when the first call after the last success ended without an answer, in Unix nanoseconds;
	// 0 if the last one was answered.
	failing atomic.Int64
}

// clientConfig is the configuration of the client for one endpoint.
func (b *Backend) clientConfig(endpoint string) clientv3.Config {
	cfg := clientv3.Config{
		Endpoints:            []string{endpoint},
		Context:              b.life.Context(),
		DialTimeout:          min(b.cfg.DialTimeout, b.attempt),
		DialKeepAliveTime:    pingTime,
		DialKeepAliveTimeout: pingTimeout,
		PermitWithoutStream:  false,
		MaxCallSendMsgSize:   maxMessage,
		MaxCallRecvMsgSize:   maxMessage,
		TLS:                  b.tls,
		Username:             b.set.username,
		Password:             b.set.password,
		Logger:               zap.NewNop(),
		// Enough to renew an expired authentication token; everything else is retried by call.
		MaxUnaryRetries: 2,
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: b.cfg.DialTimeout}),
			grpc.WithChainUnaryInterceptor(failFast),
		},
	}
	switch {
	case b.tls == nil:
		cfg.Endpoints[0] = "http://" + endpoint
	case b.tls.ServerName != "":
		creds := namedCredentials{credentials.NewTLS(b.tls), b.tls.ServerName}
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithTransportCredentials(creds))
	}
	return cfg
}

// namedCredentials check the server's certificate against the configured name. Without it gRPC would take
// the name from the endpoint that clientv3's resolver reports, and ignore the one in the TLS config.
type namedCredentials struct {
	credentials.TransportCredentials
	name string
}

func (c namedCredentials) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c.TransportCredentials.ClientHandshake(ctx, c.name, conn)
}

func (c namedCredentials) Clone() credentials.TransportCredentials {
	return namedCredentials{c.TransportCredentials.Clone(), c.name}
}

// failFast makes a call on a connection that cannot be established fail at once, so that call can go to
// the next endpoint; clientv3 asks gRPC to wait.
func failFast(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false))...)
}

// take returns the current conn, or makes one in a goroutine that outlives an impatient caller: clientv3
// logs in at that moment if there is a user.
func (b *Backend) take(ctx context.Context) (*conn, error) {
	select {
	case b.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c := b.conn; c != nil {
		<-b.lock
		return c, nil
	}
	type result struct {
		c   *conn
		err error
	}
	made := make(chan result, 1)
	running := b.life.Go(func(context.Context) {
		defer func() { <-b.lock }()
		endpoint := b.set.endpoints[b.next%len(b.set.endpoints)]
		client, err := clientv3.New(b.clientConfig(endpoint))
		if err != nil {
			b.next++
			made <- result{nil, err}
			return
		}
		b.conn = &conn{client: client, endpoint: endpoint}
		made <- result{b.conn, nil}
	})
	if !running {
		<-b.lock
		return nil, metadata.ErrClosed
	}
	select {
	case r := <-made:
		return r.c, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// drop replaces c: the next take connects to the next endpoint. Calls and watches that others have on c
// end with an error and are retried by their owners.
func (b *Backend) drop(c *conn, why error) {
	b.lock <- struct{}{}
	mine := b.conn == c && !b.life.Closed()
	if mine {
		b.conn = nil
		b.next++
	}
	<-b.lock
	if mine {
		b.log.Debug("etcd: leaving endpoint", "endpoint", c.endpoint, "error", b.target.Scrub(why.Error()))
		c.client.Close()
	}
}

// request describes one call for its error messages and its retries.
type request struct {
	op, key string
	prefix  bool // key is a prefix and may be empty
	size    int  // bytes of the values sent
	// repeat says that doing it twice is the same as doing it once.
	repeat bool
}

// call runs f against the cluster until it is answered or ctx ends. f returns nil, an error of this
// package's contract, or an error of the client.
func (b *Backend) call(ctx context.Context, req request, f func(context.Context, *clientv3.Client) error) error {
	ctx, done := b.life.Call(ctx, b.cfg.Timeout)
	defer done()
	if b.life.Closed() {
		return b.target.Fail(req.op, req.key, metadata.ErrClosed, nil)
	}
	if ctx.Err() != nil {
		return b.target.Ended(ctx, req.op, req.key, nil)
	}
	if req.key == "" && !req.prefix && req.op != "commit" && !strings.HasPrefix(req.op, "lease") {
		return b.target.CheckKey(req.op, req.key)
	}
	var last error
	for try := 1; ; try++ {
		c, err := b.take(ctx)
		sent := false
		if err == nil {
			attempt, cancel := context.WithTimeout(ctx, b.attempt)
			err = f(attempt, c.client)
			cancel()
			sent = mayBeApplied(err)
		}
		if definite, kind, cause := classify(err, req); definite {
			if c != nil {
				c.failing.Store(0)
			}
			if kind == nil {
				return nil
			}
			return b.target.Fail(req.op, req.key, kind, cause)
		}
		if ctx.Err() == nil || last == nil {
			last = explain(err)
		}
		if ctx.Err() != nil {
			if c != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				b.suspect(c, err)
			}
			return b.target.Ended(ctx, req.op, req.key, last)
		}
		if c != nil {
			b.drop(c, err)
		}
		if sent && !req.repeat {
			return b.target.Fail(req.op, req.key, metadata.ErrUnavailable, last)
		}
		if try%len(b.set.endpoints) == 0 && !remote.Sleep(ctx, pause) {
			return b.target.Ended(ctx, req.op, req.key, last)
		}
	}
}

// suspect notes that c did not answer within a caller's deadline, which may have been short. If it has
// answered nothing for the time of a whole attempt it is dropped, so that callers who are always in a
// hurry do not stay on a dead endpoint.
func (b *Backend) suspect(c *conn, why error) {
	now := time.Now().UnixNano()
	if since := c.failing.Load(); since == 0 {
		c.failing.CompareAndSwap(0, now)
	} else if now-since > int64(b.attempt) {
		b.drop(c, why)
	}
}

// dropSuspect replaces the connection if its last call was not answered.
func (b *Backend) dropSuspect() {
	b.lock <- struct{}{}
	c := b.conn
	<-b.lock
	if c != nil && c.failing.Load() != 0 {
		b.drop(c, errors.New("its last call was not answered"))
	}
}
