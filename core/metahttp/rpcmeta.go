package metahttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/mooncake-agent/mooncake/internal/jsoncpp"
	"github.com/mooncake-agent/mooncake/metadata"
)

// Prober asks the handshake daemon at host:port (host without brackets) whether it is alive: nil if it
// answered. Its error tells the dead from the silent: an *net.OpError of a dial, an unknown host or a broken
// answer mean that no engine is there; a timeout after the connection was made means that something holds the
// port, which counts as alive. It must end soon after ctx.
type Prober func(ctx context.Context, host string, port int) error

// duplicate is upstream's answer to a PUT of a different rpc_meta value.
const duplicate = "Duplicate rpc_meta key not allowed"

// rpcMetaMark makes a key an rpc_meta key, in upstream's servers and here.
const rpcMetaMark = "rpc_meta"

// holder is the engine that an rpc_meta document names.
type holder struct {
	host string // without brackets
	port int
}

func (h holder) String() string { return net.JoinHostPort(h.host, strconv.Itoa(h.port)) }

// parseHolder reads {"ip_or_host_name":"10.0.0.1","rpc_port":15511}.
func parseHolder(doc []byte) (h holder, err error) {
	r := jsoncpp.NewReader(doc)
	err = r.Object(func(key []byte) (err error) {
		switch string(key) {
		case "ip_or_host_name":
			h.host, err = r.AsString()
		case "rpc_port":
			var n uint64
			n, err = r.AsUint(65535)
			h.port = int(n)
		default:
			err = r.Skip()
		}
		return err
	})
	h.host = strings.TrimSuffix(strings.TrimPrefix(h.host, "["), "]")
	if err == nil && (h.host == "" || h.port == 0) {
		err = errors.New("host or port is missing")
	}
	return h, err
}

// putRPCMeta decides a PUT of an rpc_meta key and answers status and text. An error is the backend's.
func (s *Server) putRPCMeta(ctx context.Context, key string, value []byte) (int, string, error) {
	unlock, err := s.names.lock(ctx, key)
	if err != nil {
		return 0, "", err
	}
	defer unlock()
	// Only a change by another server on the same store makes a second round necessary.
	for range 8 {
		old, err := s.backend.Get(ctx, key)
		switch {
		case errors.Is(err, metadata.ErrNotFound):
		case err != nil:
			return 0, "", err
		case sameDocument(old.Value, value):
			return http.StatusOK, "metadata unchanged", nil
		default:
			if why := s.lives(ctx, key, old.Value, value); why != "" {
				return http.StatusBadRequest, duplicate + ": " + why, nil
			}
			if ctx.Err() != nil { // the client has gone: nothing was found out
				return 0, "", fmt.Errorf("%w: %w", metadata.ErrUnavailable, context.Cause(ctx))
			}
		}
		err = s.writeIf(ctx, key, value, old.Version)
		if !errors.Is(err, metadata.ErrConflict) {
			return http.StatusOK, "metadata updated", err
		}
	}
	return http.StatusServiceUnavailable, "the key is being changed by others", nil
}

// sameDocument ignores the newline that upstream adds on other services.
func sameDocument(a, b []byte) bool {
	return bytes.Equal(bytes.TrimSuffix(a, []byte{'\n'}), bytes.TrimSuffix(b, []byte{'\n'}))
}

// writeIf writes on the condition that the key is still at the version, where the backend can.
func (s *Server) writeIf(ctx context.Context, key string, value []byte, version string) error {
	if c, ok := s.backend.(metadata.Committer); ok {
		return c.Commit(ctx, metadata.Write{Key: key, Value: value, If: &version})
	}
	return s.backend.Put(ctx, key, value)
}

// lives returns why the holder of a name counts as alive, or "" if its entry may be replaced.
func (s *Server) lives(ctx context.Context, key string, old, value []byte) string {
	was, err := parseHolder(old)
	if err != nil {
		return fmt.Sprintf("the entry is no rpc_meta document (%v), so nobody can be asked; DELETE it to free the name", err)
	}
	if now, err := parseHolder(value); err == nil && now == was {
		return ""
	}
	if s.probe == nil {
		return fmt.Sprintf("held by %v", was)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ProbeTimeout)
	defer cancel()
	err = s.probe(ctx, was.host, was.port)
	result, why := judge(err)
	s.metrics.probes.WithLabelValues(result).Inc()
	if why == "" {
		s.log.Info("metadata http: replacing the entry of a dead engine", "key", key, "holder", was.String(), "probe", err)
		return ""
	}
	return fmt.Sprintf("held by %v, which %s", was, why)
}

// judge turns the error of a probe into a metric label and, for a holder that counts as alive, the reason.
func judge(err error) (result, why string) {
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case err == nil:
		return "alive", "answers"
	case errors.As(err, &dns):
		if dns.IsNotFound {
			return "dead", ""
		}
		return "unknown", "cannot be resolved at the moment"
	case errors.As(err, &op) && op.Op == "dial":
		return "dead", ""
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.Canceled):
		return "silent", "accepts connections but does not answer in time"
	}
	return "dead", ""
}

// keyLocks are mutexes by key that can be waited for with a context.
type keyLocks struct {
	mu    sync.Mutex
	locks map[string]*keyLock
}

type keyLock struct {
	held  chan struct{}
	users int
}

func (k *keyLocks) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	l := k.locks[key]
	if l == nil {
		if k.locks == nil {
			k.locks = map[string]*keyLock{}
		}
		l = &keyLock{held: make(chan struct{}, 1)}
		k.locks[key] = l
	}
	l.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, key)
		}
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("%w: %w", metadata.ErrUnavailable, context.Cause(ctx))
	}
}
