package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/mooncake-agent/mooncake/metadata"
)

// Target names a service in error messages: "etcd 127.0.0.1:2379".
type Target struct {
	// Name is the backend, Addr its address or addresses as the user wrote them, without secrets.
	Name, Addr string
	// Secrets are cut out of every text that comes from outside.
	Secrets []string
}

// Fail builds the error of a call: "etcd 127.0.0.1:2379: put "key": reason: metadata service
// unavailable". It wraps kind, one of the sentinels of package metadata, and the context's error if cause
// is or wraps one; nothing else of cause, because a service may repeat what was sent to it. key may be
// empty, cause nil.
func (t Target) Fail(op, key string, kind, cause error) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: %s", t.Name, t.Addr, op)
	if key != "" {
		fmt.Fprintf(&b, " %q", shorten(key))
	}
	e := &callError{kind: kind}
	if cause != nil && cause != kind {
		switch {
		case errors.Is(cause, context.DeadlineExceeded), errors.Is(cause, os.ErrDeadlineExceeded):
			e.ctx = context.DeadlineExceeded
		case errors.Is(cause, context.Canceled):
			e.ctx = context.Canceled
		}
		fmt.Fprintf(&b, ": %s", t.Scrub(cause.Error()))
	}
	fmt.Fprintf(&b, ": %v", kind)
	e.msg = b.String()
	return e
}

// Refusef is Fail with metadata.ErrRefused and a reason.
func (t Target) Refusef(op, key, format string, args ...any) error {
	return t.Fail(op, key, metadata.ErrRefused, fmt.Errorf(format, args...))
}

// Ended is the error of a call whose context has ended: ErrClosed after Close, else ErrUnavailable
// with what the service said last, if anything.
func (t Target) Ended(ctx context.Context, op, key string, last error) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, metadata.ErrClosed) {
		return t.Fail(op, key, metadata.ErrClosed, nil)
	}
	if last != nil && !errors.Is(last, cause) {
		cause = fmt.Errorf("%s: %w", t.Scrub(last.Error()), cause)
	}
	return t.Fail(op, key, metadata.ErrUnavailable, cause)
}

// Scrub cuts the secrets out of a text.
func (t Target) Scrub(s string) string {
	for _, secret := range t.Secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "***")
		}
	}
	return s
}

// CheckKey refuses the empty key, which no service stores.
func (t Target) CheckKey(op, key string) error {
	if key == "" {
		return t.Refusef(op, "", "the key is empty")
	}
	return nil
}

// CheckWrites refuses empty and repeated keys in a Commit.
func (t Target) CheckWrites(writes []metadata.Write) error {
	seen := make(map[string]struct{}, len(writes))
	for _, w := range writes {
		if err := t.CheckKey("commit", w.Key); err != nil {
			return err
		}
		if _, dup := seen[w.Key]; dup {
			return t.Refusef("commit", w.Key, "the key occurs twice")
		}
		seen[w.Key] = struct{}{}
	}
	return nil
}

func shorten(key string) string {
	const most = 128
	if len(key) <= most {
		return key
	}
	return key[:most] + "..."
}

type callError struct {
	msg       string
	kind, ctx error
}

func (e *callError) Error() string { return e.msg }

func (e *callError) Unwrap() []error {
	if e.ctx == nil {
		return []error{e.kind}
	}
	return []error{e.kind, e.ctx}
}
