package admin

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestFurtherPathsAreForThisHostOnly(t *testing.T) {
	h := New(Options{Local: map[string]http.Handler{
		"POST /api/v1/plugins/restart": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
	}})
	for name, c := range map[string]struct {
		method, from string
		want         int
	}{
		"loopback":       {"POST", "127.0.0.1:40000", http.StatusNoContent},
		"another host":   {"POST", "10.1.2.3:40000", http.StatusForbidden},
		"another method": {"GET", "127.0.0.1:40000", http.StatusNotFound},
	} {
		r := httptest.NewRequest(c.method, "http://127.0.0.1:9003/api/v1/plugins/restart", nil)
		r.RemoteAddr = c.from
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s: %d, want %d", name, w.Code, c.want)
		}
	}
}
