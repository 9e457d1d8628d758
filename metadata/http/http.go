package http

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/internal/remote"
)

func init() {
	module.Define(metadata.Kind, "http", "Mooncake's HTTP metadata server", defaultConfig(), New, module.Alias("https"))
}

// Backend is a client of one HTTP metadata server.
type Backend struct {
	cfg    Config
	base   string
	client *http.Client
	life   *remote.Life
	target remote.Target
}

var _ metadata.Backend = (*Backend)(nil)

// New builds a backend. It reads the TLS files and does not dial.
func New(_ context.Context, env module.Env, c Config) (metadata.Backend, error) {
	return newBackend(env, c)
}

func newBackend(env module.Env, c Config) (*Backend, error) {
	base, err := parseURL(c.URL)
	if err != nil {
		return nil, err
	}
	tlsConfig, err := c.TLS.Config(false)
	if err != nil {
		return nil, err
	}
	if env.Log != nil && base.defaulted {
		env.Log.Warn("http metadata: the url has no path, using "+base.shown+
			"; engines of upstream would ask for / here and fail, so write the path", "url", base.shown)
	}
	if env.Log != nil && c.TLS.InsecureSkipVerify {
		env.Log.Warn("http metadata: tls.insecure_skip_verify accepts any server certificate")
	}
	return &Backend{
		cfg: c, base: base.url, life: remote.NewLife(),
		target: remote.Target{Name: "http metadata", Addr: base.shown, Secrets: []string{base.password}},
		client: &http.Client{
			Transport: &http.Transport{
				Proxy:                 http.ProxyFromEnvironment,
				DialContext:           (&net.Dialer{Timeout: c.ConnectTimeout}).DialContext,
				TLSHandshakeTimeout:   c.ConnectTimeout,
				TLSClientConfig:       tlsConfig,
				MaxIdleConnsPerHost:   8,
				IdleConnTimeout:       90 * time.Second,
				ExpectContinueTimeout: time.Second,
				DisableCompression:    true,
			},
			// Upstream does not follow redirects either.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// escape is libcurl's curl_easy_escape.
func escape(key string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(key) + len(key)/2)
	for i := range len(key) {
		switch c := key[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_', c == '~':
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}

// Get implements metadata.Backend.
func (b *Backend) Get(ctx context.Context, key string) (metadata.Entry, error) {
	status, body, err := b.do(ctx, http.MethodGet, key, nil)
	switch {
	case err != nil:
		return metadata.Entry{}, err
	case status == http.StatusOK:
		return metadata.Entry{Key: key, Value: body}, nil
	case status == http.StatusNotFound:
		return metadata.Entry{}, b.target.Fail("get", key, metadata.ErrNotFound, nil)
	}
	return metadata.Entry{}, b.answer("get", key, status, body, 0)
}

// Put implements metadata.Backend.
func (b *Backend) Put(ctx context.Context, key string, value []byte) error {
	if len(value) > int(b.cfg.MaxValue) {
		return b.target.Fail("put", key, metadata.ErrTooLarge, fmt.Errorf("the value has %d bytes, max_value allows %d",
			len(value), uint64(b.cfg.MaxValue)))
	}
	status, body, err := b.do(ctx, http.MethodPut, key, value)
	switch {
	case err != nil:
		return err
	case status == http.StatusOK:
		return nil
	case status == http.StatusBadRequest && strings.Contains(key, "rpc_meta"):
		// The Python server refuses even the same value.
		if now, err := b.Get(ctx, key); err == nil && bytes.Equal(now.Value, value) {
			return nil
		}
	}
	return b.answer("put", key, status, body, len(value))
}

// Delete implements metadata.Backend.
func (b *Backend) Delete(ctx context.Context, key string) error {
	status, body, err := b.do(ctx, http.MethodDelete, key, nil)
	if err == nil && status != http.StatusOK && status != http.StatusNotFound {
		err = b.answer("delete", key, status, body, 0)
	}
	return err
}

// answer is the error for a status that is not success.
func (b *Backend) answer(op, key string, status int, body []byte, size int) error {
	text := strings.Join(strings.Fields(string(body[:min(len(body), 300)])), " ")
	cause := fmt.Errorf("HTTP %d %s: %s", status, http.StatusText(status), text)
	switch {
	case status == http.StatusRequestEntityTooLarge:
		return b.target.Fail(op, key, metadata.ErrTooLarge, fmt.Errorf("the value has %d bytes; the server says: %w "+
			"(the Python tool of the wheel takes 1 MiB; the server in mooncake_master and ours take more)", size, cause))
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status >= 500 && status != http.StatusNotImplemented:
		return b.target.Fail(op, key, metadata.ErrUnavailable, cause)
	case status == http.StatusNotFound: // to a PUT
		return b.target.Fail(op, key, metadata.ErrRefused, fmt.Errorf("%w; is the path of the url right? Mooncake's servers have /metadata", cause))
	}
	return b.target.Fail(op, key, metadata.ErrRefused, cause)
}

// do sends one request and reads the whole answer.
func (b *Backend) do(ctx context.Context, method, key string, value []byte) (int, []byte, error) {
	op := strings.ToLower(method)
	if b.life.Closed() {
		return 0, nil, b.target.Fail(op, key, metadata.ErrClosed, nil)
	}
	if err := ctx.Err(); err != nil {
		return 0, nil, b.target.Ended(ctx, op, key, nil)
	}
	if err := b.target.CheckKey(op, key); err != nil {
		return 0, nil, err
	}
	// A call that overtakes Close puts its connection back after Close has dropped the idle ones.
	defer func() {
		if b.life.Closed() {
			b.client.CloseIdleConnections()
		}
	}()
	ctx, done := b.life.Call(ctx, b.cfg.Timeout)
	defer done()
	var payload io.Reader
	if method == http.MethodPut {
		payload = bytes.NewReader(value)
	}
	req, err := http.NewRequestWithContext(ctx, method, b.base+"?key="+escape(key), payload)
	if err != nil {
		return 0, nil, b.target.Fail(op, key, metadata.ErrRefused, errors.New("the request cannot be built"))
	}
	// The headers of upstream's client.
	req.Header = http.Header{"Accept": {"*/*"}, "User-Agent": nil,
		// All four calls may be sent twice; an empty slice says so without sending the header.
		"Idempotency-Key": {}}
	if method == http.MethodPut {
		req.Header.Set("Content-Type", "application/json")
		if len(value) > 1<<20 { // where libcurl begins to ask first
			req.Header.Set("Expect", "100-continue")
		}
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return 0, nil, b.failed(ctx, op, key, err)
	}
	defer resp.Body.Close()
	limit := int64(b.cfg.MaxValue)
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return 0, nil, b.failed(ctx, op, key, err)
	}
	if int64(len(body)) > limit {
		return 0, nil, b.target.Fail(op, key, metadata.ErrTooLarge, fmt.Errorf("the server's value has more than the %d bytes of max_value", limit))
	}
	return resp.StatusCode, body, nil
}

// failed is the error of a request without an answer. It leaves out the URL that net/http puts in front.
func (b *Backend) failed(ctx context.Context, op, key string, err error) error {
	var withURL *url.Error
	if errors.As(err, &withURL) {
		err = withURL.Err
	}
	if ctx.Err() != nil {
		return b.target.Ended(ctx, op, key, err)
	}
	return b.target.Fail(op, key, metadata.ErrUnavailable, err)
}

// Close implements metadata.Backend.
func (b *Backend) Close() error {
	b.life.Close()
	b.client.CloseIdleConnections()
	return nil
}
