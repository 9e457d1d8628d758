package metahttp

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/metadata"
)

// ServeHTTP implements http.Handler: /metadata and /health.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	rec := &recorder{ResponseWriter: w, code: http.StatusOK}
	defer func() {
		method := r.Method
		switch method {
		case http.MethodGet, http.MethodPut, http.MethodDelete:
		default: // anything can be sent as a method; a label must stay bounded
			method = "other"
		}
		s.metrics.requests.WithLabelValues(method, strconv.Itoa(rec.code)).Inc()
		s.metrics.duration.Observe(time.Since(begin).Seconds())
	}()
	s.route(rec, r)
}

type recorder struct {
	http.ResponseWriter
	code int
}

func (r *recorder) WriteHeader(code int) {
	r.code = code
	r.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// route does not clean paths: a redirect would be a failure to upstream's clients.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/metadata":
		s.metadata(w, r)
	case "/health":
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			notAllowed(w, "GET, HEAD")
			return
		}
		text(w, http.StatusOK, "OK")
	default:
		text(w, http.StatusNotFound, "404 Not Found")
	}
}

// text answers as upstream does: no newline at the end.
func text(w http.ResponseWriter, code int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Length", strconv.Itoa(len(s)))
	w.WriteHeader(code)
	io.WriteString(w, s)
}

func notAllowed(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	text(w, http.StatusMethodNotAllowed, "Method not allowed")
}

func (s *Server) metadata(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodPut, http.MethodDelete:
	default:
		notAllowed(w, "GET, PUT, DELETE")
		return
	}
	key, problem := decodeKey(r.URL.RawQuery, s.cfg.MaxKey)
	if problem != "" {
		text(w, http.StatusBadRequest, problem)
		return
	}
	switch r.Method {
	case http.MethodGet:
		s.get(w, r, key)
	case http.MethodPut:
		s.put(w, r, key)
	case http.MethodDelete:
		s.delete(w, r, key)
	}
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, key string) {
	e, err := s.backend.Get(r.Context(), key)
	if err != nil {
		s.fail(w, r, key, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Length", strconv.Itoa(len(e.Value)))
	w.WriteHeader(http.StatusOK)
	w.Write(e.Value)
}

func (s *Server) put(w http.ResponseWriter, r *http.Request, key string) {
	value, release, err := s.body(r)
	defer release()
	switch {
	case errors.Is(err, errTooLarge):
		w.Header().Set("Connection", "close")
		text(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("Maximum request body size %d exceeded.", uint64(s.cfg.MaxBody)))
		return
	case err != nil: // the client stopped sending, or was too slow
		w.Header().Set("Connection", "close")
		text(w, http.StatusRequestTimeout, "the body was not received: "+err.Error())
		return
	}
	code, answer := http.StatusOK, "metadata updated"
	if strings.Contains(key, rpcMetaMark) {
		code, answer, err = s.putRPCMeta(r.Context(), key, value)
	} else {
		err = s.backend.Put(r.Context(), key, value)
	}
	if err != nil {
		s.fail(w, r, key, err)
		return
	}
	text(w, code, answer)
}

// small is the size of a body that is received without regard to max_in_flight.
const small = 64 << 10

var errTooLarge = errors.New("body too large")

// body receives the body within the limits. release gives its memory back.
func (s *Server) body(r *http.Request) (value []byte, release func(), err error) {
	limit := int64(s.cfg.MaxBody)
	release = func() {}
	need := r.ContentLength
	if need > limit {
		if r.Header.Get("Expect") == "" {
			discard(r.Body, limit)
		}
		return nil, release, errTooLarge
	}
	if need < 0 { // chunked
		need = limit
	}
	if need > small { // small ones, such as every rpc_meta, do not wait for large ones
		if err := s.bodies.Acquire(r.Context(), need); err != nil {
			return nil, release, err
		}
		release = func() { s.bodies.Release(need) }
	}
	if r.ContentLength >= 0 {
		value = make([]byte, need)
		_, err = io.ReadFull(r.Body, value)
		return value, release, err
	}
	value, err = io.ReadAll(io.LimitReader(r.Body, limit+1))
	if int64(len(value)) > limit {
		discard(r.Body, limit)
		err = errTooLarge
	}
	return value, release, err
}

// discard reads on for a while: a client that is still sending when the connection is closed may get a reset
// instead of the answer.
func discard(body io.Reader, most int64) { io.CopyN(io.Discard, body, most) }

func (s *Server) delete(w http.ResponseWriter, r *http.Request, key string) {
	if _, err := s.backend.Get(r.Context(), key); err != nil {
		s.fail(w, r, key, err)
		return
	}
	if err := s.backend.Delete(r.Context(), key); err != nil {
		s.fail(w, r, key, err)
		return
	}
	text(w, http.StatusOK, "metadata deleted")
}

// fail answers for an error of the backend.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, key string, err error) {
	code := http.StatusInternalServerError
	switch {
	case errors.Is(err, metadata.ErrNotFound):
		text(w, http.StatusNotFound, "metadata not found")
		return
	case errors.Is(err, metadata.ErrTooLarge):
		code = http.StatusRequestEntityTooLarge
	case errors.Is(err, metadata.ErrUnavailable), errors.Is(err, metadata.ErrClosed):
		code = http.StatusServiceUnavailable
	case errors.Is(err, metadata.ErrRefused):
		code = http.StatusBadGateway
	}
	if r.Context().Err() == nil {
		s.log.Warn("metadata http: request failed", "method", r.Method, "key", key, "code", code, "error", err)
	}
	text(w, code, err.Error())
}
