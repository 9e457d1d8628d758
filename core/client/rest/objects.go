package rest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/mooncake-agent/mooncake/core/client"
)

// progress is how long a caller may send or take nothing.
const progress = 30 * time.Second

// bodyPart is the piece in which bodies are read.
const bodyPart = 4 << 20

// readBody reads a request's body into memory that it takes from the budget; give gives it back.
func (h *Handler) readBody(w http.ResponseWriter, r *http.Request) (parts [][]byte, give func(), err error) {
	taken := int64(0)
	give = func() { h.budget.Release(taken) }
	defer func() {
		if err != nil {
			give()
		}
	}()
	limit := int64(h.o.MaxValue)
	tooLarge := &failure{http.StatusRequestEntityTooLarge, "value_too_large", fmt.Sprintf("the value has more than store.rest.max_value, %s", h.o.MaxValue)}
	if r.ContentLength > limit {
		return nil, give, tooLarge
	}
	if r.ContentLength > 0 {
		if err := h.room(r.Context(), r.ContentLength); err != nil {
			return nil, give, err
		}
		taken = r.ContentLength
	}
	rc := http.NewResponseController(w)
	for left := r.ContentLength; left != 0; {
		n := int64(bodyPart)
		if left > 0 {
			n = min(n, left)
		} else {
			if err := h.room(r.Context(), n); err != nil {
				return nil, give, err
			}
			taken += n
		}
		b := make([]byte, n)
		_ = rc.SetReadDeadline(time.Now().Add(progress))
		got, err := io.ReadFull(r.Body, b)
		if got > 0 {
			parts = append(parts, b[:got])
		}
		if left > 0 {
			left -= int64(got)
		}
		switch {
		case err == nil:
		case left < 0 && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
			left = 0
		default:
			return nil, give, &failure{http.StatusBadRequest, "body", "the body could not be read: " + err.Error()}
		}
		if taken > limit && left != 0 { // of unknown length
			return nil, give, tooLarge
		}
	}
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Time{}) // the engine has its own
	return parts, give, nil
}

func (h *Handler) put(c *client.Client, key string, w http.ResponseWriter, r *http.Request) error {
	opts, upsert, err := putOptions(r)
	if err != nil {
		return err
	}
	parts, give, err := h.readBody(w, r)
	if err != nil {
		return err
	}
	defer give()
	put := c.PutParts
	if upsert {
		put = c.UpsertParts
	}
	if err := put(r.Context(), key, parts, opts...); err != nil {
		return err
	}
	w.WriteHeader(http.StatusCreated)
	return nil
}

// putOptions reads the query of a PUT.
func putOptions(r *http.Request) (opts []client.PutOption, upsert bool, err error) {
	q := r.URL.Query()
	for name, values := range q {
		v := values[0]
		switch name {
		case "replicas":
			n, e := strconv.Atoi(v)
			if e != nil || n < 1 {
				return nil, false, badQuery(name, v, "a number from 1")
			}
			opts = append(opts, client.Replicas(n))
		case "soft_pin", "wait":
			d, e := time.ParseDuration(v)
			if e != nil || d < 0 {
				return nil, false, badQuery(name, v, "a time, such as 30s")
			}
			if name == "wait" {
				opts = append(opts, client.WaitForSpace(min(d, progress)))
			} else {
				opts = append(opts, client.SoftPin(d))
			}
		case "hard_pin", "upsert", "exists_ok":
			on, e := strconv.ParseBool(v)
			if e != nil {
				return nil, false, badQuery(name, v, "true or false")
			}
			switch {
			case name == "upsert":
				upsert = on
			case on && name == "hard_pin":
				opts = append(opts, client.HardPin())
			case on:
				opts = append(opts, client.ExistsOK())
			}
		case "group":
			opts = append(opts, client.Group(v))
		case "prefer":
			opts = append(opts, client.Prefer(values...))
		default:
			return nil, false, &failure{http.StatusBadRequest, "invalid", fmt.Sprintf(
				"unknown parameter %q; there is: replicas, soft_pin, hard_pin, upsert, exists_ok, group, prefer, wait", name)}
		}
	}
	return opts, upsert, nil
}

