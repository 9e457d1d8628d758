package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/mooncake-agent/mooncake/core/rpc/wire"
)

// buffer is upstream's form of a memory replica.
type buffer struct {
	Size     uint64 `json:"size_"`
	Address  uint64 `json:"buffer_address_"`
	Protocol string `json:"protocol_"`
	Endpoint string `json:"transport_endpoint_"`
}

type diskFile struct {
	Path string `json:"file_path"`
	Size uint64 `json:"object_size"`
}

type localDisk struct {
	Client   string `json:"client_id"`
	Size     uint64 `json:"object_size"`
	Endpoint string `json:"transport_endpoint"`
}

func (h *Handler) queryKey(w http.ResponseWriter, r *http.Request) {
	key, _ := param(r, "key")
	var resp wire.Result[wire.ReplicaList]
	h.o.Store.QueryKey(wire.DefaultTenant, key, &resp)
	if resp.Code != wire.OK {
		fail(w, resp.Code, "")
		return
	}
	v := values(resp.Value.Replicas)
	if v.Memory == nil {
		v.Memory = []buffer{}
	}
	sendJSON(w, http.StatusOK, struct {
		Success bool     `json:"success"`
		Data    []buffer `json:"data"`
	}{true, v.Memory})
}

// keyAnswer is one entry of /batch_query_keys.
type keyAnswer struct {
	OK     bool        `json:"ok"`
	Error  *string     `json:"error"`
	Memory []buffer    `json:"values"`
	Disk   []diskFile  `json:"disk_values"`
	Local  []localDisk `json:"local_disk_values"`
	NoF    []buffer    `json:"nof_values"`
}

func values(replicas []wire.Replica) (a keyAnswer) {
	a.OK = true
	for i := range replicas {
		switch x := &replicas[i]; x.Kind {
		case wire.KindMemory:
			a.Memory = append(a.Memory, buffer{x.Size, x.Address, x.Protocol, x.Endpoint})
		case wire.KindNoF:
			a.NoF = append(a.NoF, buffer{x.Size, x.Address, x.Protocol, x.Endpoint})
		case wire.KindDisk:
			a.Disk = append(a.Disk, diskFile{x.Path, x.Size})
		case wire.KindLocalDisk:
			a.Local = append(a.Local, localDisk{x.Client.String(), x.Size, x.Endpoint})
		}
	}
	return a
}

func (h *Handler) batchQueryKeys(w http.ResponseWriter, r *http.Request) {
	raw := rawParam(r, "keys")
	if raw == "" {
		sendJSON(w, http.StatusBadRequest, struct {
			Success bool   `json:"success"`
			Error   string `json:"error"`
		}{Error: "No keys provided. Use ?keys=key1,key2,..."})
		return
	}
	data := map[string]keyAnswer{}
	for part := range strings.SplitSeq(raw, ",") {
		key := unescape(part)
		var resp wire.Result[wire.ReplicaList]
		h.o.Store.QueryKey(wire.DefaultTenant, key, &resp)
		if resp.Code != wire.OK {
			name := resp.Code.String()
			data[key] = keyAnswer{Error: &name}
			continue
		}
		data[key] = values(resp.Value.Replicas)
	}
	sendJSON(w, http.StatusOK, struct {
		Success bool                 `json:"success"`
		Data    map[string]keyAnswer `json:"data"`
	}{true, data})
}

// rawParam is param before decoding: a comma separates keys, an escaped one belongs to a key.
func rawParam(r *http.Request, name string) string {
	for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
		if k, v, _ := strings.Cut(pair, "="); k == name {
			return v
		}
	}
	return ""
}

// pageSize is how many keys are read at a time.
const pageSize = 4096

