package admin

import (
	"encoding/json"
	"net/http"
)

func (h *Handler) state() (state string, ready bool) {
	if h.o.Ready() != nil {
		return "starting", false
	}
	return "serving", true
}

func (h *Handler) health(w http.ResponseWriter, _ *http.Request) {
	state, ready := h.state()
	sendJSON(w, http.StatusOK, struct {
		Status  string  `json:"status"`
		Role    string  `json:"role"`
		State   string  `json:"ha_state"`
		Ready   bool    `json:"service_ready"`
		Leader  *string `json:"leader_address"`
		Version *int64  `json:"view_version"`
	}{Status: "ok", Role: "leader", State: state, Ready: ready})
}

func (h *Handler) haStatus(w http.ResponseWriter, _ *http.Request) {
	state, _ := h.state()
	send(w, textType, http.StatusOK, []byte(state))
}

func (h *Handler) leader(w http.ResponseWriter, _ *http.Request) {
	send(w, jsonType, http.StatusOK, []byte(`{"present":false,"leader_address":null,"view_version":null}`))
}

func (h *Handler) kvEvents(w http.ResponseWriter, _ *http.Request) {
	send(w, jsonType, http.StatusOK, []byte(`{"enabled":false,"published_batches":0,"published_events":0,"dropped_events":0,"skipped_unparsed_keys":0}`))
}

func (h *Handler) readyz(w http.ResponseWriter, _ *http.Request) {
	type reason struct {
		Check  string `json:"check"`
		Reason string `json:"reason"`
	}
	answer := struct {
		Ready   bool     `json:"ready"`
		Reasons []reason `json:"reasons,omitempty"`
	}{Ready: true}
	code := http.StatusOK
	if err := h.o.Ready(); err != nil {
		answer.Ready, answer.Reasons, code = false, []reason{{"master", err.Error()}}, http.StatusServiceUnavailable
	}
	sendJSON(w, code, answer)
}

func (h *Handler) version(w http.ResponseWriter, _ *http.Request) {
	v := h.o.Version
	if v == nil {
		v = json.RawMessage("{}")
	}
	sendJSON(w, http.StatusOK, v)
}
