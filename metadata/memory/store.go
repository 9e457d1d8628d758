package memory

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
)

// Store is the service behind memory backends: keys, versions, watchers and leases. All methods may be
// called concurrently.
type Store struct {
	after func(time.Duration, func()) (stop func() bool)

	mu       sync.Mutex
	rev      uint64 // counts changes; the version of a key is the count at its last one
	items    map[string]item
	leases   map[*lease]struct{} // alive or running out
	watchers map[*watcher]struct{}
}

type item struct {
	value []byte
	rev   uint64
	lease *lease // nil if the key stays until deleted
}

// Option adjusts a store.
type Option func(*Store)

// WithAfterFunc replaces time.AfterFunc as the clock by which leases of closed backends run out: it must
// call f, in any goroutine, when d has passed, unless stop was called before.
func WithAfterFunc(after func(d time.Duration, f func()) (stop func() bool)) Option {
	return func(s *Store) { s.after = after }
}

// NewStore returns an empty store.
func NewStore(opts ...Option) *Store {
	s := &Store{
		after: func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop },
		items: map[string]item{}, leases: map[*lease]struct{}{}, watchers: map[*watcher]struct{}{},
	}
	for _, o := range opts {
		o(s)
	}
	return s
}

// Reset forgets all keys and leases, as a service does that restarts without a disk. Watchers are told to
// list again and all leases are lost.
func (s *Store) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.items)
	for l := range s.leases {
		s.end(l)
	}
	for w := range s.watchers {
		w.reset()
	}
}

func (s *Store) get(key string) (metadata.Entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	it, ok := s.items[key]
	if !ok {
		return metadata.Entry{}, false
	}
	return entry(key, it), true
}

func entry(key string, it item) metadata.Entry {
	return metadata.Entry{Key: key, Value: bytesClone(it.value), Version: version(it.rev)}
}

// bytesClone never returns nil: a key with an empty value is there.
func bytesClone(b []byte) []byte { return append(make([]byte, 0, len(b)), b...) }

func version(rev uint64) string { return strconv.FormatUint(rev, 10) }

func (s *Store) list(prefix string) []metadata.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []metadata.Entry{}
	for k, it := range s.items {
		if strings.HasPrefix(k, prefix) {
			out = append(out, entry(k, it))
		}
	}
	slices.SortFunc(out, func(a, b metadata.Entry) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// put reports false, and stores nothing, if l is a lease that has ended.
func (s *Store) put(key string, value []byte, l *lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l != nil && l.ended {
		return false
	}
	s.set(key, value, l)
	return true
}

func (s *Store) delete(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(key)
}

// commit returns the first key whose condition does not hold, and whether all did.
func (s *Store) commit(writes []metadata.Write) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range writes {
		if w.If == nil {
			continue
		}
		now := ""
		if it, ok := s.items[w.Key]; ok {
			now = version(it.rev)
		}
		if now != *w.If {
			return w.Key, false
		}
	}
	for _, w := range writes {
		if w.Delete {
			s.remove(w.Key)
		} else {
			s.set(w.Key, w.Value, nil)
		}
	}
	return "", true
}

// set and remove are the only places that change items. They hold mu.
func (s *Store) set(key string, value []byte, l *lease) {
	if old := s.items[key].lease; old != nil {
		delete(old.keys, key)
	}
	if l != nil {
		l.keys[key] = struct{}{}
	}
	s.rev++
	it := item{bytesClone(value), s.rev, l}
	s.items[key] = it
	for w := range s.watchers {
		if strings.HasPrefix(key, w.prefix) {
			w.push(metadata.Event{Type: metadata.EventPut, Entry: entry(key, it)})
		}
	}
}

func (s *Store) remove(key string) {
	it, ok := s.items[key]
	if !ok {
		return
	}
	if it.lease != nil {
		delete(it.lease.keys, key)
	}
	s.rev++
	delete(s.items, key)
	for w := range s.watchers {
		if strings.HasPrefix(key, w.prefix) {
			w.push(metadata.Event{Type: metadata.EventDelete, Entry: metadata.Entry{Key: key}})
		}
	}
}

func (s *Store) grant(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.keys = map[string]struct{}{}
	s.leases[l] = struct{}{}
}

// orphan lets a lease run out: its owner is gone.
func (s *Store) orphan(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	close(l.alive)
	l.stop = s.after(l.ttl, func() { s.revoke(l) })
}

// revoke ends a lease and removes its keys.
func (s *Store) revoke(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range l.keys {
		s.remove(key)
	}
	s.end(l)
}

func (s *Store) end(l *lease) {
	delete(s.leases, l)
	clear(l.keys)
	if l.stop != nil {
		l.stop()
	}
	if !l.ended {
		l.ended = true
		close(l.alive)
	}
}