func (h *Handler) getAllKeys(w http.ResponseWriter, r *http.Request) {
	tenant, _ := param(r, "tenant_id")
	if tenant == "" {
		tenant = wire.DefaultTenant
	}
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", metricsType)
	var keys []string
	for cursor := ""; ; {
		var err error
		if keys, cursor, err = h.o.Store.ListKeys(keys[:0], tenant, cursor, pageSize); err != nil {
			h.log.Warn("listing of keys ended early", "error", err)
			panic(http.ErrAbortHandler) // the reader must not take what it has for all
		}
		var page strings.Builder
		for _, k := range keys {
			page.WriteString(k)
			page.WriteByte('\n')
		}
		_ = rc.SetWriteDeadline(time.Now().Add(answerTime))
		if _, err := w.Write([]byte(page.String())); err != nil || cursor == "" || r.Context().Err() != nil {
			return
		}
	}
}

func (h *Handler) getAllSegments(w http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	for _, name := range h.o.Store.SegmentNames() {
		b.WriteString(name)
		b.WriteByte('\n')
	}
	send(w, metricsType, http.StatusOK, []byte(b.String()))
}

type segmentDetail struct {
	Name      string  `json:"segment_name"`
	ID        string  `json:"segment_id"`
	Client    string  `json:"client_id"`
	Base      string  `json:"base_address"`
	Size      uint64  `json:"size_bytes"`
	SizeHuman string  `json:"size_human"`
	Endpoint  string  `json:"te_endpoint"`
	Protocol  string  `json:"protocol"`
	Status    string  `json:"status"`
	Used      uint64  `json:"allocator_used_bytes"`     // of all segments of the name, as upstream
	Capacity  uint64  `json:"allocator_capacity_bytes"` // same
	Percent   float64 `json:"allocator_usage_percent"`

	// Ours.
	Taken   uint64  `json:"allocator_rounded_bytes"`
	Largest uint64  `json:"largest_free_bytes"`
	Objects int     `json:"objects"`
	Suspect string  `json:"suspect,omitempty"`
	WarmUp  float64 `json:"warm_up_share"`
	HostID  string  `json:"host_id,omitempty"`
}

func (h *Handler) getSegmentsDetail(w http.ResponseWriter, _ *http.Request) {
	details := h.o.Store.SegmentDetails()
	out := make([]segmentDetail, 0, len(details))
	for i := range details {
		d := &details[i]
		x := segmentDetail{Name: d.Name, ID: d.ID.String(), Client: d.Client.String(), Base: fmt.Sprintf("0x%x", d.Base),
			Size: d.Size, SizeHuman: fmt.Sprintf("%.4f GiB", float64(d.Size)/(1<<30)), Endpoint: d.TEEndpoint, Protocol: d.Protocol,
			Status: segmentStatusName(d.Status), Taken: d.Used, Largest: d.Largest, Objects: d.Objects, Suspect: d.Suspect, WarmUp: d.WarmUp, HostID: d.HostID}
		if requested, _, capacity, ok := h.o.Store.SegmentUse(d.Name); ok {
			x.Used, x.Capacity = requested, capacity
		} else {
			x.Used, x.Capacity = d.Requested, d.Size
		}
		if x.Capacity > 0 {
			x.Percent = float64(x.Used) / float64(x.Capacity) * 100
		}
		out = append(out, x)
	}
	sendJSON(w, http.StatusOK, struct {
		Total    int             `json:"total_segments"`
		Segments []segmentDetail `json:"segments"`
	}{len(out), out})
}

func segmentStatusName(s wire.SegmentStatus) string {
	names := [...]string{"UNDEFINED", "OK", "DRAINING", "DRAINED", "GRACEFULLY_UNMOUNTING", "UNMOUNTING"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("UNKNOWN_%d", int32(s))
	}
	return names[s]
}

func (h *Handler) querySegment(w http.ResponseWriter, r *http.Request) {
	name, _ := param(r, "segment")
	requested, _, capacity, ok := h.o.Store.SegmentUse(name)
	if !ok {
		send(w, metricsType, http.StatusInternalServerError, []byte("Failed to query segment"))
		return
	}
	send(w, metricsType, http.StatusOK, fmt.Appendf(nil, "%s\nUsed(bytes): %d\nCapacity(bytes) : %d\n", name, requested, capacity))
}

