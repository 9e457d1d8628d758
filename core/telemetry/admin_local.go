package telemetry

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

type socketKey struct{}

// markSocket is the server's ConnContext: it remembers which connections came over the Unix socket.
func markSocket(ctx context.Context, c net.Conn) context.Context {
	if c.LocalAddr().Network() == "unix" {
		return context.WithValue(ctx, socketKey{}, true)
	}
	return ctx
}

// Local tells whether a request comes from this host's own users: over the Unix socket, or over a
// loopback connection that no proxy made and that a foreign web page in a browser did not cause (its
// Host must be a loopback name, which also ends DNS rebinding).
func Local(r *http.Request) bool {
	if r.Context().Value(socketKey{}) != nil {
		return true
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() {
		return false
	}
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().IsLoopback()
}

// localOnly lets only local callers through, and of browsers only pages of this server itself.
func localOnly(h http.Handler) http.Handler {
	same := http.NewCrossOriginProtection().Handler(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !Local(r) {
			http.Error(w, "allowed from this host only: use the loopback address or the Unix socket (admin.socket)", http.StatusForbidden)
			return
		}
		same.ServeHTTP(w, r)
	})
}

// WriteJSON answers with v as JSON.
func WriteJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client is gone: nothing to tell it
}

type levelBody struct {
	Level string `json:"level"`
}

func (a *Admin) getLevel(w http.ResponseWriter, _ *http.Request) {
	WriteJSON(w, http.StatusOK, levelBody{a.logging.Level()})
}

func (a *Admin) putLevel(w http.ResponseWriter, r *http.Request) {
	var body levelBody
	d := json.NewDecoder(io.LimitReader(r.Body, 1<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		http.Error(w, `the body must be like {"level":"debug"}: `+err.Error(), http.StatusBadRequest)
		return
	}
	before := a.logging.Level()
	if err := a.logging.SetLevel(body.Level); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.log.Warn("log level changed", "from", before, "to", a.logging.Level()) // warn: visible at the usual levels
	a.getLevel(w, r)
}

// servePprof hands on to net/http/pprof, whose profiles may take as long as the caller asks.
func (a *Admin) servePprof(w http.ResponseWriter, r *http.Request) {
	if !a.pprof.Load() {
		http.Error(w, "profiles are off; set admin.pprof to true (no restart needed)", http.StatusNotFound)
		return
	}
	seconds, _ := strconv.Atoi(r.FormValue("seconds"))
	seconds = min(max(seconds, 30), 600)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Duration(seconds)*time.Second + writeTimeout))
	switch strings.TrimPrefix(r.URL.Path, "/debug/pprof/") {
	case "cmdline":
		pprof.Cmdline(w, r)
	case "profile":
		pprof.Profile(w, r)
	case "symbol":
		pprof.Symbol(w, r)
	case "trace":
		pprof.Trace(w, r)
	default:
		pprof.Index(w, r)
	}
}
