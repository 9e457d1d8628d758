package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/mooncake-agent/mooncake/core/client"
)

// The paths of upstream's mc_store_rest_server (mooncake-wheel, mooncake_store_service.py), with its bodies and status
// codes: every failure but a missing key or a bad request is a 500. It answers GET of a removed key with 404 and
// DELETE of one with 500.

func (h *Handler) upstreamRoutes() []Route {
	routes := []Route{
		{"PUT /api/put", "as mc_store_rest_server: JSON {key, value}", h.upstream(h.upPut)},
		{"GET /api/get/{key}", "as mc_store_rest_server: the value", h.upstream(h.upGet)},
		{"GET /api/exist/{key}", "as mc_store_rest_server: JSON {exists}", h.upstream(h.upExist)},
		{"DELETE /api/remove/{key}", "as mc_store_rest_server", h.upstream(h.upRemove)},
		{"DELETE /api/remove_all", "as mc_store_rest_server", h.upstream(h.upRemoveAll)},
	}
	for _, p := range []string{"mount", "unmount", "mount_shm", "unmount_shm", "unmount_local_disk", "reconfigure"} {
		routes = append(routes, Route{"POST /api/" + p, "of mc_store_rest_server, not supported: memory is set by global_segment_size",
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				upFail(w, http.StatusNotImplemented, "not supported by this node; its memory is set by global_segment_size and a restart")
			})})
	}
	return routes
}

// upstream gives a handler the client.
func (h *Handler) upstream(f func(c *client.Client, w http.ResponseWriter, r *http.Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := h.o.Client()
		if c == nil {
			upFail(w, http.StatusServiceUnavailable, errNoClient.msg)
			return
		}
		f(c, w, r)
	})
}

func upFail(w http.ResponseWriter, status int, msg string) {
	writeJSON(w, status, map[string]string{"error": msg})
}

func upDone(w http.ResponseWriter, msg string) {
	writeJSON(w, http.StatusOK, map[string]string{"status": msg})
}

// upBody is the largest body of PUT /api/put, as upstream's.
const upBody = 100 << 20

func (h *Handler) upPut(c *client.Client, w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, upBody)
	if r.ContentLength > upBody {
		upFail(w, http.StatusRequestEntityTooLarge, "the body has more than 100 MB")
		return
	}
	parts, give, err := h.readBody(w, r)
	if err != nil {
		status := explain(err).status
		var big *http.MaxBytesError
		if errors.As(err, &big) {
			status = http.StatusRequestEntityTooLarge
		}
		upFail(w, status, err.Error())
		return
	}
	defer give()
	var in struct {
		Key   string  `json:"key"`
		Value *string `json:"value"`
	}
	if err := json.Unmarshal(bytes.Join(parts, nil), &in); err != nil {
		upFail(w, http.StatusInternalServerError, err.Error()) // upstream's answer to any trouble with the JSON
		return
	}
	if in.Key == "" || in.Value == nil {
		upFail(w, http.StatusBadRequest, "Missing key or value")
		return
	}
	if err := h.checkKey(in.Key); err != nil {
		upFail(w, http.StatusBadRequest, err.Error())
		return
	}
	if err := c.Put(r.Context(), in.Key, []byte(*in.Value), client.ExistsOK()); err != nil {
		upFail(w, http.StatusInternalServerError, "PUT operation failed: "+err.Error())
		return
	}
	upDone(w, "success")
}

func (h *Handler) upGet(c *client.Client, w http.ResponseWriter, r *http.Request) {
	obj, err := c.Open(r.Context(), r.PathValue("key"))
	switch {
	case errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrNotReady):
		upFail(w, http.StatusNotFound, "Key not found")
		return
	case err != nil:
		upFail(w, http.StatusInternalServerError, "GET operation failed: "+err.Error())
		return
	}
	n := min(obj.Size(), bodyPart)
	if err := h.room(r.Context(), n); err != nil {
		upFail(w, explain(err).status, err.Error())
		return
	}
	defer h.budget.Release(n)
	w.Header().Set("Content-Type", "application/octet-stream")
	rc := http.NewResponseController(w)
	body := &content{r: obj, buf: make([]byte, n), tick: func() { _ = rc.SetWriteDeadline(time.Now().Add(progress)) }}
	http.ServeContent(w, r, "", time.Time{}, body)
	if body.err != nil {
		h.log.Warn("an object could not be sent to the end", "key", r.PathValue("key"), "err", body.err)
	}
}

func (h *Handler) upExist(c *client.Client, w http.ResponseWriter, r *http.Request) {
	ok, err := c.Exists(r.Context(), r.PathValue("key"))
	if err != nil {
		upFail(w, http.StatusInternalServerError, "Exist check failed: "+err.Error())
		return
	}
	writeJSON(w, http.StatusOK, map[string]bool{"exists": ok})
}

func (h *Handler) upRemove(c *client.Client, w http.ResponseWriter, r *http.Request) {
	if err := c.Remove(r.Context(), r.PathValue("key"), false); err != nil {
		upFail(w, http.StatusInternalServerError, "Remove operation failed: "+err.Error())
		return
	}
	upDone(w, "success")
}

func (h *Handler) upRemoveAll(c *client.Client, w http.ResponseWriter, r *http.Request) {
	n, err := c.RemoveAll(r.Context(), false)
	if err != nil {
		upFail(w, http.StatusInternalServerError, "RemoveAll operation failed: "+err.Error())
		return
	}
	upDone(w, fmt.Sprintf("success removed %d keys", n))
}
