package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/mooncake-agent/mooncake/core/master"
	tape "github.com/mooncake-agent/mooncake/core/master/record"
	"github.com/mooncake-agent/mooncake/core/rpc/wire"
	"github.com/mooncake-agent/mooncake/core/telemetry"
)

// The paths of eviction policies and recordings; ours.
const (
	PoliciesPath  = "/api/v1/policies"
	RecordingPath = "/api/v1/recording"
)

// PolicyControl changes eviction policies by their texts, package policies. "" is the domain of everyone.
type PolicyControl interface {
	Set(ctx context.Context, domain, text string) error
	Drop(domain string) error
	Rollback(domain string) error
}

// RecordControl records, package record.
type RecordControl interface {
	Start(name string) error
	Stop() (tape.Status, error)
	Status() tape.Status
}

// Policies is the answer of GET PoliciesPath and of every change.
type Policies struct {
	Policies []master.DomainStats `json:"policies"`
}

// PolicyChange is the body of POST PoliciesPath, and without a policy of DELETE and .../rollback.
type PolicyChange struct {
	Domain string `json:"domain,omitempty"`
	Policy string `json:"policy,omitempty"`
}

// RecordingStart is the body of POST RecordingPath.
type RecordingStart struct {
	File string `json:"file"`
}

// local lets only callers of this host through: what it serves changes how the store behaves or writes a file.
func local(f http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !telemetry.Local(r) {
			sendJSON(w, http.StatusForbidden, failure{Code: wire.ErrIllegalClient, Message: "allowed from the master's own host only: use its loopback address"})
			return
		}
		f(w, r)
	}
}

func (h *Handler) policies(w http.ResponseWriter, _ *http.Request) {
	sendJSON(w, http.StatusOK, Policies{h.o.Store.Policies()})
}

// change makes a change and answers what is in force.
func (h *Handler) change(w http.ResponseWriter, r *http.Request, f func(PolicyChange) error) {
	if h.o.Policies == nil {
		fail(w, wire.ErrUnavailableInCurrentMode, "the policies of this master cannot be changed while it runs")
		return
	}
	var c PolicyChange
	if !body(w, r, &c) {
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(changeTime)) // a recorder in tests has none
	if err := f(c); err != nil {
		fail(w, wire.ErrInvalidParams, err.Error())
		return
	}
	h.policies(w, r)
}

func (h *Handler) setPolicy(w http.ResponseWriter, r *http.Request) {
	h.change(w, r, func(c PolicyChange) error { return h.o.Policies.Set(r.Context(), c.Domain, c.Policy) })
}

func (h *Handler) dropPolicy(w http.ResponseWriter, r *http.Request) {
	h.change(w, r, func(c PolicyChange) error { return h.o.Policies.Drop(c.Domain) })
}

func (h *Handler) rollbackPolicy(w http.ResponseWriter, r *http.Request) {
	h.change(w, r, func(c PolicyChange) error { return h.o.Policies.Rollback(c.Domain) })
}

func (h *Handler) recording(w http.ResponseWriter, _ *http.Request) {
	var s tape.Status
	if h.o.Recording != nil {
		s = h.o.Recording.Status()
	}
	sendJSON(w, http.StatusOK, s)
}

func (h *Handler) startRecording(w http.ResponseWriter, r *http.Request) {
	var req RecordingStart
	if !body(w, r, &req) {
		return
	}
	if h.o.Recording == nil {
		fail(w, wire.ErrUnavailableInCurrentMode, "this master cannot record")
		return
	}
	if err := h.o.Recording.Start(req.File); err != nil {
		fail(w, wire.ErrInvalidParams, err.Error())
		return
	}
	h.recording(w, r)
}

func (h *Handler) stopRecording(w http.ResponseWriter, _ *http.Request) {
	if h.o.Recording == nil {
		fail(w, wire.ErrUnavailableInCurrentMode, "this master cannot record")
		return
	}
	s, err := h.o.Recording.Stop()
	if err != nil {
		fail(w, wire.ErrInvalidParams, err.Error())
		return
	}
	sendJSON(w, http.StatusOK, s)
}
