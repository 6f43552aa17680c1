package worker

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestHealthBeforeTheDatabase: a worker that waits for its database at the start is live, and ready once the database
// answers.
func TestHealthBeforeTheDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	proxy := pgtest.NewProxy(t, db.AdminURL)
	proxy.Refuse(true)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pool, ended := pgtest.Pool(t, proxy.URL()), make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{
			DB: pool, Schema: db.Schema, Brokers: []string{"127.0.0.1:1"},
			Listener: listener, Logger: slog.New(logWatcher{slog.DiscardHandler, "waiting for it", waiting}),
		}, Worker{
			Name: "ledger", Tables: Tables{Sets: []migrations.Set{migrations.Inbox}},
			Handler: func(in *inbox.Inbox) inbox.Handler {
				return in.Each(func(context.Context, pgx.Tx, event.Event) error { return nil })
			},
		})
	}()
	select {
	case <-waiting:
	case err := <-ended:
		t.Fatalf("it ended: %v", err)
	}
	at := "http://" + listener.Addr().String()
	if status, text := get(t, at+"/healthz"); status != http.StatusOK {
		t.Errorf("/healthz is %d while the database is away: %s", status, text)
	}
	if status, text := get(t, at+"/readyz"); status != http.StatusServiceUnavailable ||
		!strings.Contains(text, "has not answered yet") {
		t.Errorf("/readyz is %d while the database is away: %s", status, text)
	}
	proxy.Refuse(false)
	pgtest.Await(t, "the worker to be ready", func() (bool, error) {
		status, _ := get(t, at+"/readyz")
		return status == http.StatusOK, nil
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// logWatcher signals a log line that contains text.
type logWatcher struct {
	slog.Handler
	text string
	seen chan struct{}
}

func (h logWatcher) Enabled(context.Context, slog.Level) bool { return true }

func (h logWatcher) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h logWatcher) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, h.text) {
		select {
		case h.seen <- struct{}{}:
		default:
		}
	}
	return nil
}

func get(t *testing.T, url string) (status int, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}
