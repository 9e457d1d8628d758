package backend

import (
	"context"
	"iter"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
)

// Each of these adds one ability to a backend.
type (
	lister    struct{ of *backend }
	committer struct{ of *backend }
	watcher   struct{ of *backend }
	poller    struct{ of *backend }
	leaser    struct{ of *backend }
)

var (
	_ metadata.Lister         = lister{}
	_ metadata.Committer      = committer{}
	_ metadata.Watcher        = watcher{}
	_ metadata.PollingWatcher = poller{}
	_ metadata.Leaser         = leaser{}
)

// List implements metadata.Lister.
func (a lister) List(ctx context.Context, prefix string) ([]metadata.Entry, error) {
	return a.of.list(ctx, prefix)
}

// Commit implements metadata.Committer.
func (a committer) Commit(ctx context.Context, writes ...metadata.Write) error {
	return a.of.commit(ctx, writes...)
}

// Watch implements metadata.Watcher.
func (a watcher) Watch(ctx context.Context, prefix string) iter.Seq2[metadata.Event, error] {
	return a.of.watch(ctx, prefix)
}

// Watch implements metadata.Watcher.
func (a poller) Watch(ctx context.Context, prefix string) iter.Seq2[metadata.Event, error] {
	return a.of.watch(ctx, prefix)
}

// WatchPolls implements metadata.PollingWatcher.
func (poller) WatchPolls() {}

// Lease implements metadata.Leaser.
func (a leaser) Lease(ctx context.Context, ttl time.Duration) (metadata.Lease, error) {
	return a.of.lease(ctx, ttl)
}

// set is a set of abilities.
type set struct {
	list, commit bool
	watch        int
	lease        bool
}

// How a plugin watches.
const (
	watchNot = iota
	watchPush
	watchPoll
)

// withAbilities is b with the methods of exactly those abilities that its program announced: callers find out by type
// assertion, so that each set is a type of its own.
func (b *backend) withAbilities() metadata.Backend {
	g := b.program
	s := set{list: g.Has(featureList), commit: g.Has(featureCommit), lease: g.Has(featureLease)}
	switch {
	case g.Has(featureWatch) && g.Has(featureWatchPolls):
		s.watch = watchPoll
	case g.Has(featureWatch):
		s.watch = watchPush
	}
	return sets[s](b)
}

// sets is complete.
var sets = map[set]func(*backend) metadata.Backend{
	set{false, false, watchNot, false}: func(b *backend) metadata.Backend { return b },
	set{false, false, watchNot, true}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			leaser
		}{b, leaser{b}}
	},
	set{false, false, watchPush, false}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			watcher
		}{b, watcher{b}}
	},
	set{false, false, watchPush, true}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			watcher
			leaser
		}{b, watcher{b}, leaser{b}}
	},
	set{false, false, watchPoll, false}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			poller
		}{b, poller{b}}
	},
	set{false, false, watchPoll, true}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			poller
			leaser
		}{b, poller{b}, leaser{b}}
	},
	set{false, true, watchNot, false}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			committer
		}{b, committer{b}}
	},
	set{false, true, watchNot, true}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			committer
			leaser
		}{b, committer{b}, leaser{b}}
	},
	set{false, true, watchPush, false}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			committer
			watcher
		}{b, committer{b}, watcher{b}}
	},
	set{false, true, watchPush, true}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			committer
			watcher
			leaser
		}{b, committer{b}, watcher{b}, leaser{b}}
	},
	set{false, true, watchPoll, false}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			committer
			poller
		}{b, committer{b}, poller{b}}
	},
	set{false, true, watchPoll, true}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			committer
			poller
			leaser
		}{b, committer{b}, poller{b}, leaser{b}}
	},
	set{true, false, watchNot, false}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			lister
		}{b, lister{b}}
	},
	set{true, false, watchNot, true}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			lister
			leaser
		}{b, lister{b}, leaser{b}}
	},
	set{true, false, watchPush, false}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			lister
			watcher
		}{b, lister{b}, watcher{b}}
	},
	set{true, false, watchPush, true}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			lister
			watcher
			leaser
		}{b, lister{b}, watcher{b}, leaser{b}}
	},
	set{true, false, watchPoll, false}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			lister
			poller
		}{b, lister{b}, poller{b}}
	},
	set{true, false, watchPoll, true}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			lister
			poller
			leaser
		}{b, lister{b}, poller{b}, leaser{b}}
	},
	set{true, true, watchNot, false}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			lister
			committer
		}{b, lister{b}, committer{b}}
	},
	set{true, true, watchNot, true}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			lister
			committer
			leaser
		}{b, lister{b}, committer{b}, leaser{b}}
	},
	set{true, true, watchPush, false}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			lister
			committer
			watcher
		}{b, lister{b}, committer{b}, watcher{b}}
	},
	set{true, true, watchPush, true}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			lister
			committer
			watcher
			leaser
		}{b, lister{b}, committer{b}, watcher{b}, leaser{b}}
	},
	set{true, true, watchPoll, false}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			lister
			committer
			poller
		}{b, lister{b}, committer{b}, poller{b}}
	},
	set{true, true, watchPoll, true}: func(b *backend) metadata.Backend {
		return struct {
			*backend
			lister
			committer
			poller
			leaser
		}{b, lister{b}, committer{b}, poller{b}, leaser{b}}
	},
}
