package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/mooncake-agent/mooncake/core/master"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// maxRequest is the largest body of a request.
const maxRequest = 1 << 20

// body decodes a JSON body, or answers upstream's error.
func body(w http.ResponseWriter, r *http.Request, into any) bool {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		fail(w, wire.ErrInvalidParams, "Invalid JSON body: "+err.Error())
		return false
	}
	return true
}

func (h *Handler) createDrainJob(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Segments       []string `json:"segments"`
		Targets        []string `json:"target_segments"`
		MaxConcurrency int      `json:"max_concurrency"`
	}
	if !body(w, r, &req) {
		return
	}
	id, code := h.o.Store.CreateDrainJob(req.Segments, req.Targets, req.MaxConcurrency)
	if code != wire.OK {
		fail(w, code, "")
		return
	}
	sendJSON(w, http.StatusOK, jobAnswer{Success: true, ID: id.String(), Status: jobStatusName(master.JobCreated)})
}

type jobAnswer struct {
	Success bool   `json:"success"`
	ID      string `json:"job_id"`
	Status  string `json:"status"`
	Code    int    `json:"error_code"`
	Message string `json:"error_message"`
}

// jobID reads the parameter, or answers upstream's error.
func jobID(w http.ResponseWriter, r *http.Request) (id wire.UUID, ok bool) {
	text, _ := param(r, "job_id")
	a, b, ok := strings.Cut(text, "-")
	var errA, errB error
	id[0], errA = strconv.ParseUint(a, 10, 64)
	id[1], errB = strconv.ParseUint(b, 10, 64)
	if !ok || errA != nil || errB != nil {
		fail(w, wire.ErrInvalidParams, "Missing or invalid job_id")
		return id, false
	}
	return id, true
}

func (h *Handler) queryDrainJob(w http.ResponseWriter, r *http.Request) {
	id, ok := jobID(w, r)
	if !ok {
		return
	}
	j, code := h.o.Store.QueryDrainJob(id)
	if code != wire.OK {
		fail(w, code, "")
		return
	}
	segments := j.Segments
	if segments == nil {
		segments = []string{}
	}
	sendJSON(w, http.StatusOK, struct {
		Success    bool     `json:"success"`
		ID         string   `json:"job_id"`
		Type       int      `json:"type"`
		TypeName   string   `json:"type_name"`
		Status     int32    `json:"status"`
		StatusName string   `json:"status_name"`
		Created    int64    `json:"created_at_ms_epoch"`
		Updated    int64    `json:"last_updated_at_ms_epoch"`
		Segments   []string `json:"segments"`
		Succeeded  int      `json:"succeeded_units"`
		Failed     int      `json:"failed_units"`
		Blocked    int      `json:"blocked_units"`
		Active     int      `json:"active_units"`
		Migrated   uint64   `json:"migrated_bytes"`
		Text       string   `json:"message"`
		Code       int      `json:"error_code"`
		Message    string   `json:"error_message"`
	}{Success: true, ID: id.String(), TypeName: "DRAIN", Status: int32(j.Status), StatusName: jobStatusName(j.Status), Created: j.CreatedMS,
		Updated: j.UpdatedMS, Segments: segments, Succeeded: j.Succeeded, Failed: j.Failed, Blocked: j.Blocked, Active: j.Active,
		Migrated: j.MigratedBytes, Text: j.Message})
}

func jobStatusName(s master.JobStatus) string {
	names := [...]string{"CREATED", "PLANNING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELED"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("UNKNOWN_%d", int32(s))
	}
	return names[s]
}

func (h *Handler) cancelDrainJob(w http.ResponseWriter, r *http.Request) {
	id, ok := jobID(w, r)
	if !ok {
		return
	}
	if code := h.o.Store.CancelDrainJob(id); code != wire.OK {
		fail(w, code, "")
		return
	}
	sendJSON(w, http.StatusOK, jobAnswer{Success: true, ID: id.String(), Status: jobStatusName(master.JobCanceled)})
}

