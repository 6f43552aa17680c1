package client_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/effectonce/effectonce/idempotency/client"
)

// A server that is busy at first. The POST is repeated with one key until it is done.
func Example() {
	tries, keys := 0, map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tries++
		keys[r.Header.Get("Idempotency-Key")] = true
		if tries < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	defer server.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	c := &http.Client{Transport: client.New(client.Config{Base: base, MinDelay: time.Millisecond})}
	res, err := c.Post(server.URL, "application/json", strings.NewReader(`{"amount":100}`))
	fmt.Println(client.Outcome(res, err), "after", tries, "attempts with", len(keys), "key")
	if err == nil {
		_ = res.Body.Close()
	}
	// Output: done after 3 attempts with 1 key
}
