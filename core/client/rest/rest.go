package rest

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mooncake-agent/mooncake/core/client"
	"github.com/mooncake-agent/mooncake/core/units"
)

// Options are what a Handler is made of.
type Options struct {
	Config
	// Client gives the client of the Store; nil while there is none.
	Client func() *client.Client
	// Budget is the memory for bodies that are under way.
	Budget units.Size
	// Log is where the handler logs; nil for nowhere.
	Log *slog.Logger
}

// Handler serves the paths. Methods may be called concurrently.
type Handler struct {
	o      Options
	budget *semaphore.Weighted
	log    *slog.Logger
}

// New checks the options. There is nothing to close.
func New(o Options) (*Handler, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("rest: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Handler{o: o, budget: semaphore.NewWeighted(int64(o.Budget)), log: o.Log}, nil
}

// Route is one path for a server's mux.
type Route struct {
	Pattern string // of http.ServeMux
	Doc     string
	Handler http.Handler
}

//go:embed openapi.json
var openAPI []byte

// Routes lists the paths. Those of upstream that change segments answer that they are not supported.
func (h *Handler) Routes() []Route {
	routes := []Route{
		{"PUT /api/v1/objects/{key...}", "store the body under a key", h.object(h.put)},
		{"GET /api/v1/objects/{key...}", "an object, also in ranges; HEAD describes it", h.object(h.get)},
		{"DELETE /api/v1/objects/{key...}", "remove an object; ?force=true also one in use", h.object(h.remove)},
		{"GET /api/v1/objects", "list objects: ?prefix= or ?regex=, ?limit=", h.with(h.list)},
		{"GET /api/v1/openapi.json", "description of the REST paths", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			_, _ = w.Write(openAPI)
		})},
	}
	return append(routes, h.upstreamRoutes()...)
}

// failure is an error for the caller.
type failure struct {
	status int
	code   string // for programs
	msg    string
}

func (f *failure) Error() string { return f.msg }

// statuses are the answers to the client's errors.
var statuses = []struct {
	kind   error
	status int
	code   string
}{
	{client.ErrNotFound, http.StatusNotFound, "not_found"},
	{client.ErrExists, http.StatusConflict, "exists"},
	{client.ErrNotReady, http.StatusConflict, "not_ready"},
	{client.ErrBusy, http.StatusConflict, "busy"},
	{client.ErrLeased, http.StatusLocked, "in_use"},
	{client.ErrNoSpace, http.StatusInsufficientStorage, "no_space"},
	{client.ErrInvalid, http.StatusBadRequest, "invalid"},
	{client.ErrRefused, http.StatusForbidden, "refused"},
	{client.ErrUnsupported, http.StatusNotImplemented, "not_supported"},
	{client.ErrUnavailable, http.StatusServiceUnavailable, "unavailable"},
	{client.ErrClosed, http.StatusServiceUnavailable, "unavailable"},
	{client.ErrTransfer, http.StatusBadGateway, "transfer_failed"},
	{client.ErrChecksum, http.StatusBadGateway, "checksum_mismatch"},
	{client.ErrLeaseExpired, http.StatusBadGateway, "lease_expired"},
	{client.ErrChanged, http.StatusBadGateway, "changed"},
}

// explain turns any error into an answer.
func explain(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	for _, s := range statuses {
		if errors.Is(err, s.kind) {
			return &failure{s.status, s.code, err.Error()}
		}
	}
	return &failure{http.StatusInternalServerError, "internal", err.Error()}
}

// errorBody is the JSON of an error.
type errorBody struct {
	Error struct {
		Code    string `json:"code"`
		Status  int32  `json:"status"` // upstream's number, such as -704
		Message string `json:"message"`
	} `json:"error"`
}

func fail(w http.ResponseWriter, err error) {
	f := explain(err)
	var b errorBody
	b.Error.Code, b.Error.Message, b.Error.Status = f.code, f.msg, int32(client.Code(err))
	if f.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, f.status, b)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a caller that is gone needs no answer
}

var errNoClient = &failure{http.StatusServiceUnavailable, "unavailable", "this node has no Store yet: master_server_address"}

// with gives a handler the client, and answers its error.
func (h *Handler) with(f func(c *client.Client, w http.ResponseWriter, r *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := h.o.Client()
		err := error(errNoClient)
		if c != nil {
			err = f(c, w, r)
		}
		if err != nil {
			fail(w, err)
		}
	})
}

// object is with for handlers of one object.
func (h *Handler) object(f func(c *client.Client, key string, w http.ResponseWriter, r *http.Request) error) http.Handler {
	return h.with(func(c *client.Client, w http.ResponseWriter, r *http.Request) error {
		key := r.PathValue("key")
		if err := h.checkKey(key); err != nil {
			return err
		}
		return f(c, key, w, r)
	})
}

func (h *Handler) checkKey(key string) error {
	switch {
	case key == "":
		return &failure{http.StatusBadRequest, "invalid", "the key is empty"}
	case len(key) > int(h.o.MaxKey):
		return &failure{http.StatusBadRequest, "key_too_long", fmt.Sprintf("the key has %d bytes; store.rest.max_key is %d", len(key), h.o.MaxKey)}
	}
	return nil
}

// roomWait is how long a request waits for memory.
const roomWait = 10 * time.Second

// room takes memory for n bytes.
func (h *Handler) room(ctx context.Context, n int64) error {
	if n > int64(h.o.Budget) {
		return &failure{http.StatusInsufficientStorage, "too_large_for_node", fmt.Sprintf("%d bytes do not fit into local_buffer_size, %s", n, h.o.Budget)}
	}
	ctx, cancel := context.WithTimeout(ctx, roomWait)
	defer cancel()
	if h.budget.Acquire(ctx, n) != nil {
		return &failure{http.StatusServiceUnavailable, "busy_node", "the memory for REST requests (local_buffer_size) is in use; try again"}
	}
	return nil
}
