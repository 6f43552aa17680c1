package service_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/effectonce/effectonce/cmd/internal/service"
)

// TestPprofIsForThisMachine: what shows memory's content is not shown to other machines, wherever the program listens.
func TestPprofIsForThisMachine(t *testing.T) {
	t.Parallel()
	h := service.Pprof(http.NotFoundHandler())
	for _, c := range []struct {
		from, host, header string
		want               int
	}{
		{"127.0.0.1:4711", "127.0.0.1:8080", "Accept", http.StatusOK},
		{"[::1]:4711", "localhost:8080", "Accept", http.StatusOK},
		{"127.0.0.1:4711", "evil.example", "Accept", http.StatusForbidden},
		{"127.0.0.1:4711", "127.0.0.1:8080", "X-Forwarded-For", http.StatusForbidden},
		{"192.0.2.7:4711", "127.0.0.1:8080", "Accept", http.StatusForbidden},
		{"[2001:db8::1]:4711", "127.0.0.1:8080", "Accept", http.StatusForbidden},
		{"nonsense", "127.0.0.1:8080", "Accept", http.StatusForbidden},
	} {
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/symbol"} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.RemoteAddr, r.Host = c.from, c.host
			r.Header.Set(c.header, "192.0.2.9")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.want {
				t.Errorf("%s from %s to %s with %s: %d, want %d", path, c.from, c.host, c.header, w.Code, c.want)
			}
		}
	}
}
