package admin

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/master/versions"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// Store is what the handler needs of a [master.Service].
type Store interface {
	ListKeys(dst []string, tenant, cursor string, limit int) (keys []string, next string, err error)
	QueryKey(tenant, key string, resp *wire.Result[wire.ReplicaList])
	DescribeKey(tenant, key string) (master.KeyDetail, wire.ErrorCode)
	SegmentDetails() []master.SegmentDetail
	SegmentNames() []string
	SegmentUse(name string) (requested, used, capacity uint64, ok bool)
	QuerySegmentStatus(req *wire.NameRequest, resp *wire.Result[wire.SegmentStatus])
	Clients() []master.ClientDetail
	Stats() master.Stats
	Policies() []master.DomainStats
	Counters() *master.Counters
	Config() master.Config
	CreateDrainJob(segments, targets []string, maxConcurrency int) (wire.UUID, wire.ErrorCode)
	QueryDrainJob(id wire.UUID) (master.DrainJob, wire.ErrorCode)
	CancelDrainJob(id wire.UUID) wire.ErrorCode
	SetTenantQuota(tenant string, bytes uint64) wire.ErrorCode
	TenantQuota(tenant string) (master.TenantStats, wire.ErrorCode)
	TenantQuotas() ([]master.TenantStats, wire.ErrorCode)
	DeleteTenantQuota(tenant string) wire.ErrorCode
	RemoveEverything(ctx context.Context, tenant string, force bool) int64
}

var _ Store = (*master.Service)(nil)

// Options are what the handler serves. Only Store is required.
type Options struct {
	Store Store
	// Callers tells who speaks which version.
	Callers *versions.Memory
	// Metrics are appended to upstream's at /metrics.
	Metrics prometheus.Gatherer
	// Ready answers why the master does not serve, nil when it does. While it does not, data paths answer 503.
	Ready func() error
	// Policies changes eviction policies, Recording records; without them the calls answer 409.
	Policies  PolicyControl
	Recording RecordControl
	// Version is the answer of /version.
	Version any
	// Local are further paths, as "METHOD /path", for callers on the master's own host.
	Local map[string]http.Handler
	Log   *slog.Logger
}

// Handler is the master's HTTP. It is an [http.Handler]; safe for concurrent use.
type Handler struct {
	o      Options
	log    *slog.Logger
	routes map[string]http.HandlerFunc // by "METHOD /path"
	rates  rates
	cross  *http.CrossOriginProtection
}

// New makes a handler.
func New(o Options) *Handler {
	h := &Handler{o: o, log: o.Log, cross: http.NewCrossOriginProtection()}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	if h.o.Ready == nil {
		h.o.Ready = func() error { return nil }
	}
	h.routes = map[string]http.HandlerFunc{
		"GET /metrics":                 h.metrics,
		"GET /metrics/summary":         h.summary,
		"GET /health":                  h.health,
		"GET /role":                    plain("leader"),
		"GET /ha_status":               h.haStatus,
		"GET /leader":                  h.leader,
		"GET /kv_events/status":        h.kvEvents,
		"GET /query_key":               h.data(h.queryKey),
		"GET /batch_query_keys":        h.data(h.batchQueryKeys),
		"GET /get_all_keys":            h.data(h.getAllKeys),
		"GET /get_all_segments":        h.data(h.getAllSegments),
		"GET /get_segments_detail":     h.data(h.getSegmentsDetail),
		"GET /query_segment":           h.data(h.querySegment),
		"GET /api/v1/segments/status":  h.data(h.segmentStatus),
		"POST /api/v1/drain_jobs":      h.data(h.createDrainJob),
		"GET /api/v1/drain_jobs/query": h.data(h.queryDrainJob),
		// Cancel changes something and so does what follows.
		"POST /api/v1/drain_jobs/cancel": h.data(h.cancelDrainJob),
		"GET /api/v1/tenant_quotas":      h.data(h.tenantQuotas),
		"PUT /api/v1/tenant_quotas":      h.data(h.setTenantQuota),
		"DELETE /api/v1/tenant_quotas":   h.data(h.deleteTenantQuota),
		"POST /api/v1/remove_all":        h.data(h.removeAll),

		"GET " + PoliciesPath:                h.data(h.policies),
		"POST " + PoliciesPath:               h.data(local(h.setPolicy)),
		"DELETE " + PoliciesPath:             h.data(local(h.dropPolicy)),
		"POST " + PoliciesPath + "/rollback": h.data(local(h.rollbackPolicy)),
		"GET " + RecordingPath:               h.data(h.recording),
		"POST " + RecordingPath:              h.data(local(h.startRecording)),
		"DELETE " + RecordingPath:            h.data(local(h.stopRecording)),

		"GET /healthz":        plain("ok\n"),
		"GET /readyz":         h.readyz,
		"GET /version":        h.version,
		"GET /api/v1/clients": h.clients,
		"GET /api/v1/object":  h.data(h.object),
		"GET /api/v1/stats":   h.data(h.stats),
	}
	for path, extra := range o.Local {
		h.routes[path] = local(extra.ServeHTTP)
	}
	return h
}