// quota is upstream's form of a tenant.
type quota struct {
	Tenant    string `json:"tenant_id"`
	Requested uint64 `json:"requested_quota_bytes"`
	Effective uint64 `json:"effective_quota_bytes"`
	Charged   uint64 `json:"charged_bytes"`
	Closed    bool   `json:"admission_closed"`
	Over      bool   `json:"over_quota"`
	Explicit  bool   `json:"has_explicit_policy"`
}

// quotaOf fills it in. The effective quota is what the store can hold of the requested one.
func quotaOf(t master.TenantStats) quota {
	return quota{Tenant: t.Name, Requested: t.Requested, Effective: t.Quota, Charged: t.Used, Closed: t.Requested == 0, Over: t.Used > t.Quota, Explicit: t.Requested > 0}
}

type quotaAnswer struct {
	Success bool `json:"success"`
	Data    any  `json:"data"`
}

func (h *Handler) tenantQuotas(w http.ResponseWriter, r *http.Request) {
	if tenant, ok := param(r, "tenant_id"); ok && tenant != "" {
		h.answerQuota(w, tenant)
		return
	}
	all, code := h.o.Store.TenantQuotas()
	if code != wire.OK {
		fail(w, code, "")
		return
	}
	data := make([]quota, 0, len(all))
	for _, t := range all {
		data = append(data, quotaOf(t))
	}
	sendJSON(w, http.StatusOK, quotaAnswer{true, data})
}

func (h *Handler) answerQuota(w http.ResponseWriter, tenant string) {
	t, code := h.o.Store.TenantQuota(tenant)
	if code != wire.OK {
		fail(w, unregistered(code), "")
		return
	}
	sendJSON(w, http.StatusOK, quotaAnswer{true, quotaOf(t)})
}

// unregistered turns the code for an unknown tenant into the one that upstream's HTTP answers.
func unregistered(code wire.ErrorCode) wire.ErrorCode {
	if code == wire.ErrTenantNotRegistered {
		return wire.ErrObjectNotFound
	}
	return code
}

// tenantID reads the parameter, or answers upstream's error.
func tenantID(w http.ResponseWriter, r *http.Request) (string, bool) {
	t, _ := param(r, "tenant_id")
	if t == "" || strings.HasPrefix(t, "_") || strings.ContainsFunc(t, func(c rune) bool { return c < 0x20 || c == 0x7f }) {
		fail(w, wire.ErrInvalidParams, "Missing or invalid tenant_id")
		return "", false
	}
	return t, true
}

func (h *Handler) setTenantQuota(w http.ResponseWriter, r *http.Request) {
	tenant, ok := tenantID(w, r)
	if !ok {
		return
	}
	if !h.o.Store.Config().MultiTenants {
		fail(w, wire.ErrUnavailableInCurrentMode, "")
		return
	}
	var req struct {
		Bytes uint64 `json:"requested_quota_bytes"`
	}
	if !body(w, r, &req) {
		return
	}
	if req.Bytes < 1 || req.Bytes > math.MaxInt64 {
		fail(w, wire.ErrInvalidParams, "Tenant quota must be in [1, 2^63 - 1] bytes")
		return
	}
	if code := h.o.Store.SetTenantQuota(tenant, req.Bytes); code != wire.OK {
		fail(w, code, "")
		return
	}
	h.answerQuota(w, tenant)
}

func (h *Handler) deleteTenantQuota(w http.ResponseWriter, r *http.Request) {
	tenant, ok := tenantID(w, r)
	if !ok {
		return
	}
	if code := h.o.Store.DeleteTenantQuota(tenant); code != wire.OK {
		fail(w, unregistered(code), "")
		return
	}
	sendJSON(w, http.StatusOK, quotaAnswer{Success: true})
}

func (h *Handler) removeAll(w http.ResponseWriter, r *http.Request) {
	force, _ := param(r, "force")
	tenant, _ := param(r, "tenant_id")
	n := h.o.Store.RemoveEverything(r.Context(), tenant, force == "true" || force == "1")
	sendJSON(w, http.StatusOK, struct {
		Success bool  `json:"success"`
		Removed int64 `json:"removed_count"`
	}{true, n})
}