func (h *Handler) segmentStatus(w http.ResponseWriter, r *http.Request) {
	name, _ := param(r, "segment")
	if name == "" {
		fail(w, wire.ErrInvalidParams, "Missing segment query parameter")
		return
	}
	var resp wire.Result[wire.SegmentStatus]
	h.o.Store.QuerySegmentStatus(&wire.NameRequest{Name: name}, &resp)
	if resp.Code != wire.OK {
		fail(w, resp.Code, "")
		return
	}
	sendJSON(w, http.StatusOK, struct {
		Success bool   `json:"success"`
		Segment string `json:"segment"`
		Status  int32  `json:"status"`
		Name    string `json:"status_name"`
		Code    int    `json:"error_code"`
		Message string `json:"error_message"`
	}{Success: true, Segment: name, Status: int32(resp.Value), Name: segmentStatusName(resp.Value)})
}

// object tells everything about one object; ours.
func (h *Handler) object(w http.ResponseWriter, r *http.Request) {
	key, _ := param(r, "key")
	tenant, ok := param(r, "tenant")
	if !ok || tenant == "" {
		tenant = wire.DefaultTenant
	}
	d, code := h.o.Store.DescribeKey(tenant, key)
	if code != wire.OK {
		fail(w, code, "")
		return
	}
	type replica struct {
		ID       uint64 `json:"id"`
		Kind     string `json:"kind"`
		Status   string `json:"status"`
		Segment  string `json:"segment,omitempty"`
		Endpoint string `json:"endpoint,omitempty"`
		Address  uint64 `json:"address,omitempty"`
		Path     string `json:"path,omitempty"`
	}
	replicas := make([]replica, len(d.Replicas))
	for i := range d.Replicas {
		x := &d.Replicas[i]
		replicas[i] = replica{ID: x.ID, Kind: kindName(x.Kind), Status: statusName(x.Status), Endpoint: x.Endpoint, Address: x.Address, Path: x.Path}
		if i < len(d.Segments) {
			replicas[i].Segment = d.Segments[i]
		}
	}
	sendJSON(w, http.StatusOK, struct {
		Tenant       string    `json:"tenant"`
		Key          string    `json:"key"`
		Size         uint64    `json:"size_bytes"`
		Writer       string    `json:"writer"`
		PutStart     string    `json:"put_start,omitempty"`
		LeaseUntil   string    `json:"lease_until,omitempty"`
		ProbeUntil   string    `json:"probe_lease_until,omitempty"`
		SoftPinUntil string    `json:"soft_pin_until,omitempty"`
		HardPin      bool      `json:"hard_pin"`
		Processing   bool      `json:"processing"`
		Group        string    `json:"group,omitempty"`
		DataType     uint8     `json:"data_type"`
		Epoch        uint32    `json:"epoch"`
		Busy         int       `json:"running_tasks"`
		Replicas     []replica `json:"replicas"`
	}{d.Tenant, d.Key, d.Size, d.Writer.String(), stamp(d.PutStartMS), stamp(d.LeaseMS), stamp(d.ProbeMS), stamp(d.SoftPinMS),
		d.HardPin, d.Processing, d.Group, d.DataType, d.Epoch, d.Busy, replicas})
}

// stamp is a time for people, "" for none.
func stamp(ms int64) string {
	if ms == 0 {
		return ""
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}

func kindName(k wire.ReplicaKind) string {
	names := [...]string{"memory", "disk", "local_disk", "nof", "dfs"}
	if int(k) >= len(names) {
		return "unknown"
	}
	return names[k]
}

func statusName(s wire.ReplicaStatus) string {
	names := [...]string{"undefined", "initialized", "processing", "complete", "removed", "failed"}
	if s < 0 || int(s) >= len(names) {
		return "unknown"
	}
	return names[s]
}

// stats is [master.Stats] as it is; ours.
func (h *Handler) stats(w http.ResponseWriter, _ *http.Request) {
	b, err := json.Marshal(h.o.Store.Stats())
	if err != nil {
		panic(err) // a struct of plain values
	}
	send(w, jsonType, http.StatusOK, b)
}
