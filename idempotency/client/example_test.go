package client_test

import (
	"errors"
	"fmt"
	"io"
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

// What became of a request.
func ExampleOutcome() {
	_ = func(url string, body io.Reader, remember func(key string)) error {
		c := &http.Client{Transport: client.New(client.Config{})} // a key for each POST and PATCH that has none
		res, err := c.Post(url, "application/json", body)
		switch client.Outcome(res, err) {
		case client.Done: // once
		case client.NotDone: // a new intent may be made of it
		case client.Unknown: // keep its key, and repeat it later: with a new key it may be done twice
			key := client.Key(res)
			var failed *client.Error
			if errors.As(err, &failed) {
				key = failed.Key
			}
			remember(key)
		}
		if err != nil {
			return err
		}
		return res.Body.Close()
	}
}
