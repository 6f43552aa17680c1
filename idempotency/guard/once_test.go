package guard_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/effectonce/effectonce/idempotency/guard"
)

// TestSendOnce: a provider does a request, and its connection, a reused one, breaks before the answer. net/http itself
// sends the request again.
func TestSendOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		transport func(http.RoundTripper) http.RoundTripper
		body      string
		sent      int32
	}{
		"net/http":              {func(rt http.RoundTripper) http.RoundTripper { return rt }, "100", 2},
		"SendOnce":              {guard.SendOnce, "100", 1},
		"SendOnce without body": {guard.SendOnce, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var charges atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got, err := io.ReadAll(r.Body); err != nil || string(got) != c.body && r.URL.Path == "/charges" {
					t.Errorf("%q, %v", got, err)
				}
				if r.URL.Path == "/charges" && charges.Add(1) == 1 {
					panic(http.ErrAbortHandler)
				}
			}))
			defer server.Close()
			base := &http.Transport{}
			defer base.CloseIdleConnections()
			client := &http.Client{Transport: c.transport(base)}
			post := func(path string) error {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path,
					strings.NewReader(c.body))
				if err != nil {
					return err
				}
				r.Header.Set("Idempotency-Key", "k")
				res, err := client.Do(r)
				if err != nil {
					return err
				}
				_, _ = io.Copy(io.Discard, res.Body)
				return res.Body.Close()
			}
			if err := post("/first"); err != nil { // makes the connection that the next one reuses
				t.Fatal(err)
			}
			err := post("/charges")
			if n := charges.Load(); n != c.sent || (err == nil) != (c.sent == 2) {
				t.Errorf("sent %d times, %v", n, err)
			}
		})
	}
}
