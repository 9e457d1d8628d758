package external

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/mooncake-agent/mooncake/metadata"
	"github.com/mooncake-agent/mooncake/plugins/proto/codes"
	pluginv1 "github.com/mooncake-agent/mooncake/plugins/proto/v1"
)

// Features of metadata backends.
const (
	featureList       = "list"
	featureCommit     = "commit"
	featureWatch      = "watch"
	featureWatchPolls = "watch-polls"
	featureLease      = "lease"
)

// maxPage is about how much of a list goes into one message.
const maxPage = 1 << 20

// ServeMetadata serves a metadata backend, as Serve does. B is the concrete type that open returns: its optional abilities
// (metadata.Lister, Committer, Watcher, PollingWatcher, Leaser) are announced to the host. The backend is closed when the
// host ends the process.
func ServeMetadata[B metadata.Backend](a About, open func(Config) (B, error)) error {
	var zero B
	if any(zero) == nil {
		return errors.New("external: ServeMetadata wants the concrete type of the backend, not an interface")
	}
	s := &metadataServer{leases: map[string]metadata.Lease{}}
	p := Part{
		About: a, Kind: pluginv1.Kind_KIND_METADATA,
		Register: func(g *grpc.Server) { pluginv1.RegisterMetadataServiceServer(g, s) },
		Configure: func(_ context.Context, c Config) error {
			b, err := open(c)
			if err != nil {
				return err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.backend = b
			return nil
		},
		Shutdown: func(context.Context) error { return s.close() },
	}
	for feature, has := range map[string]bool{
		featureList: is[metadata.Lister](zero), featureCommit: is[metadata.Committer](zero), featureWatch: is[metadata.Watcher](zero),
		featureWatchPolls: is[metadata.PollingWatcher](zero), featureLease: is[metadata.Leaser](zero),
	} {
		if has {
			p.Features = append(p.Features, feature)
		}
	}
	slices.Sort(p.Features) // the same in each process
	return Serve(p)
}

// is tells whether v has the ability A.
func is[A any](v any) bool {
	_, ok := v.(A)
	return ok
}

// metadataServer is the MetadataService of one backend.
type metadataServer struct {
	pluginv1.UnimplementedMetadataServiceServer

	mu      sync.Mutex
	backend metadata.Backend // nil before Configure and after Shutdown
	leases  map[string]metadata.Lease
	last    uint64
}

// failure is nil for nil.
func failure(err error) *pluginv1.Error {
	if err == nil {
		return nil
	}
	return &pluginv1.Error{Code: codes.MetadataCode(err), Message: err.Error()}
}

func (s *metadataServer) close() error {
	s.mu.Lock()
	b := s.backend
	s.backend = nil
	s.mu.Unlock()
	if b == nil {
		return nil
	}
	return b.Close()
}

// get returns the backend.
func (s *metadataServer) get() (metadata.Backend, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.backend == nil {
		return nil, fmt.Errorf("not configured, or shut down: %w", metadata.ErrClosed)
	}
	return s.backend, nil
}

// able returns the backend's ability A. A host asks only for those that were announced.
func able[A any](s *metadataServer) (a A, err error) {
	b, err := s.get()
	if err != nil {
		return a, err
	}
	a, ok := b.(A)
	if !ok {
		return a, fmt.Errorf("the backend is no %T: %w", a, metadata.ErrRefused)
	}
	return a, nil
}

func message(e metadata.Entry) *pluginv1.Entry {
	return &pluginv1.Entry{Key: []byte(e.Key), Value: e.Value, Version: e.Version}
}

func (s *metadataServer) Get(ctx context.Context, r *pluginv1.GetRequest) (*pluginv1.GetResponse, error) {
	b, err := s.get()
	if err != nil {
		return &pluginv1.GetResponse{Error: failure(err)}, nil
	}
	e, err := b.Get(ctx, string(r.Key))
	if err != nil {
		return &pluginv1.GetResponse{Error: failure(err)}, nil
	}
	return &pluginv1.GetResponse{Entry: message(e)}, nil
}

func (s *metadataServer) Put(ctx context.Context, r *pluginv1.PutRequest) (*pluginv1.PutResponse, error) {
	b, err := s.get()
	if err == nil {
		err = b.Put(ctx, string(r.Key), r.Value)
	}
	return &pluginv1.PutResponse{Error: failure(err)}, nil
}

func (s *metadataServer) Delete(ctx context.Context, r *pluginv1.DeleteRequest) (*pluginv1.DeleteResponse, error) {
	b, err := s.get()
	if err == nil {
		err = b.Delete(ctx, string(r.Key))
	}
	return &pluginv1.DeleteResponse{Error: failure(err)}, nil
}

func (s *metadataServer) List(r *pluginv1.ListRequest, out grpc.ServerStreamingServer[pluginv1.ListResponse]) error {
	l, err := able[metadata.Lister](s)
	var all []metadata.Entry
	if err == nil {
		all, err = l.List(out.Context(), string(r.Prefix))
	}
	if err != nil {
		return out.Send(&pluginv1.ListResponse{Error: failure(err)})
	}
	page, size := &pluginv1.ListResponse{}, 0
	for _, e := range all {
		n := len(e.Key) + len(e.Value) + len(e.Version)
		if size > 0 && size+n > maxPage {
			if err := out.Send(page); err != nil {
				return err
			}
			page, size = &pluginv1.ListResponse{}, 0
		}
		page.Entries = append(page.Entries, message(e))
		size += n
	}
	return out.Send(page)
}

func (s *metadataServer) Commit(ctx context.Context, r *pluginv1.CommitRequest) (*pluginv1.CommitResponse, error) {
	c, err := able[metadata.Committer](s)
	if err == nil {
		writes := make([]metadata.Write, len(r.Writes))
		for i, w := range r.Writes {
			writes[i] = metadata.Write{Key: string(w.Key), Value: w.Value, Delete: w.Delete, If: w.IfVersion}
		}
		err = c.Commit(ctx, writes...)
	}
	return &pluginv1.CommitResponse{Error: failure(err)}, nil
}

func (s *metadataServer) Watch(r *pluginv1.WatchRequest, out grpc.ServerStreamingServer[pluginv1.WatchResponse]) error {
	w, err := able[metadata.Watcher](s)
	if err != nil {
		return out.Send(&pluginv1.WatchResponse{Error: failure(err)})
	}
	for e, err := range w.Watch(out.Context(), string(r.Prefix)) {
		resp := &pluginv1.WatchResponse{Error: failure(err)}
		if err == nil {
			resp.Events = []*pluginv1.WatchEvent{watchEvent(e)}
		}
		if err := out.Send(resp); err != nil {
			return err
		}
	}
	return nil
}

func watchEvent(e metadata.Event) *pluginv1.WatchEvent {
	switch e.Type {
	case metadata.EventPut:
		return &pluginv1.WatchEvent{Type: pluginv1.WatchEventType_WATCH_EVENT_TYPE_PUT, Entry: message(e.Entry)}
	case metadata.EventDelete:
		return &pluginv1.WatchEvent{Type: pluginv1.WatchEventType_WATCH_EVENT_TYPE_DELETE, Entry: &pluginv1.Entry{Key: []byte(e.Entry.Key)}}
	}
	return &pluginv1.WatchEvent{Type: pluginv1.WatchEventType_WATCH_EVENT_TYPE_RESET}
}

// revokeTime bounds the end of a lease that nobody has heard of.
const revokeTime = 5 * time.Second

// Lease keeps a lease while its stream lasts. When the host ends the stream without a LeaseRevoke the process is about to
// end, or has lost interest: the lease stays in the hands of the backend, whose Close leaves it to expire.
func (s *metadataServer) Lease(r *pluginv1.LeaseRequest, out grpc.ServerStreamingServer[pluginv1.LeaseResponse]) error {
	l, err := able[metadata.Leaser](s)
	var lease metadata.Lease
	if err == nil {
		lease, err = l.Lease(out.Context(), time.Duration(r.TtlMs)*time.Millisecond)
	}
	if err != nil {
		return out.Send(&pluginv1.LeaseResponse{Error: failure(err)})
	}
	s.mu.Lock()
	s.last++
	id := strconv.FormatUint(s.last, 10)
	s.leases[id] = lease
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.leases, id)
	}()
	if err := out.Send(&pluginv1.LeaseResponse{LeaseId: id}); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), revokeTime)
		defer cancel()
		return errors.Join(err, lease.Revoke(ctx))
	}
	select {
	case <-lease.Alive():
	case <-out.Context().Done():
	}
	return nil
}

// lease returns a lease that was granted and has not ended.
func (s *metadataServer) lease(id string) (metadata.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[id]
	if l == nil {
		return nil, fmt.Errorf("lease %.100q: %w", id, metadata.ErrLeaseLost)
	}
	return l, nil
}

func (s *metadataServer) LeasePut(ctx context.Context, r *pluginv1.LeasePutRequest) (*pluginv1.LeasePutResponse, error) {
	l, err := s.lease(r.LeaseId)
	if err == nil {
		err = l.Put(ctx, string(r.Key), r.Value)
	}
	return &pluginv1.LeasePutResponse{Error: failure(err)}, nil
}

func (s *metadataServer) LeaseRevoke(ctx context.Context, r *pluginv1.LeaseRevokeRequest) (*pluginv1.LeaseRevokeResponse, error) {
	l, err := s.lease(r.LeaseId)
	if err != nil { // it has ended
		return &pluginv1.LeaseRevokeResponse{}, nil
	}
	return &pluginv1.LeaseRevokeResponse{Error: failure(l.Revoke(ctx))}, nil
}
