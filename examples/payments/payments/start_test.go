package payments_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/examples/payments/payments"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestHealthBeforeTheDatabase: a server that waits for its database at the start is live and not ready. Once the
// database answers it is ready and accepts payments.
func TestHealthBeforeTheDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	proxy := pgtest.NewProxy(t, db.AdminURL)
	proxy.Refuse(true)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Pool(t, proxy.URL())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- payments.Run(ctx, pool, payments.Config{
			Schema: db.Schema, Listener: listener,
			Logger: slog.New(slog.DiscardHandler),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	url := "http://" + listener.Addr().String()
	if status, text := request(t, http.MethodGet, url+"/healthz", ""); status != http.StatusOK {
		t.Fatalf("/healthz is %d while the database is away: %s", status, text)
	}
	if status, text := request(t, http.MethodGet, url+"/readyz", ""); status != http.StatusServiceUnavailable ||
		!strings.Contains(text, "waiting for the database") {
		t.Errorf("/readyz is %d while the database is away: %s", status, text)
	}
	proxy.Refuse(false)
	awaitReady(t, url)
	if status, text := request(t, http.MethodPost, url+"/payments", body); status != http.StatusCreated {
		t.Errorf("POST /payments: %d %s", status, text)
	}
}

// TestRequestBeforeTables: the database answers, and the tables are being made. A client repeats its request.
func TestRequestBeforeTables(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	hold, err := db.Pool.Begin(t.Context()) // the migration waits for it, and makes the table after its end
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hold.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := hold.Exec(t.Context(), "create table payment (held int)"); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Pool(t, db.URL)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- payments.Run(ctx, pool, payments.Config{
			Schema: db.Schema, Listener: listener,
			Logger: slog.New(slog.DiscardHandler),
		})
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	url := "http://" + listener.Addr().String()
	pgtest.AwaitBlocking(t, db, hold.Conn().PgConn().PID())
	if status, text := request(t, http.MethodPost, url+"/payments", body); status != http.StatusServiceUnavailable ||
		!strings.Contains(text, "TRY_AGAIN") {
		t.Errorf("before the tables: %d %s", status, text)
	}
	if err := hold.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, url)
	if status, text := request(t, http.MethodPost, url+"/payments", body); status != http.StatusCreated {
		t.Errorf("POST /payments: %d %s", status, text)
	}
}

func awaitReady(t *testing.T, url string) {
	t.Helper()
	pgtest.Await(t, "the server to be ready", func() (bool, error) {
		status, _ := request(t, http.MethodGet, url+"/readyz", "")
		return status == http.StatusOK, nil
	})
}

// request sends a request with the key "k". The status is 0 if there was no answer.
func request(t *testing.T, method, url, body string) (status int, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", "k")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}