func badQuery(name, value, want string) error {
	return &failure{http.StatusBadRequest, "invalid", fmt.Sprintf("%s=%s: write %s", name, value, want)}
}

func (h *Handler) get(c *client.Client, key string, w http.ResponseWriter, r *http.Request) error {
	obj, err := c.Open(r.Context(), key)
	if err != nil {
		return err
	}
	n := min(obj.Size(), bodyPart)
	if r.Method == http.MethodHead {
		n = 0
	}
	if err := h.room(r.Context(), n); err != nil {
		return err
	}
	defer h.budget.Release(n)
	w.Header().Set("Content-Type", "application/octet-stream")
	if sum, ok := obj.Checksum(); ok {
		w.Header().Set("ETag", fmt.Sprintf(`"crc64-%016x"`, sum))
	}
	rc := http.NewResponseController(w)
	body := &content{r: obj, buf: make([]byte, n), tick: func() { _ = rc.SetWriteDeadline(time.Now().Add(progress)) }}
	// A read that fails after the header was sent ends the body before its length, which every client notices.
	http.ServeContent(w, r, "", time.Time{}, body)
	if body.err != nil {
		h.log.Warn("an object could not be sent to the end", "key", key, "err", body.err)
	}
	return nil
}

// content reads an object in large pieces for ServeContent, which asks for small ones.
type content struct {
	r    *client.Reader
	buf  []byte
	have []byte // the unread end of buf
	tick func()
	err  error
}

func (c *content) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	if len(c.have) == 0 {
		c.tick()
		n, err := c.r.Read(c.buf)
		if err == nil && n > 0 && c.atEnd() { // a wrong checksum must come before the last byte
			_, err = c.r.Read(c.buf[:1])
			if errors.Is(err, io.EOF) {
				err = nil
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				c.err = err
			}
			return 0, err
		}
		c.have = c.buf[:n]
	}
	n := copy(p, c.have)
	c.have = c.have[n:]
	return n, nil
}

func (c *content) atEnd() bool {
	at, err := c.r.Seek(0, io.SeekCurrent)
	return err == nil && at == c.r.Size()
}

func (c *content) Seek(off int64, whence int) (int64, error) {
	c.have = nil
	return c.r.Seek(off, whence)
}

func (h *Handler) remove(c *client.Client, key string, w http.ResponseWriter, r *http.Request) error {
	force, err := strconv.ParseBool(cmp.Or(r.URL.Query().Get("force"), "false"))
	if err != nil {
		return badQuery("force", r.URL.Query().Get("force"), "true or false")
	}
	if err := c.Remove(r.Context(), key, force); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// listed is one object of a list.
type listed struct {
	Key      string `json:"key"`
	Bytes    uint64 `json:"bytes"`
	Replicas int    `json:"replicas"`
}

func (h *Handler) list(c *client.Client, w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	pattern := q.Get("regex")
	if q.Has("prefix") {
		if pattern != "" {
			return &failure{http.StatusBadRequest, "invalid", "write prefix or regex, not both"}
		}
		pattern = "^" + regexp.QuoteMeta(q.Get("prefix"))
	}
	limit, err := strconv.Atoi(cmp.Or(q.Get("limit"), strconv.Itoa(h.o.MaxList)))
	if err != nil || limit < 1 {
		return badQuery("limit", q.Get("limit"), "a number from 1")
	}
	objects, err := c.List(r.Context(), pattern)
	if err != nil {
		return err
	}
	out := struct {
		Objects []listed `json:"objects"`
		More    bool     `json:"more"` // there are others that the limit left out
	}{Objects: []listed{}}
	for _, o := range objects {
		if len(out.Objects) == min(limit, h.o.MaxList) {
			out.More = true
			break
		}
		out.Objects = append(out.Objects, listed{o.Key, o.Size, len(o.Replicas)})
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}
