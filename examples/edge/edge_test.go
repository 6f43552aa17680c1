package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestEdge sends an order, the same order again, another order with the same key, and a malformed one.
func TestEdge(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, db.Pool, listener) }()
	client := &http.Client{Transport: &http.Transport{}}
	post := func(key, body string) (int, string, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+listener.Addr().String()+"/orders",
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Idempotency-Key", key)
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(answer), res.Header.Get("Idempotent-Replayed")
	}
	pgtest.Await(t, "the service to be ready", func() (bool, error) {
		code, _, _ := post("first", "no order")
		return code != http.StatusServiceUnavailable, nil
	})
	code, first, replayed := post("k", `{"item":"tea","amount":2}`)
	if code != http.StatusCreated || replayed != "" {
		t.Errorf("%d %s, replayed %q", code, first, replayed)
	}
	if code, again, replayed := post(`"k"`, `{ "amount": 2, "item": "tea" }`); code != http.StatusCreated ||
		again != first || replayed != "true" {
		t.Errorf("again: %d %s, replayed %q", code, again, replayed)
	}
	if code, body, _ := post("k", `{"item":"tea","amount":3}`); code != http.StatusUnprocessableEntity ||
		!strings.Contains(body, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST") {
		t.Errorf("another order: %d %s", code, body)
	}
	if code, body, _ := post("l", `{"item":"tea","amount":2,"discount":1}`); code != http.StatusBadRequest {
		t.Errorf("an unknown field: %d %s", code, body)
	}
	pgtest.AwaitSQL(t, db, "select (select count(*) from orders) = 1 and (select count(*) from idempotency_key) = 1")
	client.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestDocsShowThisCode checks that section "A complete service" of docs/idempotency.md shows this handler.
func TestDocsShowThisCode(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	_, code, _ := strings.Cut(read("main.go"), "// docs:begin\n")
	code, _, _ = strings.Cut(code, "// docs:end\n")
	if code = strings.TrimSpace(code); code == "" {
		t.Fatal("main.go has no code between docs:begin and docs:end")
	}
	if !strings.Contains(read("../../docs/idempotency.md"), "```go\n"+code+"\n```") {
		t.Error("docs/idempotency.md differs from examples/edge/main.go: copy the code between docs:begin and docs:end")
	}
}
