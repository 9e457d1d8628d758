// Package metadata is the contract of metadata backends: small key-value stores in which engines
// publish their segment descriptors and find those of others.
//
// A backend implements [Backend] and registers itself in [Kind]. What it can do beyond the four basic
// calls it shows by implementing [Lister], [Committer], [Watcher] and [Leaser], and only those it really
// has: callers find out by type assertion, and the suite in metadatatest checks that the declared set
// is exact.
//
// The lowest common semantics, tested on every backend: a Get that starts after a Put returned sees
// that value or a later one; writes of one key are totally ordered; nothing is promised across keys
// except inside one Commit. Values are stored byte for byte: framing that upstream adds (a trailing
// newline on etcd and redis, none on http) belongs to the Transfer Engine's encoder.
package metadata

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/mooncake-agent/mooncake/core/module"
)

// Kind is the registry of metadata backends.
var Kind = module.NewKind[Backend]("metadata backend")

var (
	// ErrNotFound is answered by Get for a key without a value.
	ErrNotFound = errors.New("metadata key not found")
	// ErrConflict is answered by Commit when a condition did not hold; nothing was written.
	ErrConflict = errors.New("metadata version conflict")
	// ErrUnavailable means that the service could not be reached or did not answer in time. The
	// write may or may not have happened.
	ErrUnavailable = errors.New("metadata service unavailable")
	// ErrTooLarge means that the service refuses values of this size; the message names the size, the
	// limit and the setting that raises it.
	ErrTooLarge = errors.New("metadata value too large")
	// ErrRefused is a definite "no" of the service (authentication, a duplicate key, a bad request).
	ErrRefused = errors.New("metadata service refused")
	// ErrLeaseLost is answered by Lease.Put after the lease has ended.
	ErrLeaseLost = errors.New("metadata lease lost")
	// ErrClosed is answered by every call after Close, and by calls that Close interrupted.
	ErrClosed = errors.New("metadata backend closed")
)

// Entry is one key with its value.
type Entry struct {
	Key   string
	Value []byte
	// Version identifies this state of the key for Write.If. It is opaque: compare for equality only.
	// Backends without Committer leave it empty.
	Version string
}

// Backend is a small key-value store. Constructors do not dial: the first call does, so that
// "config check" can build every backend. All methods may be called concurrently, honour ctx, and
// bound themselves by the backend's own timeout when ctx has no deadline. Keys are any non-empty bytes;
// an empty key is ErrRefused. Errors wrap one of the sentinels above, and the context's error where that
// ended the call, and name backend and address, never a password.
type Backend interface {
	// Get returns the entry or an error that wraps ErrNotFound. The caller owns the value.
	Get(ctx context.Context, key string) (Entry, error)
	// Put stores value under key, replacing what was there. The value is not kept after return.
	Put(ctx context.Context, key string, value []byte) error
	// Delete removes key. Deleting an absent key is not an error.
	Delete(ctx context.Context, key string) error
	// Close releases connections and ends all watches and lease renewals; leases are left to expire
	// unless revoked before. Calls after Close answer ErrClosed; a second Close does nothing.
	Close() error
}

// Lister can enumerate keys.
type Lister interface {
	// List returns all entries whose key starts with prefix, sorted by key.
	List(ctx context.Context, prefix string) ([]Entry, error)
}

// Write is one change inside a Commit.
type Write struct {
	Key    string
	Value  []byte
	Delete bool
	// If is a condition on the key's state before the Commit: nil = none, pointer to "" = the key
	// must be absent, otherwise the Version that Get or List returned.
	If *string
}

// Committer writes several keys all or nothing.
type Committer interface {
	// Commit applies all writes in one step if all conditions hold, else ErrConflict and nothing is
	// written. Keys inside one Commit must be distinct.
	Commit(ctx context.Context, writes ...Write) error
}

// EventType says what happened to a key.
type EventType uint8

const (
	// EventPut: the key has a new value (Entry is complete).
	EventPut EventType = iota + 1
	// EventDelete: the key is gone (only Entry.Key is set).
	EventDelete
	// EventReset: events may have been lost; list again. Entry is empty.
	EventReset
)

// Event is one observed change.
type Event struct {
	Type  EventType
	Entry Entry
}

// Watcher reports changes.
type Watcher interface {
	// Watch yields changes of keys that start with prefix, beginning at the latest when the first
	// EventReset is yielded (every watch starts with one: list after it). Events of one key arrive in
	// order; intermediate values may be skipped. After a reconnect the backend yields EventReset. The sequence ends
	// when ctx ends, when the consumer stops or at Close; an error is yielded for each failed attempt
	// to reconnect and the watch goes on.
	Watch(ctx context.Context, prefix string) iter.Seq2[Event, error]
}

// PollingWatcher marks a Watcher that finds changes by looking again and again. A watch then costs the
// service as much as a List each time: whoever cares for a few known keys reads those instead.
type PollingWatcher interface {
	Watcher
	// WatchPolls does nothing.
	WatchPolls()
}

// DefaultLeaseTTL is the default of the key lease_ttl, which every backend with leases has.
const DefaultLeaseTTL = 10 * time.Second

// Leaser can tie keys to the life of their owner.
type Leaser interface {
	// Lease starts a lease that the backend renews by itself at a third of ttl until Revoke or
	// Close. Keys put with it vanish at most ttl (plus the service's granularity, 1 s) after the
	// owner died. ttl 0 means the backend's key lease_ttl ([DefaultLeaseTTL] if that is 0 too); otherwise
	// less than 1 s is ErrRefused. A Put outside the lease detaches the key from it.
	Lease(ctx context.Context, ttl time.Duration) (Lease, error)
}

// Lease is a running lease.
type Lease interface {
	// Put stores a key that lives as long as the lease. ErrLeaseLost after it has ended.
	Put(ctx context.Context, key string, value []byte) error
	// Alive is closed when the lease was lost (renewal failed for a full ttl, or the service forgot
	// it), revoked, or is no longer renewed because the backend was closed. After a loss the owner takes a
	// new lease and puts its keys again.
	Alive() <-chan struct{}
	// Revoke ends the lease and deletes its keys, except those that somebody else has overwritten
	// since. It is idempotent.
	Revoke(ctx context.Context) error
}
