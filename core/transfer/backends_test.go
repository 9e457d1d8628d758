package transfer_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/metadata/memory"
)

// plain is a metadata service with the four basic calls only, as upstream's HTTP servers are. It
// records the writes and can be told to fail.
type plain struct {
	b metadata.Backend

	mu     sync.Mutex
	writes []string // "PUT key", "DELETE key"
	values map[string][][]byte
	fail   func(op, key string, value []byte) error
}

func newPlain(t testing.TB) *plain {
	b := memory.NewStore().Open()
	t.Cleanup(func() { b.Close() })
	return &plain{b: b, values: map[string][][]byte{}}
}

func (p *plain) setFail(f func(op, key string, value []byte) error) {
	p.mu.Lock()
	p.fail = f
	p.mu.Unlock()
}

func (p *plain) call(op, key string, value []byte) error {
	p.mu.Lock()
	f := p.fail
	p.mu.Unlock()
	if f != nil {
		if err := f(op, key, value); err != nil {
			return err
		}
	}
	if op != "GET" {
		p.mu.Lock()
		p.writes = append(p.writes, op+" "+key)
		p.values[key] = append(p.values[key], bytes.Clone(value))
		p.mu.Unlock()
	}
	return nil
}

func (p *plain) Get(ctx context.Context, key string) (metadata.Entry, error) {
	if err := p.call("GET", key, nil); err != nil {
		return metadata.Entry{}, err
	}
	return p.b.Get(ctx, key)
}

func (p *plain) Put(ctx context.Context, key string, value []byte) error {
	if err := p.call("PUT", key, value); err != nil {
		return err
	}
	return p.b.Put(ctx, key, value)
}

func (p *plain) Delete(ctx context.Context, key string) error {
	if err := p.call("DELETE", key, nil); err != nil {
		return err
	}
	return p.b.Delete(ctx, key)
}

func (p *plain) Close() error { return nil }

func (p *plain) log() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.writes...)
}

func (p *plain) count(write string) int {
	n := 0
	for _, w := range p.log() {
		if w == write {
			n++
		}
	}
	return n
}

func (p *plain) value(t testing.TB, key string) string {
	t.Helper()
	ent, err := p.b.Get(context.Background(), key)
	if err != nil {
		return ""
	}
	return string(ent.Value)
}

func unavailable(string, string, []byte) error {
	return fmt.Errorf("plain: %w", metadata.ErrUnavailable)
}

// refuseDuplicates answers as upstream's HTTP servers do to a PUT of an rpc_meta key that exists: the C++
// server with another body, the Python server always.
func refuseDuplicates(p *plain, always bool) func(op, key string, value []byte) error {
	return func(op, key string, value []byte) error {
		if op != "PUT" || !strings.Contains(key, "rpc_meta") {
			return nil
		}
		ent, err := p.b.Get(context.Background(), key)
		if err != nil || !always && bytes.Equal(ent.Value, value) {
			return nil
		}
		return fmt.Errorf("plain: PUT %s: 400 Duplicate rpc_meta key not allowed: %w", key, metadata.ErrRefused)
	}
}

// named makes an engine in storage mode on loopback.
func named(name string, b metadata.Backend) func(*transfer.Options) {
	return func(o *transfer.Options) {
		o.LocalName, o.AdvertiseHost, o.Metadata = name, "127.0.0.1", b
	}
}