// ServeHTTP implements http.Handler. Paths are not cleaned: upstream's clients do not follow redirects.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := h.routes[r.Method+" "+r.URL.Path]
	if !ok {
		notFound(w)
		return
	}
	if err := h.cross.Check(r); err != nil { // a foreign web page in somebody's browser
		sendJSON(w, http.StatusForbidden, failure{Code: wire.ErrIllegalClient, Message: err.Error()})
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime)) // a recorder in tests has none
	f(w, r)
}

// answerTime bounds one answer, a slow reader included; pages of /get_all_keys extend it.
const answerTime = 30 * time.Second

// changeTime bounds a change of policy, which tells the new one everything that is resident.
const changeTime = 10 * time.Minute

// ReadOnly serves what changes nothing, for the RPC port.
func (h *Handler) ReadOnly() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			notFound(w)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// notFound is upstream's answer, without a content type.
func notFound(w http.ResponseWriter) {
	w.Header()["Content-Type"] = nil
	w.WriteHeader(http.StatusNotFound)
	_, _ = io.WriteString(w, "404 Not Found") // dropped for HEAD
}

const (
	jsonType    = "application/json; charset=utf-8"
	textType    = "text/plain; charset=utf-8"
	metricsType = "text/plain; version=0.0.4"
)

func send(w http.ResponseWriter, contentType string, code int, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body) // the reader is gone: nothing to tell it
}

func plain(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { send(w, textType, http.StatusOK, []byte(text)) }
}

// sendJSON writes v as one line without the escaping of HTML characters, which keys may contain.
func sendJSON(w http.ResponseWriter, code int, v any) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // all types here can be encoded
	}
	send(w, jsonType, code, []byte(strings.TrimSuffix(b.String(), "\n")))
}

// failure is upstream's body of an error.
type failure struct {
	Success bool           `json:"success"`
	Code    wire.ErrorCode `json:"error_code"`
	Message string         `json:"error_message"`
}

// fail answers an error code; message "" means its name.
func fail(w http.ResponseWriter, code wire.ErrorCode, message string) {
	if message == "" {
		message = code.String()
	}
	sendJSON(w, statusOf(code), failure{Code: code, Message: message})
}

func statusOf(code wire.ErrorCode) int {
	switch code {
	case wire.ErrInvalidParams, wire.ErrInvalidKey:
		return http.StatusBadRequest
	case wire.ErrObjectNotFound, wire.ErrReplicaIsNotReady, wire.ErrSegmentNotFound, wire.ErrJobNotFound, wire.ErrTaskNotFound,
		wire.ErrTenantNotRegistered:
		return http.StatusNotFound
	case wire.ErrUnavailableInCurrentMode, wire.ErrUnavailableInCurrentStatus, wire.ErrTenantNotEmpty:
		return http.StatusConflict
	}
	return http.StatusInternalServerError
}

// data is a handler that needs the service to be ready.
func (h *Handler) data(f http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := h.o.Ready(); err != nil {
			sendJSON(w, http.StatusServiceUnavailable, failure{Code: wire.ErrUnavailableInCurrentStatus, Message: err.Error()})
			return
		}
		f(w, r)
	}
}

// param returns a query parameter: percent escapes are decoded where they are valid, a plus sign stays one, because
// upstream's callers send keys as they are.
func param(r *http.Request, name string) (value string, ok bool) {
	for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
		if k, v, _ := strings.Cut(pair, "="); k == name {
			return unescape(v), true
		}
	}
	return "", false
}

func unescape(s string) string {
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}
